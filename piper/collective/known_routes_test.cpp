#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/collective/halo_dedup_combine.h>
#include <piper/collective/halo_dedup_dispatch.h>
#include <piper/collective/known_routes.h>
#include <testing/collective/exchange_cases.h>

#include <map>
#include <random>
#include <set>

namespace piper::collective {
namespace {

// By member and token: experts, drawn; some tokens have none.
std::vector<TokenRoutes> random_experts(int64_t members, const RoutesShape& shape, int64_t k,
                                        uint32_t seed) {
  std::mt19937 random(seed);
  const auto num_experts = static_cast<uint32_t>(members * shape.experts_a_member);
  std::vector<TokenRoutes> all(static_cast<size_t>(members));
  for (TokenRoutes& routes : all)
    for (int64_t token = 0; token < shape.num_tokens; ++token) {
      std::set<int32_t> chosen;
      for (int64_t i = 0; i < k && random() % 8 != 0; ++i)
        chosen.insert(static_cast<int32_t>(random() % num_experts));
      routes.add(std::vector<int32_t>(chosen.begin(), chosen.end()));
    }
  return all;
}

std::vector<std::byte> message(const TokenRoutes& experts, int64_t from, int64_t to,
                               const Units& units, const RoutesShape& shape) {
  std::vector<std::byte> bytes(static_cast<size_t>(told_bytes(from, to, units, shape)),
                               std::byte{0xff});
  tell(experts, members_of_experts(experts, shape.experts_a_member), from, to, units, shape, bytes);
  return bytes;
}

std::vector<KnownRoutes> all_known(const std::vector<TokenRoutes>& experts, const Units& units,
                                   const RoutesShape& shape) {
  std::vector<KnownRoutes> known;
  for (int64_t m = 0; m < units.num_members(); ++m) {
    KnownRoutes& of = known.emplace_back(m, units, shape, experts[static_cast<size_t>(m)]);
    for (int64_t f = 0; f < units.num_members(); ++f)
      of.hear(f, message(experts[static_cast<size_t>(f)], f, m, units, shape));
  }
  return known;
}

// (source, token) of every row that arrives at member m.
std::vector<std::pair<int64_t, int64_t>> arriving_at(const std::vector<TokenRoutes>& members,
                                                     int64_t m) {
  std::vector<std::pair<int64_t, int64_t>> rows;
  for (size_t f = 0; f < members.size(); ++f)
    for (const int32_t token :
         rows_for(members[f], {0, members[f].num_tokens()}, static_cast<int32_t>(m)))
      rows.emplace_back(f, token);
  return rows;
}

}  // namespace

TEST_CASE("what members are told of routes is enough to write dispatch and combine") {
  uint32_t seed = 0;
  for (const Topology& topology : small_topologies())
    for (const RoutesShape& shape :
         {RoutesShape{5, 1, 1}, RoutesShape{9, 3, 2}, RoutesShape{0, 2, 3}}) {
      const Units units(topology, 0);
      const int64_t n = units.num_members();
      const auto experts = random_experts(n, shape, 3, ++seed);
      const std::vector<KnownRoutes> known = all_known(experts, units, shape);
      std::vector<TokenRoutes> members;
      for (const KnownRoutes& of : known) members.push_back(of.own());
      CAPTURE(seed);
      CAPTURE(to_text(topology));
      const Dedup dedup{.row_count = 2, .num_pieces = shape.num_pieces};
      const Proof there = prove(
          topology,
          [&](int64_t m) { return halo_dedup_dispatch(m, topology, known[m].known(), dedup); },
          false,
          [&](int64_t m, Sums&) {
            std::vector<Expected> expected;
            for (const auto& [source, token] : arriving_at(members, m))
              expected.push_back({static_cast<int64_t>(expected.size()) * 2,
                                  {2, static_cast<int32_t>(source), token * 2}});
            CHECK(std::ssize(expected) == known[m].num_rows());
            return expected;
          });
      CHECK(first_of(there.problems) == "");
      std::vector<std::vector<int64_t>> distinct;
      for (const TokenRoutes& of : members) distinct.push_back(distinct_tokens(of, units));
      for (int64_t m = 0; m < n; ++m) {
        const auto by_peer = [&](const MemberSteps& steps, StepKind kind) {
          std::vector<int64_t> rows(static_cast<size_t>(n));
          for (const Step& step : steps.steps)
            if (step.kind == kind)
              rows[static_cast<size_t>(step.peer)] +=
                  (kind == StepKind::kSend ? step.source : step.target).count / 2;
          return rows;
        };
        const auto rows = dispatched_rows(m, units, [&](int64_t f) -> const std::vector<int64_t>& {
          return distinct[static_cast<size_t>(f)];
        });
        CHECK(rows ==
              by_peer(halo_dedup_dispatch(m, topology, known[m].known(), dedup), StepKind::kSend));
        CHECK(rows == by_peer(halo_dedup_combine(m, topology, known[m].known(), dedup),
                              StepKind::kReceive));
      }
      // Both ends of every message of the combine agree; what it adds is held by halo_dedup_test.
      std::map<std::tuple<int64_t, int64_t, uint32_t>, int64_t> open;
      for (int64_t m = 0; m < n; ++m)
        for (const Step& step : halo_dedup_combine(m, topology, known[m].known(), dedup).steps) {
          if (step.kind == StepKind::kSend) open[{m, step.peer, step.part}] += step.source.count;
          if (step.kind == StepKind::kReceive) open[{step.peer, m, step.part}] -= step.target.count;
        }
      for (const auto& [place, units_left] : open) CHECK(units_left == 0);
    }
}

TEST_CASE("copies are counted by source and expert, and each finds its token's row") {
  const Topology topology = nodes_of({2, 3, 1});
  const Units units(topology, 0);
  const RoutesShape shape{.num_tokens = 11, .experts_a_member = 2, .num_pieces = 3};
  const auto experts = random_experts(6, shape, 5, 4);
  const std::vector<KnownRoutes> known = all_known(experts, units, shape);
  std::vector<TokenRoutes> members;
  for (const KnownRoutes& of : known) members.push_back(of.own());
  int64_t shared = 0;
  for (int64_t m = 0; m < 6; ++m) {
    const auto rows = arriving_at(members, m);
    size_t copy = 0;
    for (int64_t f = 0; f < 6; ++f)
      for (int64_t e = 0; e < 2; ++e) {
        int64_t count = 0;
        for (int64_t token = 0; token < shape.num_tokens; ++token) {
          const auto chosen = experts[static_cast<size_t>(f)].of(token);
          if (!std::ranges::binary_search(chosen, static_cast<int32_t>(2 * m + e))) continue;
          ++count;
          const auto row = static_cast<size_t>(known[m].row_of_copy().at(copy++));
          CHECK(rows.at(row) == std::pair{f, token});
        }
        CHECK(known[m].counts().at(static_cast<size_t>(f * 2 + e)) == count);
      }
    CHECK(copy == known[m].row_of_copy().size());
    shared += static_cast<int64_t>(copy) - std::ssize(rows);
  }
  CHECK(shared > 0);  // or no row had two experts
}

TEST_CASE("pieces are as large as was asked for, at most") {
  CHECK(dedup_pieces(0, 100, 8) == 1);
  CHECK(dedup_pieces(80, 100, 8) == 10);
  CHECK(dedup_pieces(79, 100, 8) == 12);  // 9 rows each
  CHECK(dedup_pieces(1, 100, 8) == 100);
  CHECK(dedup_pieces(1, 0, 8) == 1);
}

TEST_CASE("a message that contradicts itself names who told it") {
  const Units units(nodes_of({1, 1}), 0);
  const RoutesShape shape{.num_tokens = 4, .experts_a_member = 1, .num_pieces = 1};
  const auto experts = random_experts(2, shape, 2, 9);
  KnownRoutes known(0, units, shape, experts[0]);
  known.hear(0, message(experts[0], 0, 0, units, shape));
  std::vector<std::byte> wrong = message(experts[1], 1, 0, units, shape);
  wrong[0] ^= std::byte{1};  // one token more or less than the count of rows says
  CHECK_THROWS_AS(known.hear(1, wrong), CommError);
}

}  // namespace piper::collective
