// The routes of a fabric in one array, so that a message under way is a position in it: for every
// member and level the ports out, and the ports in. Used by simulate_flows().
//
//   chain out of (member, l): ports ..., turn     chain in of (member, l): ports ..., end
//
// A turn holds the level and, where pairs of units have ports of their own, the row of its unit.
#pragma once

#include <piper/sim/fabric.h>

#include <cstdint>
#include <vector>

namespace piper::sim {

class FlowRoutes {
 public:
  static constexpr uint32_t kEnd = UINT32_MAX;

  explicit FlowRoutes(const Fabric& fabric);

  size_t common_level(uint64_t from, uint64_t to) const {
    const int32_t* a = &unit_[from * num_levels_];
    const int32_t* b = &unit_[to * num_levels_];
    size_t level = 0;
    while (a[level] != b[level]) ++level;
    return level;
  }

  // Where the route of a message of that level begins: a port.
  uint32_t first(uint64_t from, size_t level) const { return out_[from * num_levels_ + level]; }

  // The port at a position of a message to `to`.
  int32_t port(uint32_t position, uint64_t to) const {
    const int32_t value = entry_[position];
    if (value >= 0) return value;
    const auto below = static_cast<size_t>(-value - kYield) - 1;  // the level below the common one
    return between_[static_cast<size_t>(entry_[position + 1]) +
                    static_cast<size_t>(unit_[to * num_levels_ + below])];
  }

  // The position after it; kEnd after the last port.
  uint32_t next(uint32_t position, uint64_t to) const {
    const uint32_t after = position + 1;
    if (entry_[position] < 0) return in_chain(-entry_[position] - kYield, to);
    const int32_t value = entry_[after];
    if (value >= 0) return after;
    if (value == kStop) return kEnd;
    const size_t level = static_cast<size_t>(-value - kYield);
    if (entry_[after + 1] < 0) return in_[to * num_levels_ + level];
    return has_port_between(after, to) ? after : in_[to * num_levels_ + level];
  }

 private:
  static constexpr int32_t kStop = -1;
  static constexpr int32_t kYield = 2;  // a turn at level l is -(l + kYield)

  uint32_t in_chain(int32_t level, uint64_t to) const {
    return in_[to * num_levels_ + static_cast<size_t>(level)];
  }
  bool has_port_between(uint32_t turn, uint64_t to) const { return port(turn, to) != kNoPort; }
  void add_chains(const Fabric& fabric, int64_t member, size_t level,
                  const std::vector<size_t>& first_row);

  size_t num_levels_;
  std::vector<int32_t> unit_;       // by member and level
  std::vector<uint32_t> out_, in_;  // by member and level: where the chain begins
  std::vector<int32_t> entry_;
  std::vector<int32_t> between_;  // of all levels, one table after another
};

}  // namespace piper::sim
