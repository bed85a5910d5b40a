#include <fmt/format.h>
#include <piper/cost/exchange_time.h>
#include <piper/cost/links.h>
#include <piper/sim/symmetry.h>
#include <piper/strategy/layout.h>

namespace piper::sim {
namespace {

using cost::Group;
using cost::Traffic;

bool same(const Traffic& a, const Traffic& b) {
  return a.bytes == b.bytes && a.messages == b.messages;
}

class Check {
 public:
  Check(const strategy::Strategy& strategy, const cluster::Cluster& cluster)
      : mesh_(strategy.mesh), cluster_(cluster) {}

  std::string why_not() const {
    if (cluster_.cores_per_node > 0) return "ranks share cores";
    if (const std::string why = ports(); !why.empty()) return why;
    for (int64_t stage = 0; stage < mesh_.pp; ++stage)
      for (int64_t dp = 1; dp < mesh_.dp; ++dp)
        if (const char* what = differs(stage, dp))
          return fmt::format("ranks {} and {} of stage {} have {} over different levels",
                             stage * mesh_.dp, stage * mesh_.dp + dp, stage, what);
    return "";
  }

 private:
  std::string ports() const {
    for (size_t level = 0; level < cluster_.levels.size(); ++level) {
      const int64_t devices = cost::devices_of_port(cluster_, level);
      const bool within = mesh_.dp % devices == 0;
      const bool whole = devices % mesh_.dp == 0;
      if (!within && !whole)
        return fmt::format("a port of level {} serves {} devices, a stage has {}",
                           cluster_.levels[level].name, devices, mesh_.dp);
    }
    return "";
  }

  Traffic in_group(const Group& group, int64_t member) const {
    return group.size > 1 ? cost::even_traffic(cluster_, group, member, 1) : Traffic{};
  }

  // What a rank has otherwise than data index 0 of its stage.
  const char* differs(int64_t stage, int64_t dp) const {
    const int64_t base = stage * mesh_.dp;
    const int64_t ep_index = dp % mesh_.ep, replica = dp / mesh_.ep;
    const Group expert{.first = base + replica * mesh_.ep, .size = mesh_.ep};
    if (!same(in_group(expert, ep_index), in_group({.first = base, .size = mesh_.ep}, 0)))
      return "exchanges";
    const Group replicas{.first = base + ep_index, .stride = mesh_.ep, .size = mesh_.edp()};
    const Group first{.first = base, .stride = mesh_.ep, .size = mesh_.edp()};
    if (!same(in_group(replicas, replica), in_group(first, 0))) return "reductions of experts";
    const Group data{.first = base, .size = mesh_.dp};
    if (!same(in_group(data, dp), in_group(data, 0))) return "reductions";
    const Group world{.size = mesh_.world()};
    if (!same(in_group(world, base + dp), in_group(world, base))) return "sums over the world";
    if (stage > 0 && cluster_.common_level(base + dp, base + dp - mesh_.dp) !=
                         cluster_.common_level(base, base - mesh_.dp))
      return "messages";
    if (stage + 1 == mesh_.pp && stage > 0 &&
        cluster_.common_level(base + dp, dp) != cluster_.common_level(base, 0))
      return "the sum of a shared table";
    return nullptr;
  }

  const strategy::Mesh& mesh_;
  const cluster::Cluster& cluster_;
};

}  // namespace

std::string why_not_symmetric(const strategy::Strategy& strategy, const cluster::Cluster& cluster) {
  return Check(strategy, cluster).why_not();
}

std::string why_not_symmetric_whole(const strategy::Strategy& strategy,
                                    const cluster::Cluster& cluster) {
  const strategy::Layout layout(strategy);
  const int64_t together = layout.num_together();
  // Ranks that follow each other and hold as many of every stage.
  const int64_t whole =
      layout.num_members() == together ? together : together * layout.num_stages();
  for (size_t level = 0; level < cluster.levels.size(); ++level) {
    const int64_t devices = cost::devices_of_port(cluster, level);
    if (together % devices == 0 || devices % whole == 0) continue;
    return fmt::format("a port of level {} serves {} devices, {} of a stage sit together",
                       cluster.levels[level].name, devices, together);
  }
  return "";
}

}  // namespace piper::sim
