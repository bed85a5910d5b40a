#include <piper/base/error.h>
#include <piper/collective/halo_dedup.h>

#include <algorithm>
#include <numeric>

namespace piper::collective {
namespace {

bool has(std::span<const int32_t> targets, int64_t target) {
  return std::binary_search(targets.begin(), targets.end(), static_cast<int32_t>(target));
}

bool enters(std::span<const int32_t> targets, int64_t unit, const Units& units) {
  return std::any_of(targets.begin(), targets.end(),
                     [&](int32_t target) { return units.unit(target) == unit; });
}

}  // namespace

void TokenRoutes::add(std::span<const int32_t> token_targets) {
  PIPER_CHECK(std::is_sorted(token_targets.begin(), token_targets.end(), std::less_equal<>()) &&
                  (token_targets.empty() || token_targets.front() >= 0),
              "targets of a token ascend");
  targets.insert(targets.end(), token_targets.begin(), token_targets.end());
  first.push_back(static_cast<int32_t>(targets.size()));
}

std::vector<int32_t> tokens_into(const TokenRoutes& routes, int64_t unit, const Units& units) {
  std::vector<int32_t> tokens;
  for (int64_t token = 0; token < routes.num_tokens(); ++token)
    if (enters(routes.of(token), unit, units)) tokens.push_back(static_cast<int32_t>(token));
  return tokens;
}

TokenRoutes routes_into(const TokenRoutes& routes, int64_t unit, const Units& units) {
  TokenRoutes result;
  for (const int32_t token : tokens_into(routes, unit, units)) {
    std::vector<int32_t> inside;
    for (const int32_t target : routes.of(token))
      if (units.unit(target) == unit) inside.push_back(target);
    result.add(inside);
  }
  return result;
}

TokenRoutes routes_told(const TokenRoutes& own, int64_t from, int64_t to, const Units& units) {
  if (units.together(from, to) || units.counterpart(from, units.unit(to)) != to) return {};
  return routes_into(own, units.unit(to), units);
}

std::vector<int64_t> counts_told(const TokenRoutes& own, int64_t from, int64_t to,
                                 const Units& units, int64_t num_pieces) {
  const TokenRoutes inside = routes_into(own, units.unit(to), units);
  const int64_t num = units.together(from, to) ? 1 : num_pieces;
  std::vector<int64_t> counts;
  for (int64_t p = 0; p < num; ++p)
    counts.push_back(static_cast<int64_t>(
        rows_for(inside, piece_rows(inside.num_tokens(), p, num), static_cast<int32_t>(to))
            .size()));
  return counts;
}

RowRange piece_rows(int64_t num_rows, int64_t p, int64_t num) {
  const int64_t each = num_rows / num, rest = num_rows % num;
  const int64_t begin = p * each + std::min(p, rest);
  return {begin, begin + each + (p < rest ? 1 : 0)};
}

std::vector<int32_t> rows_for(const TokenRoutes& routes, RowRange range, int32_t target) {
  std::vector<int32_t> rows;
  for (int64_t row = range.begin; row < range.end; ++row)
    if (has(routes.of(row), target)) rows.push_back(static_cast<int32_t>(row - range.begin));
  return rows;
}

std::vector<int64_t> row_begins(int64_t member, int64_t num_members, const DedupKnown& known) {
  std::vector<int64_t> begins{0};
  for (int64_t source = 0; source < num_members; ++source) {
    int64_t rows = 0;
    if (source == member) {
      const RowRange all{0, known.own.num_tokens()};
      rows = static_cast<int64_t>(rows_for(known.own, all, static_cast<int32_t>(member)).size());
    } else {
      const std::vector<int64_t> pieces = known.rows(source);
      rows = std::accumulate(pieces.begin(), pieces.end(), int64_t{0});
    }
    begins.push_back(begins.back() + rows);
  }
  return begins;
}

}  // namespace piper::collective
