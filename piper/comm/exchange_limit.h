// The least time in which the wires can carry an all-to-all, whatever the algorithm: of every port,
// NIC and uplink the bytes that have to pass, over its rate.
//
//   a rank's port, out and in:   its bytes for ranks of its node         / inner
//   a node's NICs:               its bytes for and from other nodes      / (NICs in use * nic)
//   a unit's uplink:             its bytes for and from other such units / uplink
//
// Bytes for a node may leave through any of its NICs, since ranks can hand them on to each other:
// the limit is not that of a flat exchange where the ranks' bytes are unequal. Latencies, heads of
// frames and the cost of a message are left out.
#pragma once

#include <piper/cluster/cluster.h>
#include <piper/collective/topology.h>

#include <cstdint>
#include <vector>

namespace piper::comm {

// Bytes a second, one direction. 0: not counted.
struct LinkRates {
  double inner = 0;            // of a rank's port within its node
  double nic = 0;              // of a NIC
  std::vector<double> uplink;  // of a unit of topology level 1, 2, ... towards the other ones
};

// What `cluster` says of a run with this topology: its level 0 is a node. Levels of the topology
// beyond the node are the cluster's next ones.
LinkRates link_rates(const cluster::Cluster& cluster, const collective::Topology& topology);

// Seconds; asks for all pairs. 0 when nothing is counted.
double exchange_limit(const collective::Topology& topology, const collective::CountOf& count,
                      int64_t num_members, const LinkRates& rates);

}  // namespace piper::comm
