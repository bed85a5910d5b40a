#include <piper/base/error.h>
#include <piper/collective/unit_order.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace piper::collective {
namespace {

using Level = std::vector<int32_t>;  // by unit

std::vector<int64_t> sizes_of(const Level& rack) {
  std::vector<int64_t> sizes(static_cast<size_t>(*std::ranges::max_element(rack)) + 1);
  for (const int32_t r : rack) ++sizes[static_cast<size_t>(r)];
  return sizes;
}

// Levels that tell units apart and hold several of them, outermost first.
std::vector<Level> telling(int64_t num_units, const std::vector<Level>& racks) {
  std::vector<Level> kept;
  for (auto level = racks.rbegin(); level != racks.rend(); ++level) {
    PIPER_CHECK(std::ssize(*level) == num_units, "a level that does not cover all units");
    if (num_units == 0) continue;
    const int64_t num = std::ssize(sizes_of(*level));
    if (num > 1 && num < num_units) kept.push_back(*level);
  }
  return kept;
}

// Units rack by rack.
std::vector<int32_t> cells_of(int64_t num_units, const std::vector<Level>& levels) {
  std::vector<int32_t> order(static_cast<size_t>(num_units)), cell(order.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](int32_t a, int32_t b) {
    for (const Level& level : levels)
      if (level[static_cast<size_t>(a)] != level[static_cast<size_t>(b)])
        return level[static_cast<size_t>(a)] < level[static_cast<size_t>(b)];
    return false;
  });
  for (size_t i = 0; i < order.size(); ++i)
    cell[static_cast<size_t>(order[i])] = static_cast<int32_t>(i);
  return cell;
}

// Units in a row of a grid without empty cells: as many as the largest rack has, but no more than
// there are rows; or half to twice as many, the nearest to it. 0: there is none.
int64_t row_of(int64_t num_units, int64_t largest) {
  const double wanted =
      std::min(static_cast<double>(largest), std::sqrt(static_cast<double>(num_units)));
  const auto off = [=](int64_t row) {
    return std::abs(std::log(static_cast<double>(row) / wanted));
  };
  int64_t best = 0;
  for (int64_t row = 2; static_cast<double>(row) <= 2 * wanted && 2 * row <= num_units; ++row)
    if (num_units % row == 0 && 2 * static_cast<double>(row) >= wanted &&
        (best == 0 || off(row) < off(best)))
      best = row;
  return best;
}

// The multiples of the golden ratio's fraction by squares: neighbours come to lie at distances that
// are all different.
void scatter(std::vector<int32_t>& cell) {
  const auto key = [](int32_t c) {
    const auto i = static_cast<uint32_t>(c);
    return std::pair(i * i * uint32_t{2654435769}, c);
  };
  std::vector<int32_t> order(cell.size()), scattered(cell.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::sort(order, {}, key);
  for (size_t i = 0; i < order.size(); ++i)
    scattered[static_cast<size_t>(order[i])] = static_cast<int32_t>(i);
  for (int32_t& c : cell) c = scattered[static_cast<size_t>(c)];
}

// Cells of a unit of each level, outermost first. 0: racks are uneven and no grid fits.
std::vector<int64_t> rows_of(int64_t num_units, const std::vector<Level>& levels) {
  std::vector<int64_t> rows;
  for (const Level& level : levels) {
    const std::vector<int64_t> sizes = sizes_of(level);
    const auto [least, most] = std::ranges::minmax(sizes);
    if (least == most)
      rows.push_back(least);
    else if (rows.empty())
      return {row_of(num_units, most)};
    else
      return rows;
  }
  return rows;
}

int64_t rest(int64_t value, int64_t divisor) {
  const int64_t r = value % divisor;
  return r < 0 ? r + divisor : r;
}

// By how many rows unit `place` of `size` is ahead of the first: those of a smaller row are dealt
// over all, so that none of their bundles is used at several steps in a row.
int64_t lead(int64_t place, int64_t size, int64_t num_rows) {
  return size < num_rows ? place * num_rows / size : place;
}

}  // namespace

UnitOrder::UnitOrder(int64_t num_units, const std::vector<std::vector<int32_t>>& racks) {
  const std::vector<Level> levels = telling(num_units, racks);
  cell_ = cells_of(num_units, levels);
  int64_t cells = num_units;
  for (const int64_t row : rows_of(num_units, levels)) {
    if (row == 0) {
      scatter(cell_);
      break;
    }
    sizes_.push_back(cells / row);
    below_.push_back(row);
    cells = row;
  }
  sizes_.push_back(cells);
  below_.push_back(1);
}

int64_t UnitOrder::num_steps() const { return std::max<int64_t>(0, std::ssize(cell_) - 1); }

int64_t UnitOrder::step(int64_t from, int64_t to) const {
  const int64_t here = cell_[static_cast<size_t>(from)], there = cell_[static_cast<size_t>(to)];
  int64_t inside = 0;  // the step inside of a row, from 1 on; 0: the same place in both rows
  for (size_t level = sizes_.size(); level-- > 0;) {
    const int64_t num = sizes_[level], below = below_[level];
    const int64_t away = there / below % num - here / below % num, place = here % below;
    if (inside > 0)
      inside = inside * num + rest(away - lead(place, below, num), num);
    else if (away != 0)
      inside = 1 + rest(rest(away - 1, num) - lead(place, below, num - 1), num - 1);
  }
  return inside - 1;
}

std::vector<int32_t> UnitOrder::targets(int64_t unit) const {
  std::vector<int32_t> by_step(static_cast<size_t>(num_steps()));
  for (int64_t to = 0; to < std::ssize(cell_); ++to)
    if (to != unit) by_step[static_cast<size_t>(step(unit, to))] = static_cast<int32_t>(to);
  return by_step;
}

std::vector<int32_t> UnitOrder::sources(int64_t unit) const {
  std::vector<int32_t> by_step(static_cast<size_t>(num_steps()));
  for (int64_t from = 0; from < std::ssize(cell_); ++from)
    if (from != unit) by_step[static_cast<size_t>(step(from, unit))] = static_cast<int32_t>(from);
  return by_step;
}

}  // namespace piper::collective
