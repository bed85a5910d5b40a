#include <piper/collective/algorithms.h>
#include <testing/collective/exchange_cases.h>

namespace piper::collective {
namespace {

ExchangeOf exchange_of(AllToAll algorithm, const AllToAllOptions& options = {}) {
  return [=](int64_t m, const Topology& t, const CountOf& c) {
    return all_to_all(algorithm, m, t, c, options);
  };
}

TEST_CASE("every exchange of the list delivers every row") {
  for (const AllToAll algorithm : strategy::kAllToAlls) {
    CAPTURE(std::string(strategy::name(algorithm)));
    check_everywhere(exchange_of(algorithm, {.chunk = 6, .window = 3}));
  }
}

// Counts that know only what `member` has been told.
CountOf told_only(AllToAll algorithm, int64_t member, const Topology& topology,
                  const CountTable& table) {
  const CountsTold told = counts_told(algorithm, member, topology);
  return [=, &table](int64_t from, int64_t to) -> int64_t {
    const std::vector<int32_t>& heard = told.to_hear[from];
    const bool knows = from == member || std::find(heard.begin(), heard.end(), to) != heard.end();
    CHECK_MESSAGE(knows, "member ", member, " asks for ", from, " to ", to);
    return knows ? table[from][to] : 0;
  };
}

TEST_CASE("an exchange asks for no count that its member has not been told") {
  for (const AllToAll algorithm : strategy::kAllToAlls)
    for (const Topology& topology : small_topologies()) {
      const int64_t n = num_members(topology);
      const CountTable table = uneven_counts(n, 5);
      CAPTURE(std::string(strategy::name(algorithm)));
      CAPTURE(to_text(topology));
      for (int64_t m = 0; m < n; ++m) {
        const MemberSteps informed =
            all_to_all(algorithm, m, topology, told_only(algorithm, m, topology, table));
        CHECK(informed.steps.size() ==
              all_to_all(algorithm, m, topology, count_in(table)).steps.size());
      }
    }
}

TEST_CASE("what one member tells another is what that one hears, itself included") {
  for (const AllToAll algorithm : strategy::kAllToAlls)
    for (const Topology& topology : small_topologies()) {
      std::vector<CountsTold> told;
      for (int64_t m = 0; m < num_members(topology); ++m)
        told.push_back(counts_told(algorithm, m, topology));
      for (size_t a = 0; a < told.size(); ++a)
        for (size_t b = 0; b < told.size(); ++b) {
          CHECK(told[a].to_tell[b] == told[b].to_hear[a]);
          CHECK(std::count(told[a].to_tell[b].begin(), told[a].to_tell[b].end(), b) == 1);
        }
    }
}

TEST_CASE("on one node, exchanges that know nodes are flat: no scratch, one copy") {
  const CountOf count = [](int64_t from, int64_t to) { return from + 2 * to; };
  for (const AllToAll algorithm : {AllToAll::kTwoD, AllToAll::kLeader, AllToAll::kHaloPrinted,
                                   AllToAll::kHaloSwitch, AllToAll::kHalo, AllToAll::kThreeLevel}) {
    const Proof proof = proof_of(nodes_of({7}), count, exchange_of(algorithm, {.chunk = 3}));
    CAPTURE(std::string(strategy::name(algorithm)));
    CHECK(proof.max_scratch == 0);
    CHECK(proof.copied == 3 * 21);  // own rows: m + 2 m
    CHECK(proof.by_level[0].messages == 7 * 6);
  }
}

TEST_CASE("eight members on four NICs: all NICs of all nodes carry the same, in and out") {
  const CountOf count = [](int64_t, int64_t) { return 5; };
  const Topology topology = even_nodes(3, 8, 4);
  for (const AllToAll algorithm : strategy::kAllToAlls) {
    if (algorithm == AllToAll::kLeader || algorithm == AllToAll::kBruck) continue;
    CAPTURE(std::string(strategy::name(algorithm)));
    const Proof proof = proof_of(topology, count, exchange_of(algorithm, {.chunk = 7}));
    for (const auto& node : proof.nics)
      for (const NicTraffic& nic : node) {
        CHECK(nic.out == node.front().out);
        CHECK(nic.in == nic.out);
        CHECK(nic.out.units == 2 * 16 * 5);  // two members a NIC, 16 remote ones
      }
  }
}

TEST_CASE("more NICs than members: each member keeps to its own") {
  const Topology topology = even_nodes(2, 2, 4);
  const Proof proof = proof_of(
      topology, [](int64_t, int64_t) { return 3; }, exchange_of(AllToAll::kHalo));
  CHECK(proof.nics[0].size() == 3);  // the highest number that is used: 2
  CHECK(proof.nics[0][0].out.units == 6);
  CHECK(proof.nics[0][1].out.units == 0);
  CHECK(proof.nics[0][2].out.units == 6);
}

TEST_CASE("bad counts and topologies are refused with who and what") {
  const Topology topology = even_nodes(2, 2);
  const auto refused = [&](const CountOf& count, const std::string& what) {
    for (const AllToAll algorithm : strategy::kAllToAlls) try {
        all_to_all(algorithm, 1, topology, count);
        FAIL("accepted");
      } catch (const std::exception& error) {
        CHECK(std::string(error.what()).find(what) != std::string::npos);
      }
  };
  refused([](int64_t from, int64_t to) { return from == 1 && to == 3 ? -2 : 1; }, "-2");
  const CountOf told = [](int64_t from, int64_t to) { return from == 3 && to == 0 ? -2 : 1; };
  for (const AllToAll algorithm : {AllToAll::kHaloPrinted, AllToAll::kHalo})
    CHECK_THROWS(all_to_all(algorithm, 1, topology, told));  // 1 is told the rows from 3 to 0
  const CountOf huge = [](int64_t, int64_t) { return INT64_MAX / 2; };
  for (const AllToAll algorithm : strategy::kAllToAlls)
    CHECK_THROWS(all_to_all(algorithm, 1, topology, huge));
  Topology gap = topology;
  gap.unit[0] = {0, 0, 2, 2};
  CHECK(problems(gap) == std::vector<std::string>{"level 0 has a unit 2, where 1 is next"});
  Topology short_level = topology;
  short_level.unit.push_back({0, 0, 0});
  CHECK(problems(short_level) == std::vector<std::string>{"level 1 covers 3 members of 4"});
  Topology cut = topology;
  cut.unit.push_back({0, 1, 1, 1});
  CHECK(problems(cut) ==
        std::vector<std::string>{"unit 0 of level 0 lies in units 0 and 1 of level 1"});
  CHECK(problems(topology).empty());
}

}  // namespace
}  // namespace piper::collective
