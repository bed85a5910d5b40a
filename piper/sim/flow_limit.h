// What no order of messages beats, and what a collective costs.
#pragma once

#include <piper/collective/topology.h>
#include <piper/sim/simulate_flows.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string>

namespace piper::sim {

struct FlowLimit {
  double seconds = 0;
  int32_t port = kNoPort;  // the port that is busy longest; kNoPort: the start-ups of `member`
  int64_t member = -1;
};
// "NIC 0 of node 3, out" or "start-ups of member 5".
std::string name_of(const FlowLimit& limit, const Fabric& fabric);

// The lower bound of messages that were simulated: the time of the busiest port, or of the member
// with the longest start-ups, whichever is longer.
FlowLimit limit_of(const SimulatedFlows& simulated, const Fabric& fabric);

// The lower bound of an exchange by any algorithm, provided that every pair's bytes cross the ports
// of its own route: the busy time of a port plus the shortest latency of the pairs that cross it,
// for the slowest port, and no less than the longest latency of a pair. It calls bytes_of(from, to)
// for every pair.
FlowLimit exchange_limit(const Fabric& fabric, const collective::CountOf& bytes_of);

// Seconds of a collective: the price by which algorithms are compared. `members` are the steps of
// all of them, counts in units of `bytes_per_unit`. Throws as simulate_flows().
double price(std::span<const collective::MemberSteps> members, const Fabric& fabric,
             double bytes_per_unit = 1);

// The same of lists that are written when they are needed and dropped at once: of large groups.
using WriteMember = std::function<collective::MemberSteps(int64_t member)>;
FlowProgram flow_program(int64_t num_members, const WriteMember& write);
double price(int64_t num_members, const WriteMember& write, const Fabric& fabric,
             double bytes_per_unit = 1);

}  // namespace piper::sim
