// What the simulation says of one exchange.
#pragma once

#include <bench/exchanges.h>
#include <piper/cluster/cluster.h>
#include <piper/collective/topology.h>

#include <cstdint>
#include <optional>

namespace piper::cli {

// Returns the seconds of the exchange simulated in virtual time on `cluster`; nothing where it
// cannot be simulated. It uses these of the cluster's numbers: frame_bytes (the payload of a frame;
// else 9,000), frame_head_bytes, and the time that a frame costs beside its bytes:
// inner_frame_seconds at a member's port, nic_frame_seconds at a NIC and at what is narrow above
// (else nothing).
std::optional<double> predicted_seconds(const comm::Exchange& exchange,
                                        const collective::Topology& topology, int64_t num_ranks,
                                        const cluster::Cluster& cluster);

}  // namespace piper::cli
