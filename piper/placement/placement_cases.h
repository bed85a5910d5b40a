// Allocations and traffic for the tests of placements.
#pragma once

#include <piper/cluster/allocation.h>
#include <piper/placement/rank_traffic.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace piper::placement::example_places {

// Nodes of up to 4; a byte takes 1 / 100 s inside a node, 1 / 10 across nodes, 1 / 5 across
// switches, 1 across racks.
inline cluster::Cluster machine() {
  cluster::Cluster c;
  c.name = "example";
  c.memory_bytes_per_second = 1e6;
  c.levels = {{.name = "node", .num_members = 4, .link = {1e-6, 100}},
              {.name = "switch", .num_members = 1, .link = {1e-6, 10}},
              {.name = "rack", .num_members = 1, .link = {1e-6, 5}},
              {.name = "system", .num_members = 1, .link = {1e-6, 1}}};
  return c;
}

// By node: its switch and its rack (switches of different racks have different numbers), and its
// slots.
inline cluster::Allocation allocation(const std::vector<std::vector<int>>& paths,
                                      const std::vector<int64_t>& slots) {
  cluster::GroupsOfNodes groups;
  std::vector<std::string> names;
  for (size_t n = 0; n < paths.size(); ++n) {
    names.push_back("n" + std::to_string(n));
    for (size_t level = 0; level < paths[n].size(); ++level)
      groups[names.back()].push_back((level == 0 ? "s" : "r") + std::to_string(paths[n][level]));
  }
  return cluster::allocate(machine(), names, groups, slots);
}

struct Case {
  cluster::Allocation allocation;
  std::vector<RankGroup> groups;
  int32_t num_ranks = 0;
};

// Up to so many slots, on switches and racks drawn at random; groups of neighbours and of strided
// ranks.
template <class Random>
Case any_case(Random& random, int64_t most_slots) {
  const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % n); };
  std::vector<std::vector<int>> paths;
  std::vector<int64_t> slots;
  const int64_t num_switches = 1 + below(4), most = 1 + below(4);
  int64_t total = 0;
  for (int64_t n = 1 + below(most_slots); n > 0 && total < most_slots; --n) {
    const auto s = static_cast<int>(below(num_switches));
    paths.push_back({s, s / 2});
    slots.push_back(std::min(1 + below(most), most_slots - total));
    total += slots.back();
  }
  Case c{.allocation = allocation(paths, slots), .groups = {}, .num_ranks = 0};
  c.num_ranks = static_cast<int32_t>(1 + below(total));
  for (int axis = 0; axis < 3; ++axis) {
    const auto size = static_cast<int32_t>(2 + below(5));
    const auto stride = static_cast<int32_t>(1 + below(3));
    const double bytes = 1 + static_cast<double>(below(100));
    const bool is_ring = below(2) == 0;
    for (int32_t first = 0; first < c.num_ranks; ++first) {
      if (first / stride % size != 0) continue;
      RankGroup group{static_cast<Axis>(axis), is_ring, bytes, {}};
      for (int32_t i = 0; i < size && first + i * stride < c.num_ranks; ++i)
        group.ranks.push_back(first + i * stride);
      if (group.ranks.size() > 1) c.groups.push_back(group);
    }
  }
  return c;
}

}  // namespace piper::placement::example_places
