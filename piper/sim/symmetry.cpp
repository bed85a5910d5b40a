#include <fmt/format.h>
#include <piper/cost/exchange_time.h>
#include <piper/cost/links.h>
#include <piper/sim/symmetry.h>
#include <piper/strategy/rank_layout.h>

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
      : layout_(strategy), cluster_(cluster) {}

  std::string why_not() const {
    if (cluster_.cores_per_node > 0) return "ranks share cores";
    if (const std::string why = ports(); !why.empty()) return why;
    for (int64_t stage = 0; stage < layout_.num_stages(); ++stage)
      for (int64_t member = 1; member < layout_.num_members(); ++member)
        if (const char* what = differs(stage, member))
          return fmt::format("ranks {} and {} of stage {} have {} over different levels",
                             layout_.rank(stage, 0).value, layout_.rank(stage, member).value, stage,
                             what);
    return "";
  }

 private:
  std::string ports() const {
    const int64_t together = layout_.num_together();
    for (size_t level = 0; level < cluster_.levels.size(); ++level) {
      const int64_t devices = cost::devices_of_port(cluster_, level);
      const bool within = together % devices == 0;
      const bool whole = devices % together == 0;
      if (!within && !whole)
        return fmt::format("a port of level {} serves {} devices, a stage has {}",
                           cluster_.levels[level].name, devices, together);
    }
    return "";
  }

  Traffic in_group(const Group& group, int64_t index) const {
    return group.size > 1 ? cost::even_traffic(cluster_, group, index, 1) : Traffic{};
  }
  Traffic in_group(strategy::Axis axis, int64_t stage, int64_t member) const {
    const strategy::Members m = layout_.members(axis, member);
    return in_group(cost::group_of(layout_, axis, layout_.rank(stage, member)),
                    (member - m.first) / m.stride);
  }

  // What a rank has otherwise than member 0 of its stage.
  const char* differs(int64_t stage, int64_t member) const {
    using strategy::Axis;
    const auto same_on = [&](Axis axis) {
      return same(in_group(axis, stage, member), in_group(axis, stage, 0));
    };
    if (!same_on(Axis::kExpert) || !same_on(Axis::kTensorExpert)) return "exchanges";
    if (!same_on(Axis::kExpertData)) return "reductions of experts";
    if (!same_on(Axis::kData)) return "reductions";
    if (!same_on(Axis::kTensor)) return "tensor collectives";
    if (!same_on(Axis::kExpertTensor)) return "gathers and sums of experts' rows";
    if (layout_.size(Axis::kTensor) > 1 && !same_on(Axis::kStage)) return "sums over a stage";
    const int64_t here = layout_.rank(stage, member).value, first = layout_.rank(stage, 0).value;
    const Group world{.size = layout_.num_ranks()};
    if (!same(in_group(world, here), in_group(world, first))) return "sums over the world";
    if (stage == 0) return nullptr;
    const auto same_level_to = [&](int64_t other) {
      return cluster_.common_level(here, layout_.rank(other, member).value) ==
             cluster_.common_level(first, layout_.rank(other, 0).value);
    };
    if (!same_level_to(stage - 1)) return "messages";
    if (stage + 1 == layout_.num_stages() && !same_level_to(0)) return "the sum of a shared table";
    return nullptr;
  }

  const strategy::RankLayout layout_;
  const cluster::Cluster& cluster_;
};

}  // namespace

std::string why_not_symmetric(const strategy::Strategy& strategy, const cluster::Cluster& cluster) {
  return Check(strategy, cluster).why_not();
}

std::string why_not_symmetric_whole(const strategy::Strategy& strategy,
                                    const cluster::Cluster& cluster) {
  const strategy::RankLayout layout(strategy);
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
