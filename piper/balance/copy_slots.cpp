#include <piper/balance/copy_slots.h>
#include <piper/base/error.h>

#include <algorithm>
#include <numeric>

namespace piper::balance {
namespace {

constexpr int64_t kUnits = int64_t{1} << 31;  // of all experts, so that squares add up in 64 bits

int64_t squared(int64_t x) { return x * x; }

// Loads times the greatest power of two with which all of them are fewer than kUnits.
std::vector<int64_t> in_units(const Loads& loads) {
  std::vector<int64_t> units = loads;
  int64_t total = std::accumulate(loads.begin(), loads.end(), int64_t{0});
  for (; total >= kUnits; total /= 2)
    for (int64_t& one : units) one /= 2;
  for (; total > 0 && total < kUnits / 2; total *= 2)
    for (int64_t& one : units) one *= 2;
  return units;
}

}  // namespace

CopySlots::CopySlots(const ExpertPlacement& homes, const Loads& loads, int64_t slots_per_rank)
    : homes_(homes.homes()),
      num_ranks_(static_cast<size_t>(homes.num_ranks())),
      slots_(static_cast<size_t>(slots_per_rank)),
      num_free_(num_ranks_ * slots_),
      units_(in_units(loads)),
      copies_(num_ranks_),
      holders_(loads.size()),
      holds_(num_ranks_ * loads.size()),
      rank_units_(num_ranks_),
      change_(num_ranks_),
      is_changed_(num_ranks_) {
  PIPER_CHECK(homes.has_homes_first() && std::ssize(loads) == homes.num_experts() &&
                  slots_per_rank <= homes.num_experts() - homes.num_experts() / homes.num_ranks(),
              "as many slots on every rank, not more than experts of others, and one load of every "
              "expert");
  for (size_t e = 0; e < units_.size(); ++e) {
    const auto home = static_cast<size_t>(homes_.rank_of(static_cast<int64_t>(e)));
    holders_[e].push_back(home);
    holds_[home * units_.size() + e] = 1;
    rank_units_[home] += units_[e];
  }
  for (const int64_t units : rank_units_) squares_ += squared(units);
}

Unevenness CopySlots::unevenness() const {
  return {.busiest = std::ranges::max(rank_units_), .squares = squares_};
}

int64_t CopySlots::growth(size_t expert, size_t rank) const {
  const int64_t more = of_each(expert, std::ssize(holders_[expert]) + 1);
  const int64_t less = of_each(expert) - more;
  int64_t sum = squared(rank_units_[rank] + more) - squared(rank_units_[rank]);
  for (const size_t holder : holders_[expert])
    sum += squared(rank_units_[holder] - less) - squared(rank_units_[holder]);
  return sum;
}

// What the expert brings to its holders, added or taken away.
void CopySlots::spread(size_t expert, int64_t sign) {
  const int64_t each = sign * of_each(expert);
  for (const size_t holder : holders_[expert]) {
    squares_ -= squared(rank_units_[holder]);
    rank_units_[holder] += each;
    squares_ += squared(rank_units_[holder]);
  }
}

void CopySlots::add(size_t expert, size_t rank) {
  spread(expert, -1);
  holders_[expert].push_back(rank);
  holds_[rank * units_.size() + expert] = 1;
  copies_[rank].push_back(static_cast<int32_t>(expert));
  --num_free_;
  spread(expert, 1);
}

void CopySlots::replace(size_t rank, size_t slot, size_t expert) {
  const auto before = static_cast<size_t>(copies_[rank][slot]);
  spread(before, -1);
  std::erase(holders_[before], rank);
  holds_[rank * units_.size() + before] = 0;
  spread(before, 1);
  spread(expert, -1);
  holders_[expert].push_back(rank);
  holds_[rank * units_.size() + expert] = 1;
  copies_[rank][slot] = static_cast<int32_t>(expert);
  spread(expert, 1);
}

void CopySlots::changes(size_t rank, int64_t by) {
  if (is_changed_[rank] == 0) {
    is_changed_[rank] = 1;
    changed_.push_back(rank);
  }
  change_[rank] += by;
}

Unevenness CopySlots::after_changes(const std::vector<size_t>& by_units) {
  Unevenness after{.squares = squares_};
  for (const size_t rank : by_units)
    if (is_changed_[rank] == 0) {
      after.busiest = rank_units_[rank];
      break;
    }
  for (const size_t rank : changed_) {
    const int64_t units = rank_units_[rank] + change_[rank];
    after.busiest = std::max(after.busiest, units);
    after.squares += squared(units) - squared(rank_units_[rank]);
    change_[rank] = 0;
    is_changed_[rank] = 0;
  }
  changed_.clear();
  return after;
}

Unevenness CopySlots::if_replaced(size_t rank, size_t slot, size_t expert,
                                  const std::vector<size_t>& by_units) {
  const auto before = static_cast<size_t>(copies_[rank][slot]);
  const int64_t fewer = std::ssize(holders_[before]) - 1, more = std::ssize(holders_[expert]) + 1;
  const int64_t rise = of_each(before, fewer) - of_each(before);
  const int64_t fall = of_each(expert) - of_each(expert, more);
  for (const size_t holder : holders_[before])
    changes(holder, holder == rank ? -of_each(before) : rise);
  for (const size_t holder : holders_[expert]) changes(holder, -fall);
  changes(rank, of_each(expert, more));
  return after_changes(by_units);
}

Unevenness CopySlots::if_exchanged(size_t rank, size_t slot, size_t other_rank, size_t other_slot,
                                   const std::vector<size_t>& by_units) {
  const int64_t given = of_each(static_cast<size_t>(copies_[rank][slot]));
  const int64_t taken = of_each(static_cast<size_t>(copies_[other_rank][other_slot]));
  changes(rank, taken - given);
  changes(other_rank, given - taken);
  return after_changes(by_units);
}

}  // namespace piper::balance
