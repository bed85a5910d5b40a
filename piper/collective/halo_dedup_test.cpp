#include <piper/collective/halo_dedup_combine.h>
#include <piper/collective/halo_dedup_dispatch.h>
#include <testing/collective/dedup_cases.h>
#include <testing/collective/exchange_cases.h>

#include <numeric>
#include <set>

namespace piper::collective {
namespace {

using DedupOf = MemberSteps (*)(int64_t, const Topology&, const DedupKnown&, const Dedup&);

StepsOf steps_of(DedupOf algorithm, const Topology& topology, const Units& units,
                 const Routes& routes, const Dedup& dedup) {
  return [&, algorithm, dedup](int64_t m) {
    return algorithm(m, topology, known_to(m, routes, units, dedup.num_pieces), dedup);
  };
}

// Member m's tokens from each source, ascending: (source, token).
std::vector<std::pair<int32_t, int32_t>> arriving(const Routes& routes, int64_t m) {
  std::vector<std::pair<int32_t, int32_t>> rows;
  for (size_t source = 0; source < routes.size(); ++source)
    for (const int32_t token :
         rows_for(routes[source], {0, routes[source].num_tokens()}, static_cast<int32_t>(m)))
      rows.emplace_back(source, token);
  return rows;
}

ExpectedOf dispatched(const Routes& routes, int64_t row_count) {
  return [&, row_count](int64_t m, Sums&) {
    std::vector<Expected> expected;
    for (const auto& [source, token] : arriving(routes, m))
      expected.push_back({static_cast<int64_t>(expected.size()) * row_count,
                          {row_count, source, token * row_count}});
    return expected;
  };
}

// The result of `target` for a token, as it lies in that member's input.
Piece result_of(const Routes& routes, int32_t target, int32_t source, int32_t token,
                int64_t row_count) {
  const auto rows = arriving(routes, target);
  const auto place = std::find(rows.begin(), rows.end(), std::pair{source, token});
  return {row_count, target, (place - rows.begin()) * row_count};
}

ExpectedOf combined(const Routes& routes, const Units& units, int64_t row_count) {
  return [&, row_count](int64_t m, Sums& sums) {
    std::vector<Expected> expected;
    for (int64_t token = 0; token < routes[m].num_tokens(); ++token) {
      std::vector<Piece> of_unit(units.num_units());  // label -1: nothing
      for (const int32_t target : routes[m].of(token)) {
        const Piece result = result_of(routes, target, static_cast<int32_t>(m),
                                       static_cast<int32_t>(token), row_count);
        Piece& sum = of_unit[units.unit(target)];
        sum = sum.label < 0 ? result : sums.add(sum, result);
      }
      std::swap(of_unit[0], of_unit[units.unit(m)]);  // the own one first ...
      if (units.unit(m) > 1)                          // ... the others ascending
        std::rotate(of_unit.begin() + 1, of_unit.begin() + units.unit(m),
                    of_unit.begin() + units.unit(m) + 1);
      Piece total;
      for (const Piece& sum : of_unit)
        if (sum.label >= 0) total = total.label < 0 ? sum : sums.add(total, sum);
      if (total.label >= 0) expected.push_back({token * row_count, total});
    }
    return expected;
  };
}

Proof prove_dispatch(const Topology& topology, const Routes& routes, const Dedup& dedup) {
  const Units units(topology, dedup.level);
  return prove(topology, steps_of(halo_dedup_dispatch, topology, units, routes, dedup), false,
               dispatched(routes, dedup.row_count));
}

Proof prove_combine(const Topology& topology, const Routes& routes, const Dedup& dedup) {
  const Units units(topology, dedup.level);
  return prove(topology, steps_of(halo_dedup_combine, topology, units, routes, dedup), false,
               combined(routes, units, dedup.row_count));
}

TEST_CASE("a deduplicated dispatch brings each member the tokens for it, any k, any pieces") {
  uint32_t seed = 0;
  for (const Topology& topology : small_topologies())
    for (const int64_t k : {1, 2, 5})
      for (const int64_t pieces : {1, 3}) {
        const Routes routes = random_routes(num_members(topology), k, ++seed);
        CAPTURE(seed);
        CAPTURE(to_text(topology));
        CHECK(first_of(prove_dispatch(topology, routes, {.row_count = 4, .num_pieces = pieces})
                           .problems) == "");
      }
}

TEST_CASE("a deduplicated combine adds in its fixed order: in the unit first, then over units") {
  uint32_t seed = 100;
  for (const Topology& topology : small_topologies())
    for (const int64_t k : {1, 2, 5})
      for (const int64_t pieces : {1, 3}) {
        const Routes routes = random_routes(num_members(topology), k, ++seed);
        CAPTURE(seed);
        CAPTURE(to_text(topology));
        CHECK(first_of(prove_combine(topology, routes, {.row_count = 4, .num_pieces = pieces})
                           .problems) == "");
      }
}

TEST_CASE("deduplication by switch group crosses the group's boundary once") {
  const Topology topology = even_nodes(4, 2, 1, 2);
  const Routes routes = random_routes(8, 5, 77);
  const Dedup dedup{.row_count = 2, .num_pieces = 2, .level = 1};
  CHECK(prove_dispatch(topology, routes, dedup).problems.empty());
  CHECK(prove_combine(topology, routes, dedup).problems.empty());
}

TEST_CASE("what crosses is one row a token and distinct remote unit, there and back") {
  const Topology topology = even_nodes(3, 4);
  const Units units(topology, 0);
  const Routes routes = random_routes(12, 6, 5);
  int64_t crossing = 0, copies = 0;
  for (int64_t m = 0; m < 12; ++m)
    for (int64_t token = 0; token < routes[m].num_tokens(); ++token) {
      std::set<int32_t> distinct;
      for (const int32_t target : routes[m].of(token))
        if (!units.together(m, target)) {
          distinct.insert(units.unit(target));
          ++copies;
        }
      crossing += static_cast<int64_t>(distinct.size());
    }
  const Dedup dedup{.row_count = 8, .num_pieces = 2};
  CHECK(prove_dispatch(topology, routes, dedup).by_level[1].units == crossing * 8);
  CHECK(prove_combine(topology, routes, dedup).by_level[1].units == crossing * 8);
  CHECK(crossing < copies);  // or there was nothing to save
}

TEST_CASE("every step of the deduplicated exchanges is needed") {
  const Topology topology = nodes_of({2, 3, 1});
  const Units units(topology, 0);
  const Routes routes = random_routes(6, 3, 8);
  const Dedup dedup{.row_count = 2, .num_pieces = 2};
  const auto check = [&](DedupOf algorithm, const ExpectedOf& expected) {
    const StepsOf steps = steps_of(algorithm, topology, units, routes, dedup);
    for (int64_t m = 0; m < 6; ++m) {
      const MemberSteps whole = steps(m);
      for (size_t s = 0; s < whole.steps.size(); ++s) {
        const Step& step = whole.steps[s];
        if (step.source.count == 0 && step.target.count == 0) continue;  // a place to meet
        CAPTURE(m);
        CAPTURE(s);
        const StepsOf broken = [&](int64_t other) {
          return other == m ? without_step(whole, static_cast<int32_t>(s)) : steps(other);
        };
        CHECK_FALSE(prove(topology, broken, false, expected).problems.empty());
      }
    }
  };
  check(halo_dedup_dispatch, dispatched(routes, dedup.row_count));
  check(halo_dedup_combine, combined(routes, units, dedup.row_count));
}

TEST_CASE("a row moved elsewhere is noticed, and rows beyond the block are") {
  const Topology topology = nodes_of({3, 2});
  const Units units(topology, 0);
  const Routes routes = random_routes(5, 3, 21);
  const Dedup dedup{.row_count = 2, .num_pieces = 1};
  const StepsOf steps = steps_of(halo_dedup_combine, topology, units, routes, dedup);
  for (const int32_t wrong : {1, 1000}) {
    const StepsOf broken = [&](int64_t m) {
      MemberSteps member = steps(m);
      if (m == 1) {
        REQUIRE(member.row_pairs.size() > 1);
        member.row_pairs[0].to += wrong;
      }
      return member;
    };
    CHECK_FALSE(prove(topology, broken, false, combined(routes, units, 2)).problems.empty());
  }
}

}  // namespace
}  // namespace piper::collective
