// Properties of all algorithms over random topologies and counts. RC_PARAMS="seed=...
// max_success=..." tries others; a failure prints the smallest case and its seed.
#include <piper/collective/algorithms.h>
#include <piper/collective/halo_dedup_combine.h>
#include <piper/collective/halo_dedup_dispatch.h>
#include <piper/collective/reductions.h>
#include <piper/collective/stream_order.h>
#include <rapidcheck.h>
#include <testing/collective/exchange_cases.h>
#include <testing/collective/stream_order_proof.h>

#include <cstdlib>

namespace piper::collective {
namespace {

// Seeded, so that a run is the same everywhere.
bool holds(const std::string& what, const std::function<void()>& property) {
  setenv("RC_PARAMS", "seed=20261 max_success=300", 0);
  return rc::check(what, property);
}

// [from, to), however small the case: rapidcheck begins with the smallest.
template <class T>
T drawn(T from, T to) {
  return *rc::gen::resize(100, rc::gen::inRange<T>(from, to));
}

// 1 to 5 nodes of 1 to 4 members, in groups of 1 to 3 nodes or in none, numbers dealt or in order,
// 1 to 4 NICs.
Topology any_topology() {
  std::vector<int64_t> sizes(drawn<size_t>(1, 6));
  for (int64_t& size : sizes) size = drawn<int64_t>(1, 5);
  const auto group = drawn<int64_t>(0, 4);
  Topology topology = nodes_of(sizes, group, drawn(1, 5));
  if (drawn(0, 3) == 0) {  // the same places under other numbers
    std::mt19937 random(*rc::gen::arbitrary<uint32_t>());
    std::vector<size_t> order(topology.nic.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), random);
    const Topology before = topology;
    for (size_t m = 0; m < order.size(); ++m) {
      for (size_t level = 0; level < topology.unit.size(); ++level)
        topology.unit[level][m] = before.unit[level][order[m]];
      topology.nic[m] = before.nic[order[m]];
    }
  }
  RC_ASSERT(problems(topology).empty());
  return topology;
}

CountTable any_counts(int64_t n) {
  const auto largest = drawn<int64_t>(1, 12);
  CountTable table(n, std::vector<int64_t>(n));
  for (auto& row : table)
    for (int64_t& count : row) count = std::max<int64_t>(0, drawn<int64_t>(-3, largest));
  return table;
}

AllToAllOptions any_options() {
  return {.chunk = *rc::gen::element<int64_t>(1, 2, 3, 5, 9, 40, kUncut),
          .window = drawn<int64_t>(1, 6),
          .phase_one = *rc::gen::element(PhaseOne::kUnderTwo, PhaseOne::kUnderThree)};
}

TEST_CASE("any exchange is right on any topology with any counts") {
  for (const AllToAll algorithm : strategy::kAllToAlls)
    CHECK(holds(strategy::name(algorithm), [=] {
      const Topology topology = any_topology();
      const CountTable table = any_counts(num_members(topology));
      const AllToAllOptions options = any_options();
      const Proof proof = prove_all_to_all(
          topology,
          [&](int64_t m) { return all_to_all(algorithm, m, topology, count_in(table), options); },
          count_in(table));
      RC_ASSERT(first_of(proof.problems) == "");
    }));
}

std::string first_problem_on_streams(const std::vector<MemberSteps>& members) {
  std::vector<StreamOrder> orders;
  for (const MemberSteps& member : members) orders.push_back(stream_order(member));
  return first_of(problems(members, orders));
}

TEST_CASE("any exchange and any reduction executes on streams, on any topology") {
  for (const AllToAll algorithm : strategy::kAllToAlls)
    CHECK(holds(std::string(strategy::name(algorithm)) + " on streams", [=] {
      const Topology topology = any_topology();
      const CountTable table = any_counts(num_members(topology));
      const AllToAllOptions options = any_options();
      RC_ASSERT(first_problem_on_streams(write_all(
                    topology, count_in(table), [&](int64_t m, const Topology& t, const CountOf& c) {
                      return all_to_all(algorithm, m, t, c, options);
                    })) == "");
    }));
  for (const ReductionAlgorithm algorithm : kReductionAlgorithms)
    CHECK(holds(std::string(name(algorithm)) + " on streams", [=] {
      const Topology topology = any_topology();
      const auto count = drawn<int64_t>(0, 50);
      for (const auto& reduction : {reduce_scatter, all_gather, all_reduce})
        RC_ASSERT(first_problem_on_streams(
                      write_all(topology, {}, [&](int64_t m, const Topology& t, const CountOf&) {
                        return reduction(algorithm, m, t, count);
                      })) == "");
    }));
}

TEST_CASE("no exchange sends fewer bytes over NICs than the rows that must cross, HALO not more") {
  CHECK(holds("bytes over NICs", [] {
    const Topology topology = any_topology();
    const CountTable table = any_counts(num_members(topology));
    int64_t must_cross = 0;
    for (size_t from = 0; from < table.size(); ++from)
      for (size_t to = 0; to < table.size(); ++to)
        if (topology.unit[0][from] != topology.unit[0][to]) must_cross += table[from][to];
    for (const AllToAll algorithm : strategy::kAllToAlls) {
      const Proof proof = prove_all_to_all(
          topology, [&](int64_t m) { return all_to_all(algorithm, m, topology, count_in(table)); },
          count_in(table));
      int64_t crossed = 0;
      for (size_t level = 1; level < proof.by_level.size(); ++level)
        crossed += proof.by_level[level].units;
      RC_ASSERT(crossed >= must_cross);
      if (algorithm == AllToAll::kHalo || algorithm == AllToAll::kHaloPrinted ||
          algorithm == AllToAll::kTwoD || algorithm == AllToAll::kLeader || !forwards(algorithm))
        RC_ASSERT(crossed == must_cross);
    }
  }));
}

TEST_CASE("both verifiers agree on lists with one step changed at random") {
  CHECK(holds("broken lists", [] {
    const Topology topology = any_topology();
    const CountTable table = any_counts(num_members(topology));
    const auto algorithm = *rc::gen::elementOf(
        std::vector<AllToAll>(strategy::kAllToAlls.begin(), strategy::kAllToAlls.end()));
    std::vector<MemberSteps> members =
        write_all(topology, count_in(table), [&](int64_t m, const Topology& t, const CountOf& c) {
          return all_to_all(algorithm, m, t, c, {.chunk = 4});
        });
    MemberSteps& member = members[drawn<size_t>(0, members.size())];
    if (member.steps.empty()) return;
    Step& step = member.steps[drawn<size_t>(0, member.steps.size())];
    if (step.source.count + step.target.count == 0) return;
    switch (drawn(0, 4)) {
      case 0:
        step.after.clear();
        break;
      case 1:
        ++step.source.offset;
        break;
      case 2:
        ++step.target.offset;
        break;
      default:
        ++step.part;
    }
    const bool plain = verify_all_to_all(members, table).empty();
    const Proof proof = prove_all_to_all(
        topology, [&](int64_t m) { return members[m]; }, count_in(table));
    RC_ASSERT(proof.problems.empty() == plain);
  }));
}

TEST_CASE("reductions by any algorithm gather and scatter without a race on any topology") {
  for (const ReductionAlgorithm algorithm : kReductionAlgorithms)
    CHECK(holds(name(algorithm), [=] {
      const Topology topology = any_topology();
      const auto count = drawn<int64_t>(0, 50);
      const int64_t n = num_members(topology);
      const ExpectedOf whole = [=](int64_t, Sums&) {
        std::vector<Expected> expected;
        for (int64_t owner = 0; owner < n; ++owner) {
          const int64_t begin = owner * (count / n) + std::min(owner, count % n);
          const int64_t size = count / n + (owner < count % n ? 1 : 0);
          if (size > 0) expected.push_back({begin, {size, static_cast<int32_t>(owner), begin}});
        }
        return expected;
      };
      const auto nothing = [](int64_t, Sums&) { return std::vector<Expected>{}; };
      const auto steps = [&](auto reduction) {
        return [&, reduction](int64_t m) { return reduction(algorithm, m, topology, count); };
      };
      RC_ASSERT(first_of(prove(topology, steps(all_gather), true, whole).problems) == "");
      RC_ASSERT(first_of(prove(topology, steps(reduce_scatter), true, nothing).problems) == "");
      RC_ASSERT(first_of(prove(topology, steps(all_reduce), true, nothing).problems) == "");
    }));
}

TEST_CASE("deduplicated tokens come back to where they left, as often as they were sent out") {
  CHECK(holds("dispatch", [] {
    const Topology topology = any_topology();
    const int64_t n = num_members(topology);
    std::vector<TokenRoutes> routes(n);
    for (TokenRoutes& own : routes)
      for (int64_t token = drawn(0, 6); token > 0; --token) {
        std::vector<int32_t> targets;
        for (int32_t target = 0; target < n; ++target)
          if (drawn(0, 3) == 0) targets.push_back(target);
        own.add(targets);
      }
    const Dedup dedup{.row_count = drawn<int64_t>(1, 4),
                      .num_pieces = drawn<int64_t>(1, 4),
                      .level = drawn<size_t>(0, 2)};
    const Units units(topology, dedup.level);
    const auto steps = [&](auto algorithm) {
      return [&, algorithm](int64_t m) {
        const DedupKnown known{
            .own = routes[m],
            .into_unit = [&, m](int64_t from) { return routes_told(routes[from], from, m, units); },
            .rows =
                [&, m](int64_t from) {
                  return counts_told(routes[from], from, m, units, dedup.num_pieces);
                }};
        return algorithm(m, topology, known, dedup);
      };
    };
    const ExpectedOf dispatched = [&](int64_t m, Sums&) {
      std::vector<Expected> expected;
      for (int64_t source = 0; source < n; ++source)
        for (const int32_t token :
             rows_for(routes[source], {0, routes[source].num_tokens()}, static_cast<int32_t>(m)))
          expected.push_back(
              {static_cast<int64_t>(expected.size()) * dedup.row_count,
               {dedup.row_count, static_cast<int32_t>(source), token * dedup.row_count}});
      return expected;
    };
    const auto nothing = [](int64_t, Sums&) { return std::vector<Expected>{}; };
    const Proof out = prove(topology, steps(halo_dedup_dispatch), false, dispatched);
    const Proof back = prove(topology, steps(halo_dedup_combine), false, nothing);
    RC_ASSERT(first_of(out.problems) == "");
    RC_ASSERT(first_of(back.problems) == "");
    for (size_t level = 0; level < out.by_level.size(); ++level)
      RC_ASSERT(out.by_level[level].units == back.by_level[level].units);
  }));
}

}  // namespace
}  // namespace piper::collective
