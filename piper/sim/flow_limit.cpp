#include <piper/base/error.h>
#include <piper/sim/flow_limit.h>

#include <algorithm>
#include <cmath>

namespace piper::sim {

std::string name_of(const FlowLimit& limit, const Fabric& fabric) {
  if (limit.port != kNoPort) return fabric.port_name[static_cast<size_t>(limit.port)];
  return "start-ups of member " + std::to_string(limit.member);
}

FlowLimit limit_of(const SimulatedFlows& simulated, const Fabric& fabric) {
  FlowLimit limit;
  for (size_t m = 0; m < simulated.startup_seconds.size(); ++m)
    if (simulated.startup_seconds[m] > limit.seconds || limit.member < 0)
      limit = {.seconds = simulated.startup_seconds[m], .member = static_cast<int64_t>(m)};
  for (size_t p = 0; p < simulated.port_bytes.size(); ++p)
    if (simulated.busy_seconds(fabric, p) > limit.seconds)
      limit = {.seconds = simulated.busy_seconds(fabric, p), .port = static_cast<int32_t>(p)};
  return limit;
}

FlowLimit exchange_limit(const Fabric& fabric, const collective::CountOf& bytes_of) {
  std::vector<double> bytes(fabric.bytes_per_second.size());
  std::vector<double> latency(bytes.size(), INFINITY);
  FlowLimit limit;
  const int64_t n = fabric.num_members();
  for (int64_t from = 0; from < n; ++from)
    for (int64_t to = 0; to < n; ++to) {
      if (from == to) continue;
      const double seconds = fabric.latency_seconds(from, to);
      if (seconds > limit.seconds) limit = {.seconds = seconds, .member = from};
      for (const int32_t port : fabric.route(from, to)) {
        bytes[static_cast<size_t>(port)] += static_cast<double>(bytes_of(from, to));
        latency[static_cast<size_t>(port)] = std::min(latency[static_cast<size_t>(port)], seconds);
      }
    }
  for (size_t p = 0; p < bytes.size(); ++p) {
    if (bytes[p] == 0) continue;
    const double seconds = bytes[p] / fabric.bytes_per_second[p] + latency[p];
    if (seconds > limit.seconds) limit = {.seconds = seconds, .port = static_cast<int32_t>(p)};
  }
  return limit;
}

FlowProgram flow_program(int64_t num_members, const WriteMember& write) {
  FlowProgram program;
  for (int64_t m = 0; m < num_members; ++m) program.add(write(m));
  program.finish();
  return program;
}

double price(std::span<const collective::MemberSteps> members, const Fabric& fabric,
             double bytes_per_unit) {
  return simulate_flows(flow_program(members), fabric, {.bytes_per_unit = bytes_per_unit}).seconds;
}

double price(int64_t num_members, const WriteMember& write, const Fabric& fabric,
             double bytes_per_unit) {
  return simulate_flows(flow_program(num_members, write), fabric,
                        {.bytes_per_unit = bytes_per_unit})
      .seconds;
}

}  // namespace piper::sim
