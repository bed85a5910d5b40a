#include <piper/collective/all_to_all_halo_chunked.h>
#include <piper/collective/all_to_all_halo_printed.h>
#include <piper/collective/all_to_all_node_aware.h>
#include <testing/collective/exchange_cases.h>

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

TEST_CASE(
    "HALO in chunks keeps M (R - 1) D while rows travel alone, M R D when they travel together") {
  const int64_t nodes = 4, r = 4, d = 6, m = nodes - 1, n = nodes * r;
  const CountOf count = [=](int64_t, int64_t) { return d; };
  const auto costs = [&](int64_t chunk) {
    return proof_of(even_nodes(nodes, r), count, chunked(chunk));
  };
  const Proof whole = costs(kUncut), rows = costs(d), halves = costs(d / 2);
  CHECK(whole.by_level[1] == Traffic{n * m, n * m * r * d});
  CHECK(rows.by_level[1] == Traffic{n * m * r, n * m * r * d});
  CHECK(halves.by_level[1] == Traffic{2 * n * m * r, n * m * r * d});
  CHECK(whole.by_level[0] == Traffic{n * (r - 1) * nodes, n * (r - 1) * nodes * d});
  CHECK(rows.by_level[0] == whole.by_level[0]);
  CHECK(halves.by_level[0].messages == n * (r - 1) * (1 + 2 * m));
  CHECK(whole.max_scratch == m * r * d);
  CHECK(rows.max_scratch == m * (r - 1) * d);
  CHECK(halves.max_scratch == m * (r - 1) * d);
  CHECK(rows.copied == n * d);               // the own row
  CHECK(whole.copied == n * d + n * m * d);  // and the counterpart's, out of each packet
}

TEST_CASE("HALO by switch group crosses the group's boundary once for each other group") {
  const int64_t groups = 3, nodes = 2, r = 2, d = 5, size = nodes * r, n = groups * size;
  const Proof proof = proof_of(
      even_nodes(groups * nodes, r, 1, nodes), [=](int64_t, int64_t) { return d; },
      chunked(kUncut, PhaseOne::kUnderTwo, 1));
  CHECK(proof.by_level[2] == Traffic{n * (groups - 1), n * (groups - 1) * size * d});
  // Rows of every group to the members of the other node, each by itself.
  CHECK(proof.by_level[1] == Traffic{n * (size - r) * groups, n * (size - r) * groups * d});
  CHECK(proof.max_scratch == (groups - 1) * size * d);
}

TEST_CASE("as printed, phase III waits for all of phase II, and phase I where it is under III") {
  const Topology topology = even_nodes(3, 2);
  const CountOf count = [](int64_t, int64_t) { return 2; };
  for (const PhaseOne phase_one : {PhaseOne::kUnderTwo, PhaseOne::kUnderThree}) {
    const MemberSteps member = all_to_all_halo_printed(1, topology, count, phase_one);
    std::vector<int32_t> two, three, one;
    for (size_t s = 0; s < member.steps.size(); ++s) {
      const Step& step = member.steps[s];
      if (step.kind != StepKind::kSend && step.kind != StepKind::kReceive) continue;
      if (step.peer != 0)
        two.push_back(static_cast<int32_t>(s));
      else
        (step.source.count + step.target.count == 2 ? one : three)
            .push_back(static_cast<int32_t>(s));
    }
    CHECK(two.size() == 4);
    CHECK(one.size() == 2);
    CHECK(three.size() == 2);
    for (const int32_t early : two) {
      for (const int32_t late : three) CHECK(comes_after(member, late, early));
      for (const int32_t late : one)
        CHECK(comes_after(member, late, early) == (phase_one == PhaseOne::kUnderThree));
    }
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
