#include <piper/sim/flow_routes.h>

#include <algorithm>
#include <cmath>

namespace piper::sim {

FlowRoutes::FlowRoutes(const Fabric& fabric) : num_levels_(fabric.levels.size()) {
  std::vector<size_t> first_row;
  for (const FabricLevel& level : fabric.levels) {
    first_row.push_back(between_.size());
    between_.insert(between_.end(), level.between.begin(), level.between.end());
  }
  const int64_t n = fabric.num_members();
  for (int64_t m = 0; m < n; ++m)
    for (const FabricLevel& level : fabric.levels)
      unit_.push_back(level.unit[static_cast<size_t>(m)]);
  for (int64_t m = 0; m < n; ++m)
    for (size_t level = 0; level < num_levels_; ++level) add_chains(fabric, m, level, first_row);
}

void FlowRoutes::add_chains(const Fabric& fabric, int64_t member, size_t level,
                            const std::vector<size_t>& first_row) {
  const auto m = static_cast<size_t>(member);
  const auto add = [&](int32_t port) {
    if (port != kNoPort) entry_.push_back(port);
  };
  out_.push_back(static_cast<uint32_t>(entry_.size()));
  add(level == 0 ? fabric.member_out[m] : fabric.nic_out[m]);
  for (size_t l = 1; l < level; ++l)
    add(fabric.levels[l].out[static_cast<size_t>(fabric.levels[l].unit[m])]);
  entry_.push_back(-(static_cast<int32_t>(level) + kYield));
  int32_t row = -1;
  if (level > 0 && !fabric.levels[level - 1].between.empty()) {
    const FabricLevel& below = fabric.levels[level - 1];
    const auto num_units = static_cast<size_t>(std::ranges::max(below.unit)) + 1;
    row =
        static_cast<int32_t>(first_row[level - 1] + static_cast<size_t>(below.unit[m]) * num_units);
  }
  entry_.push_back(row);
  in_.push_back(static_cast<uint32_t>(entry_.size()));
  for (size_t l = level; l-- > 1;)
    add(fabric.levels[l].in[static_cast<size_t>(fabric.levels[l].unit[m])]);
  add(level == 0 ? fabric.member_in[m] : fabric.nic_in[m]);
  entry_.push_back(kStop);
}

}  // namespace piper::sim
