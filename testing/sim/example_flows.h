// Small step lists and fabrics for tests, made of round numbers.
#pragma once

#include <piper/collective/all_to_all_flat.h>
#include <piper/sim/fabric_shapes.h>
#include <piper/sim/flow_limit.h>

#include <cstdint>
#include <vector>

namespace piper::sim::example {

// One node or several; 100 bytes/s inside, 10 bytes/s a NIC; no latency, no costs.
inline Fabric nodes(int64_t num_nodes, int64_t num_members, int64_t num_nics) {
  return tree({.num_members = num_members,
               .num_nics = num_nics,
               .inner_bytes_per_second = 100,
               .nic_bytes_per_second = 10},
              {{.name = "system", .num_units = num_nodes}});
}

struct Message {
  int32_t from = 0, to = 0;
  int64_t bytes = 0;
};

// All receives posted, then all sends, in the order given.
inline std::vector<collective::MemberSteps> posted_at_once(int64_t num_members,
                                                           const std::vector<Message>& messages) {
  std::vector<collective::MemberSteps> members(static_cast<size_t>(num_members));
  uint32_t part = 0;
  for (const Message& m : messages) {
    members[static_cast<size_t>(m.to)].steps.push_back({.kind = collective::StepKind::kReceive,
                                                        .peer = m.from,
                                                        .part = part,
                                                        .target = {.count = m.bytes}});
    members[static_cast<size_t>(m.from)].steps.push_back({.kind = collective::StepKind::kSend,
                                                          .peer = m.to,
                                                          .part = part,
                                                          .source = {.count = m.bytes}});
    ++part;
  }
  return members;
}

inline SimulatedFlows simulate(const std::vector<collective::MemberSteps>& members,
                               const Fabric& fabric, const SimulationOptions& options = {}) {
  return simulate_flows(flow_program(members), fabric, options);
}

// Everybody has `bytes` for everybody.
inline std::vector<collective::MemberSteps> uniform(int64_t num_members, int64_t bytes) {
  const std::vector<int64_t> counts(static_cast<size_t>(num_members), bytes);
  std::vector<collective::MemberSteps> members;
  for (int64_t m = 0; m < num_members; ++m)
    members.push_back(collective::all_to_all_flat(m, counts, counts));
  return members;
}

// A flat exchange of any counts.
inline std::vector<collective::MemberSteps> flat(const std::vector<std::vector<int64_t>>& counts) {
  std::vector<collective::MemberSteps> members;
  for (size_t m = 0; m < counts.size(); ++m) {
    std::vector<int64_t> received;
    for (const auto& row : counts) received.push_back(row[m]);
    members.push_back(collective::all_to_all_flat(static_cast<int64_t>(m), counts[m], received));
  }
  return members;
}

}  // namespace piper::sim::example
