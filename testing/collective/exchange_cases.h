// Cases that the tests of exchanges share: topologies, counts, and the check by both verifiers.
#pragma once

#include <doctest/doctest.h>
#include <fmt/ranges.h>
#include <testing/collective/prove.h>
#include <testing/collective/verify.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

namespace piper::collective {

using ExchangeOf = std::function<MemberSteps(int64_t member, const Topology&, const CountOf&)>;

// "" when there is none.
inline std::string first_of(const std::vector<std::string>& problems) {
  return problems.empty() ? "" : problems.front();
}

inline std::string to_text(const std::vector<std::vector<int64_t>>& table) {
  return fmt::format("{}", table);
}
inline std::string to_text(const Topology& topology) { return fmt::format("{}", topology.unit); }

using CountTable = std::vector<std::vector<int64_t>>;

inline CountOf count_in(const CountTable& table) {
  return [&table](int64_t from, int64_t to) { return table[from][to]; };
}

inline CountTable even_counts(int64_t n, int64_t count) {
  return CountTable(n, std::vector<int64_t>(n, count));
}

// A third of the pairs without anything, a hot receiver.
inline CountTable uneven_counts(int64_t n, uint32_t seed) {
  std::mt19937 random(seed);
  CountTable table(n, std::vector<int64_t>(n));
  for (auto& row : table) {
    for (int64_t& count : row) count = std::max<int64_t>(0, static_cast<int64_t>(random() % 9) - 3);
    row[n / 2] += 20;
  }
  return table;
}

// Nodes by the number of their members, in the order of numbers; `groups` of that many nodes.
inline Topology nodes_of(const std::vector<int64_t>& sizes, int64_t groups = 0, int32_t nics = 1) {
  Topology topology;
  topology.unit.resize(groups > 0 ? 2 : 1);
  for (size_t node = 0; node < sizes.size(); ++node)
    for (int64_t place = 0; place < sizes[node]; ++place) {
      topology.unit[0].push_back(static_cast<int32_t>(node));
      if (groups > 0) topology.unit[1].push_back(static_cast<int32_t>(node) / groups);
      topology.nic.push_back(static_cast<int32_t>(place) % nics);
    }
  return topology;
}

// Members dealt to nodes one by one: no two neighbours in number share a node.
inline Topology dealt(int64_t n, int32_t num_nodes) {
  Topology topology;
  topology.unit.resize(1);
  for (int64_t m = 0; m < n; ++m) topology.unit[0].push_back(static_cast<int32_t>(m) % num_nodes);
  return topology;
}

inline std::vector<Topology> small_topologies() {
  std::vector<Topology> all;
  for (const int64_t n : {1, 2, 4, 7}) {
    all.push_back(nodes_of({n}));
    all.push_back(apart(n));
  }
  all.push_back(even_nodes(2, 4, 2));
  all.push_back(even_nodes(3, 2, 4));
  all.push_back(even_nodes(4, 2, 2, 2));
  all.push_back(even_nodes(2, 8, 4));
  all.push_back(nodes_of({1, 2, 4}));
  all.push_back(nodes_of({4, 1, 3, 1}, 2));
  all.push_back(nodes_of({3, 2, 2, 1, 3}, 2, 2));
  all.push_back(dealt(7, 3));
  all.push_back(dealt(8, 4));
  return all;
}

inline std::vector<MemberSteps> write_all(const Topology& topology, const CountOf& count,
                                          const ExchangeOf& exchange) {
  std::vector<MemberSteps> members;
  for (int64_t m = 0; m < num_members(topology); ++m)
    members.push_back(exchange(m, topology, count));
  return members;
}

inline Proof proof_of(const Topology& topology, const CountOf& count, const ExchangeOf& exchange) {
  return prove_all_to_all(
      topology, [&](int64_t m) { return exchange(m, topology, count); }, count);
}

// Both verifiers, over all small topologies, with even, uneven, empty and single-unit counts.
inline void check_everywhere(const ExchangeOf& exchange) {
  uint32_t seed = 1;
  for (const Topology& topology : small_topologies()) {
    const int64_t n = num_members(topology);
    CAPTURE(to_text(topology));
    for (const CountTable& table : {even_counts(n, 3), uneven_counts(n, ++seed),
                                    uneven_counts(n, ++seed), even_counts(n, 0)}) {
      CAPTURE(to_text(table));
      CHECK(first_of(proof_of(topology, count_in(table), exchange).problems) == "");
      CHECK(first_of(verify_all_to_all(write_all(topology, count_in(table), exchange), table)) ==
            "");
    }
  }
}

// Whether step `late` comes after `early`, by any chain of waits.
inline bool comes_after(const MemberSteps& member, int32_t late, int32_t early) {
  for (const int32_t before : member.steps[late].after)
    if (before == early || (before > early && comes_after(member, before, early))) return true;
  return false;
}

// Never more than one send and one receive in flight: each comes after the one before.
inline bool one_at_a_time(const MemberSteps& member) {
  for (const StepKind kind : {StepKind::kSend, StepKind::kReceive}) {
    int32_t last = -1;
    for (size_t s = 0; s < member.steps.size(); ++s) {
      if (member.steps[s].kind != kind) continue;
      const auto step = static_cast<int32_t>(s);
      if (last >= 0 && !comes_after(member, step, last)) return false;
      last = step;
    }
  }
  return true;
}

// A list without one of its steps; what waited for it waits for nothing in its place.
inline MemberSteps without_step(const MemberSteps& member, int32_t gone) {
  MemberSteps result = member;
  result.steps.erase(result.steps.begin() + gone);
  for (Step& step : result.steps) {
    After kept;
    for (const int32_t before : step.after)
      if (before != gone) kept.push_back(before > gone ? before - 1 : before);
    step.after = kept;
  }
  return result;
}

// Leaves out each step of each member in turn: what is still right is a step that nobody needs. A
// place where steps meet moves nothing and only delays: leaving it out is no mistake.
inline void check_every_step_is_needed(const Topology& topology, const CountTable& table,
                                       const ExchangeOf& exchange) {
  const std::vector<MemberSteps> members = write_all(topology, count_in(table), exchange);
  for (size_t m = 0; m < members.size(); ++m)
    for (size_t s = 0; s < members[m].steps.size(); ++s) {
      if (members[m].steps[s].source.count == 0 && members[m].steps[s].target.count == 0) continue;
      CAPTURE(m);
      CAPTURE(s);
      const Proof proof = prove_all_to_all(
          topology,
          [&](int64_t other) {
            return other == static_cast<int64_t>(m)
                       ? without_step(members[m], static_cast<int32_t>(s))
                       : members[other];
          },
          count_in(table));
      CHECK_FALSE(proof.problems.empty());
    }
}

}  // namespace piper::collective
