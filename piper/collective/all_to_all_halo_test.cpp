#include <piper/collective/all_to_all_halo_chunked.h>
#include <piper/collective/all_to_all_halo_printed.h>
#include <piper/collective/all_to_all_node_aware.h>

#include "exchange_cases.h"

namespace piper::collective {
namespace {

ExchangeOf printed(PhaseOne phase_one) {
  return [=](int64_t m, const Topology& t, const CountOf& c) {
    return all_to_all_halo_printed(m, t, c, phase_one);
  };
}

ExchangeOf chunked(int64_t chunk, PhaseOne phase_one = PhaseOne::kUnderTwo, size_t level = 0) {
  return [=](int64_t m, const Topology& t, const CountOf& c) {
    return all_to_all_halo_chunked(m, t, c, {chunk, phase_one, level});
  };
}

TEST_CASE("HALO as printed delivers every row, phase I under II or under III") {
  check_everywhere(printed(PhaseOne::kUnderTwo));
  check_everywhere(printed(PhaseOne::kUnderThree));
}

TEST_CASE("HALO in chunks of any size delivers every row") {
  for (const int64_t chunk : {int64_t{1}, int64_t{2}, int64_t{4}, int64_t{7}, kUncut})
    check_everywhere(chunked(chunk));
  check_everywhere(chunked(5, PhaseOne::kUnderThree));
}

TEST_CASE("HALO over switch groups delivers every row") {
  check_everywhere(chunked(4, PhaseOne::kUnderTwo, 1));
}

TEST_CASE("HALO as printed sends n - 1 messages of R D and keeps 4 M R D + R D") {
  for (const int64_t nodes : {2, 3, 5})
    for (const int64_t r : {1, 2, 4}) {
      const Topology topology = even_nodes(nodes, r);
      const int64_t d = 6, m = nodes - 1, n = nodes * r;
      const Proof proof = proof_of(
          topology, [=](int64_t, int64_t) { return d; }, printed(PhaseOne::kUnderTwo));
      CHECK(proof.by_level[1] == Traffic{n * m, n * m * r * d});
      CHECK(proof.by_level[0] == Traffic{2 * n * (r - 1), n * (r - 1) * (d + m * d)});
      CHECK(proof.max_scratch == 4 * m * r * d + r * d);
    }
}

TEST_CASE("every step of HALO is needed") {
  const Topology topology = nodes_of({2, 3, 1});
  const CountTable table = uneven_counts(6, 9);
  check_every_step_is_needed(topology, table, printed(PhaseOne::kUnderTwo));
  check_every_step_is_needed(topology, table, chunked(3));
}

}  // namespace
}  // namespace piper::collective
