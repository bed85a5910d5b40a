// Host lists as Slurm writes them: "node[001-004,017],x12", "rack[1-2]node[1-16]". Zero padding
// stays.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace piper::cluster {

inline constexpr int64_t kMostHosts = 100'000;

// In the order of the text; a host that is named twice comes twice. `source` (a flag, a file and
// line) begins each message. Throws InvalidInput for what is no host list, or one of more than
// kMostHosts hosts.
std::vector<std::string> expand_hostlist(std::string_view text, const std::string& source);

// The shortest usual form of a set of hosts: by what stands before the last number, in the order of
// first appearance; numbers ascending, in ranges. expand_hostlist() gives the same set back.
std::string compress_hostlist(std::span<const std::string> hosts);

// Tasks of each node as Slurm writes them (SLURM_TASKS_PER_NODE): "8(x3),4". One entry alone is for
// all nodes. Throws InvalidInput when there are neither one nor `num_nodes` of them, or a node has
// none.
std::vector<int64_t> expand_tasks_per_node(std::string_view text, size_t num_nodes,
                                           const std::string& source);

}  // namespace piper::cluster
