#include <piper/collective/all_to_all_bruck.h>
#include <piper/collective/all_to_all_halo_switch.h>
#include <piper/collective/all_to_all_leader.h>
#include <piper/collective/all_to_all_three_level.h>
#include <piper/collective/all_to_all_two_d.h>
#include <testing/collective/exchange_cases.h>

namespace piper::collective {
namespace {

ExchangeOf three_level(PhaseOne phase_one) {
  return [=](int64_t m, const Topology& t, const CountOf& c) {
    return all_to_all_three_level(m, t, c, phase_one);
  };
}

CountOf each(int64_t d) {
  return [=](int64_t, int64_t) { return d; };
}

TEST_CASE("exchanges by way of others deliver every row: 2D, leaders, three levels, Bruck") {
  check_everywhere(all_to_all_two_d);
  check_everywhere(all_to_all_leader);
  check_everywhere(three_level(PhaseOne::kUnderTwo));
  check_everywhere(three_level(PhaseOne::kUnderThree));
  check_everywhere(all_to_all_bruck);
  check_everywhere([](int64_t m, const Topology& t, const CountOf& c) {
    return all_to_all_halo_switch(m, t, c, 5);
  });
}

TEST_CASE("2D sends R - 1 messages of N D inside and N - 1 of R D beyond") {
  for (const int64_t nodes : {2, 3, 5})
    for (const int64_t r : {1, 2, 4}) {
      const int64_t d = 3, n = nodes * r, m = nodes - 1;
      const Proof proof = proof_of(even_nodes(nodes, r), each(d), all_to_all_two_d);
      CHECK(proof.by_level[0] == Traffic{n * (r - 1), n * (r - 1) * nodes * d});
      CHECK(proof.by_level[1] == Traffic{n * m, n * m * r * d});
      const int64_t again = r > 1 ? m * r * d : 0;  // a node's only member sends straight
      CHECK(proof.max_scratch == 2 * (r - 1) * nodes * d + again);
    }
}

TEST_CASE("leaders send one message of R^2 D for each pair of nodes") {
  for (const int64_t nodes : {2, 3, 5})
    for (const int64_t r : {1, 2, 4}) {
      const int64_t d = 3, m = nodes - 1;
      const Proof proof = proof_of(even_nodes(nodes, r), each(d), all_to_all_leader);
      CHECK(proof.by_level[1] == Traffic{nodes * m, nodes * m * r * r * d});
      CHECK(proof.by_level[0] ==
            Traffic{nodes * (r - 1) * (2 + r), nodes * (r - 1) * (2 * m * r * d + r * d)});
    }
}

TEST_CASE("three levels send one message a member and other group beyond the groups") {
  const int64_t groups = 3, nodes = 2, r = 4, d = 5, n = groups * nodes * r;
  const Proof proof =
      proof_of(even_nodes(groups * nodes, r, 1, nodes), each(d), three_level(PhaseOne::kUnderTwo));
  CHECK(proof.by_level[2] == Traffic{n * (groups - 1), n * (groups - 1) * nodes * r * d});
  // To the other node: own rows and those of one member in each other group, for r members.
  CHECK(proof.by_level[1] == Traffic{n * (nodes - 1), n * (nodes - 1) * groups * r * d});
  // Straight rows, and all that came from outside the node.
  CHECK(proof.by_level[0] ==
        Traffic{2 * n * (r - 1), n * (r - 1) * (d + (groups * nodes - 1) * d)});
}

TEST_CASE("Bruck sends one message a round, with the rows whose distance has the round's bit") {
  for (const int64_t n : {1, 2, 3, 4, 7, 8, 13}) {
    const int64_t d = 2;
    int64_t rounds = 0, rows = 0;
    for (int64_t bit = 1; bit < n; bit *= 2, ++rounds)
      for (int64_t distance = 1; distance < n; ++distance) rows += (distance & bit) != 0 ? 1 : 0;
    const Proof proof = proof_of(apart(n), each(d), all_to_all_bruck);
    CHECK(proof.by_level[1] == Traffic{n * rounds, n * rows * d});
  }
}

TEST_CASE("Bruck's staging area is not packed before an earlier round has left it") {
  const Topology topology = apart(14);
  for (uint32_t seed = 1; seed <= 100; ++seed) {  // rounds without messages in either direction
    CountTable table = even_counts(14, 0);
    std::mt19937 random(seed);
    for (auto& row : table)
      for (int64_t& count : row) count = random() % 8 == 0 ? 2 : 0;
    CHECK(first_of(proof_of(topology, count_in(table), all_to_all_bruck).problems) == "");
  }
}

TEST_CASE("Bruck executes on a blocking transport") {
  const Topology topology = apart(7);
  const CountTable table = uneven_counts(7, 3);
  const Proof proof = prove_all_to_all(
      topology,
      [&](int64_t m) { return in_rounds(all_to_all_bruck(m, topology, count_in(table))); },
      count_in(table));
  CHECK(first_of(proof.problems) == "");
}

TEST_CASE("every step of the exchanges by way of others is needed") {
  const Topology topology = nodes_of({2, 3, 1, 2}, 2);
  const CountTable table = uneven_counts(8, 9);
  check_every_step_is_needed(topology, table, all_to_all_two_d);
  check_every_step_is_needed(topology, table, all_to_all_leader);
  check_every_step_is_needed(topology, table, three_level(PhaseOne::kUnderTwo));
  check_every_step_is_needed(topology, table, all_to_all_bruck);
  check_every_step_is_needed(topology, table, [](int64_t m, const Topology& t, const CountOf& c) {
    return all_to_all_halo_switch(m, t, c, 5);
  });
}

}  // namespace
}  // namespace piper::collective
