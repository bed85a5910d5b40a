#include <piper/plan/device_walk.h>

#include <set>
#include <vector>

namespace piper::plan {
namespace {

constexpr int64_t kFitsInARow = 3;      // after which more is not looked at
constexpr int64_t kMostNodes = 16'384;  // where the search for a fit gives up
constexpr int64_t kMostBetween = 64;    // counts looked at in a range

std::vector<int64_t> steps(const cluster::Cluster& cluster, int64_t node) {
  std::vector<int64_t> list;
  for (int64_t n = 1; n < node; n *= 2) list.push_back(n);
  if (cluster.levels.size() == 1) {
    list.push_back(node);
    return list;
  }
  for (int64_t nodes = 1; nodes <= kMostNodes; nodes *= 2) {
    list.push_back(node * nodes);
    if (nodes > 1) list.push_back(node * nodes * 3 / 2);
  }
  return list;
}

}  // namespace

cluster::Cluster extended(cluster::Cluster cluster) {
  if (cluster.levels.size() > 1) cluster.levels.back().num_members *= kMostNodes;
  return cluster;
}

int64_t walk_device_counts(const cluster::Cluster& extended,
                           const std::function<bool(int64_t)>& could_fit,
                           const std::function<std::optional<bool>(int64_t)>& fits) {
  const bool is_one_level = extended.levels.size() == 1;
  const int64_t node = is_one_level ? extended.num_devices() : extended.devices_per_node();
  int64_t last_without = 0, first_with = 0, in_a_row = 0;
  std::set<int64_t> asked;
  for (const int64_t n : steps(extended, node)) {
    asked.insert(n);
    const std::optional<bool> fit = fits(n);
    if (!fit) continue;
    in_a_row = *fit ? in_a_row + 1 : 0;
    if (*fit && first_with == 0) first_with = n;
    if (!*fit && first_with == 0) last_without = n;
    if (in_a_row >= kFitsInARow) break;
  }
  // Looks at the counts in [from, to) that could fit and were not asked, ascending, up to the first
  // that fits.
  int64_t num_not_looked_at = 0;
  const auto first_between = [&](int64_t from, int64_t to, int64_t unit) -> std::optional<int64_t> {
    int64_t looked_at = 0;
    for (int64_t n = from; n < to; n += unit) {
      if (asked.contains(n) || !could_fit(n)) continue;
      if (looked_at == kMostBetween) {
        ++num_not_looked_at;
        continue;
      }
      ++looked_at;
      if (fits(n).value_or(false)) return n;
    }
    return std::nullopt;
  };
  if (first_with == 0) {
    const int64_t own = is_one_level ? node : extended.num_devices() / kMostNodes;
    first_between(is_one_level ? 1 : node, own + 1, is_one_level ? 1 : node);
    return num_not_looked_at;
  }
  const int64_t unit = first_with > node ? node : 1;
  first_between(last_without + unit, first_with, unit);
  first_between(unit, last_without, unit);
  return num_not_looked_at;
}

}  // namespace piper::plan
