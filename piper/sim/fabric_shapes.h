// Fabrics by name: what machines' networks are drawn as. All nodes alike, members numbered node by
// node, neighbours share a NIC.
#pragma once

#include <piper/collective/topology.h>
#include <piper/sim/fabric.h>

#include <cstdint>
#include <string>
#include <vector>

namespace piper::sim {

struct NodeShape {
  int64_t num_members = 8;
  int64_t num_nics = 4;  // at most num_members, which they divide
  double inner_bytes_per_second = 0;
  double nic_bytes_per_second = 0;
  double latency_seconds = 0;  // inside the node
};

// One level above nodes, of a tree.
struct LevelShape {
  std::string name;
  int64_t num_units = 1;       // of the level below, in one unit
  double latency_seconds = 0;  // of a message whose innermost common unit is of this level
  // What a unit says to the outside, and hears: 0 = as much as comes. Meaningless of the last
  // level.
  double outside_bytes_per_second = 0;
  // A link from each of its units to each other one of its units: 0 = none.
  double between_bytes_per_second = 0;
};

// Throws InvalidInput naming what is not allowed. The last level holds everything.
Fabric tree(const NodeShape& node, const std::vector<LevelShape>& levels);

// Nodes on switches, switches in groups where each has a link to each other, groups with one
// (bundled) link to each other. Every switch that a message passes costs `hop_seconds`, one between
// groups `global_seconds` more. `adaptive`: traffic spreads over all links of a switch or group,
// also by detours, so that they are one port; otherwise each pair has its link and no other
// (minimal routing).
struct DragonflyShape {
  NodeShape node;
  int64_t nodes_per_switch = 4, switches_per_group = 32, num_groups = 1;
  double local_bytes_per_second = 0;   // switch to switch
  double global_bytes_per_second = 0;  // group to group
  double hop_seconds = 0, global_seconds = 0;
  bool adaptive = false;
};
Fabric dragonfly(const DragonflyShape& shape);

// Leaf switches below a spine; a leaf's uplinks carry 1 / oversubscription of what its nodes can
// send.
struct FatTreeShape {
  NodeShape node;
  int64_t nodes_per_leaf = 1, num_leaves = 1;
  double oversubscription = 1;
  double hop_seconds = 0;
};
Fabric fat_tree(const FatTreeShape& shape);

// NIC i of every node of a pod on rail switch i; rails of all pods below a spine. A message
// between NICs of different number, or of different pods, crosses the spine.
struct RailShape {
  NodeShape node;
  int64_t nodes_per_pod = 1, num_pods = 1;
  double oversubscription = 1;  // of a rail switch's uplinks
  double hop_seconds = 0;
};
Fabric rail_optimised(const RailShape& shape);

// Two fat trees that are not blocked inside, joined by a line.
struct TwoCentresShape {
  NodeShape node;
  int64_t nodes_per_centre = 1;
  double hop_seconds = 0;
  double line_bytes_per_second = 0;
  double line_seconds = 0;  // latency
};
Fabric two_data_centres(const TwoCentresShape& shape);

// What algorithms may know of a fabric: nodes, the levels above as long as they nest, and NICs.
collective::Topology topology_of(const Fabric& fabric);

}  // namespace piper::sim
