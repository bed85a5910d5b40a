// Which devices of a machine a group of members gets, and what algorithms and the simulator then
// know of it: the topology, and the ports.
#pragma once

#include <piper/cluster/cluster.h>
#include <piper/collective/topology.h>
#include <piper/sim/fabric.h>

#include <cstdint>
#include <vector>

namespace piper::sim {

// By member: the device, counted in the order of the cluster's levels.
struct Placement {
  std::vector<int64_t> device;
};

// The first devices of the machine. `members_per_node` <= devices of a node; 0: all of them.
// All of these throw InvalidInput when the machine has fewer.
Placement packed(const cluster::Cluster& cluster, int64_t num_nodes, int64_t members_per_node = 0);

// Nodes dealt out evenly to the first `num_units` units of a level ("cabinet": its index), in each
// as far apart as packed nodes are close: every one in another unit of the level below while there
// are. Members are numbered unit by unit, as a scheduler's sorted host list would.
Placement scattered(const cluster::Cluster& cluster, int64_t num_nodes, size_t level,
                    int64_t num_units);

// Nodes drawn at random from the whole machine, in the order of the machine: what a busy machine
// hands out.
Placement drawn(const cluster::Cluster& cluster, int64_t num_nodes, uint64_t seed);

// The device's NIC of its node, by the affinity of cost::devices_of_port: neighbours share one.
int32_t nic_of(const cluster::Cluster& cluster, int64_t device);

// Nodes, then every further level of the cluster that tells members apart.
collective::Topology topology_of(const cluster::Cluster& cluster, const Placement& placement);

// Ports and latencies of the members' network.
//   inside a node     the bandwidth of level 0, out and in of every member
//   NICs             device_bandwidth (cost/exchange_time.h) times the devices that share one
//   units of level l  as many device bandwidths of the next level as the unit has devices; left out
//                     where that is no less than what its members can send: nothing waits there
// A level's latency is that of a message as its caller sees it, so the start-up is taken out of it.
// Start-up: the cluster's number "message_seconds" (default: kMessageSeconds), at most the least
// latency. Copies: the memory's bandwidth and fixed_task_seconds. The rest of the costs: defaults.
inline constexpr double kMessageSeconds = 1e-6;  // assumption, see docs/collectives.md
Fabric fabric_of(const cluster::Cluster& cluster, const Placement& placement);

}  // namespace piper::sim
