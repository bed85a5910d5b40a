#include <piper/plan/device_walk.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace piper::plan {
namespace {

constexpr int64_t kFitsInARow = 3;      // after which more is not looked at
constexpr int64_t kMostNodes = 16'384;  // where the search for a fit gives up
constexpr int64_t kMostBetween = 64;    // counts looked at between two

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

int64_t walk_device_counts(const cluster::Cluster& cluster,
                           const std::function<std::optional<bool>(int64_t)>& fits) {
  const int64_t node =
      cluster.levels.size() == 1 ? cluster.num_devices() : cluster.devices_per_node();
  int64_t last_without = 0, first_with = 0, in_a_row = 0;
  for (const int64_t n : steps(cluster, node)) {
    const std::optional<bool> fit = fits(n);
    if (!fit) continue;
    in_a_row = *fit ? in_a_row + 1 : 0;
    if (*fit && first_with == 0) first_with = n;
    if (!*fit && first_with == 0) last_without = n;
    if (in_a_row >= kFitsInARow) break;
  }
  if (first_with == 0) return 0;
  // The first that fits may have smaller ones before it that were stepped over.
  const int64_t unit = first_with > node ? node : 1;
  int64_t n = last_without + unit;
  for (int64_t looked_at = 0; n < first_with && looked_at < kMostBetween; n += unit, ++looked_at)
    if (fits(n).value_or(false)) return 0;
  return std::max<int64_t>(0, (first_with - n + unit - 1) / unit);
}

}  // namespace piper::plan
