// What nodes are in: read from Slurm's topology.conf (a tree of switches of any depth), from JSON,
// or taken from the numbers of the nodes in a cluster's own levels.
#pragma once

#include <piper/base/json_fwd.h>
#include <piper/cluster/cluster.h>

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace piper::cluster {

inline constexpr size_t kMostGroupLevels = 8;

// By node: the groups around it, innermost first; the same number for every node.
using GroupsOfNodes = std::map<std::string, std::vector<std::string>>;

// topology.conf of the plugin topology/tree:
//
//   SwitchName=s1 Nodes=node[001-016]            # LinkSpeed= is read over
//   SwitchName=root Switches=s[1-4]
//
// Keys in any case; "#" begins a comment, "\" continues a line. Levels count from the leaves: a
// switch stands one level above the highest of its children, and where a branch is shorter the
// lower switch (or the node alone) is its own group on the levels between. Throws InvalidInput with
// all problems, one line each with file and line: unknown keys, a node or switch in two places, a
// switch that is missing, a circle.
GroupsOfNodes parse_slurm_topology(std::string_view text, const std::string& source);

// {"node[001-004]": ["switch 1", "rack 1"], ...}. Throws InvalidInput with all problems.
GroupsOfNodes parse_node_groups(const Json& json, const std::string& source);

// Either, by what the file begins with. Throws IoError too.
GroupsOfNodes read_node_groups(const std::string& path);

// Node number n of a name (what stands at its end, minus `first_number`) is node n of the cluster:
// its switch group, cabinet, ... by the cluster's levels between node and whole machine. Throws
// InvalidInput for names without a number and numbers beyond the machine.
GroupsOfNodes groups_by_number(const Cluster& cluster, std::span<const std::string> nodes,
                               int64_t first_number);

}  // namespace piper::cluster
