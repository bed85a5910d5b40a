// The nodes that a job has, or could get: their tasks, what they are in, and the same as devices of
// a cluster, so that everything that knows devices by number (prices, sim/placement.h) knows them.
#pragma once

#include <piper/cluster/cluster.h>
#include <piper/cluster/slurm_topology.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace piper::cluster {

struct AllocatedNode {
  std::string name;
  int64_t num_slots = 0;            // ranks that it takes
  std::vector<std::string> groups;  // innermost first; the same number for every node
  int64_t first_device = 0;         // of `machine`
};

struct Allocation {
  std::vector<AllocatedNode> nodes;  // as listed
  // The cluster with one level for each level of groups: node, groups, and whatever joins the
  // outermost groups. A level takes the link of the cluster's level of the same rank (or of the
  // name given); those passed over count with the slowest link of them; groups beyond the outermost
  // level take its link again. Units are no smaller than the cluster's, and large enough for the
  // groups.
  Cluster machine;

  int64_t num_slots() const;
};

// `slots`: by node, at most the devices of a node of the cluster. `levels`: names of the cluster's
// levels that the groups are, innermost first; empty: from the first above the node. Throws
// InvalidInput with all problems: a node listed twice or not in `groups`, too many slots, a group
// that lies in two, unknown levels, a cluster without a level above nodes.
Allocation allocate(const Cluster& cluster, std::span<const std::string> nodes,
                    const GroupsOfNodes& groups, std::span<const int64_t> slots,
                    std::span<const std::string> levels = {});

}  // namespace piper::cluster
