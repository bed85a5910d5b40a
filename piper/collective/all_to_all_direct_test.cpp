#include <piper/collective/all_to_all_bruck.h>
#include <piper/collective/all_to_all_naive.h>
#include <piper/collective/all_to_all_node_aware.h>
#include <piper/collective/all_to_all_pairwise.h>
#include <piper/collective/all_to_all_windowed.h>
#include <testing/collective/exchange_cases.h>

namespace piper::collective {
namespace {

ExchangeOf windowed(int64_t window) {
  return [=](int64_t m, const Topology& t, const CountOf& c) {
    return all_to_all_windowed(m, t, c, window);
  };
}

TEST_CASE(
    "flat exchanges deliver every row, in node-aware and naive order, in rounds, in a window") {
  check_everywhere(all_to_all_node_aware);
  check_everywhere(all_to_all_naive);
  check_everywhere(all_to_all_pairwise);
  for (const int64_t window : {1, 2, 5}) check_everywhere(windowed(window));
}

TEST_CASE("at every position of the node-aware order all members speak to different ones") {
  const Topology topology = even_nodes(4, 3);
  const Units nodes(topology, 0);
  for (size_t i = 0; i < 11; ++i) {
    std::set<int32_t> targets, sources;
    for (int64_t m = 0; m < 12; ++m) {
      targets.insert(node_aware_targets(m, nodes)[i]);
      sources.insert(node_aware_sources(m, nodes)[i]);
      CHECK(node_aware_sources(node_aware_targets(m, nodes)[i], nodes)[i] == m);
    }
    CHECK(targets.size() == 12);
    CHECK(sources.size() == 12);
  }
  CHECK(node_aware_targets(4, nodes)[0] == 7);  // the same place of the next node
}

TEST_CASE("pairwise rounds execute on a blocking transport") {
  const Topology topology = apart(7);
  const CountTable table = uneven_counts(7, 3);
  const Proof proof = prove_all_to_all(
      topology,
      [&](int64_t m) { return in_rounds(all_to_all_pairwise(m, topology, count_in(table))); },
      count_in(table));
  CHECK(proof.problems.empty());
}

TEST_CASE("rounds have one send and one receive in flight, everything at once has more") {
  const Topology topology = apart(7);
  const CountTable table = even_counts(7, 2);
  CHECK(one_at_a_time(all_to_all_pairwise(2, topology, count_in(table))));
  CHECK(one_at_a_time(all_to_all_bruck(2, topology, count_in(table))));
  CHECK_FALSE(one_at_a_time(all_to_all_node_aware(2, topology, count_in(table))));
}

TEST_CASE("every step of the flat exchanges is needed") {
  const Topology topology = nodes_of({2, 1, 2});
  const CountTable table = uneven_counts(5, 4);
  check_every_step_is_needed(topology, table, all_to_all_node_aware);
  check_every_step_is_needed(topology, table, all_to_all_pairwise);
  check_every_step_is_needed(topology, table, windowed(2));
}

}  // namespace
}  // namespace piper::collective
