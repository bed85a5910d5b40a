// What nodes are in: topology.conf or groups in JSON, and the host lists in either. Every node that is accepted has as
// many groups as topology.conf has levels, and its list of hosts comes back as it was.
#include <piper/base/json.h>
#include <piper/cluster/hostlist.h>
#include <piper/cluster/slurm_topology.h>

#include <algorithm>

#include "fuzz.h"

namespace piper::fuzz {

void fuzz(std::span<const std::byte> bytes) {
  const std::string_view text = text_of(bytes);
  const bool is_json = text.starts_with('{');
  const cluster::GroupsOfNodes groups = is_json
                                            ? cluster::parse_node_groups(parse_json(text, "f"), "f")
                                            : cluster::parse_slurm_topology(text, "f");
  std::vector<std::string> nodes;
  for (const auto& [node, around] : groups) {
    FUZZ_CHECK(!around.empty() && around.size() <= cluster::kMostGroupLevels);
    FUZZ_CHECK(is_json || around.size() == groups.begin()->second.size());
    nodes.push_back(node);
  }
  if (std::ssize(nodes) > cluster::kMostHosts) return;
  std::vector<std::string> back =
      cluster::expand_hostlist(cluster::compress_hostlist(nodes), "nodes");
  std::ranges::sort(back);
  FUZZ_CHECK(back == nodes);
}

}  // namespace piper::fuzz
