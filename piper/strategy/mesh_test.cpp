#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/strategy/mesh.h>

#include <algorithm>
#include <set>

using namespace piper;
using namespace piper::strategy;

namespace {

std::vector<int> values(const std::vector<Rank>& ranks) {
  std::vector<int> out;
  for (const Rank rank : ranks) out.push_back(rank.value);
  return out;
}

}  // namespace

TEST_CASE("four ranks with pp 2 and ep 2 have dp 2 and edp 1") {
  const Mesh mesh{.pp = 2, .ep = 2, .dp = 2};
  CHECK(mesh.world() == 4);
  CHECK(mesh.edp() == 1);
  CHECK(coordinates(mesh, Rank(3)) == Coordinates{.pp = 1, .dp = 1, .ep = 1, .edp = 0});
  CHECK(values(expert_group(mesh, Rank(2))) == std::vector{2, 3});
  CHECK(values(data_group(mesh, Rank(0))) == std::vector{0, 1});
  CHECK(values(expert_data_group(mesh, Rank(1))) == std::vector{1});
  CHECK(values(pipeline_group(mesh, Rank(1))) == std::vector{1, 3});
}

TEST_CASE("the expert axis is the innermost: its groups are neighbours") {
  const Mesh mesh{.pp = 3, .ep = 2, .dp = 6};  // 18 ranks, edp 3
  // rank 9 = 1 * 6 + 3: stage 1, dp 3 = edp 1 * 2 + ep 1
  CHECK(coordinates(mesh, Rank(9)) == Coordinates{.pp = 1, .dp = 3, .ep = 1, .edp = 1});
  CHECK(values(expert_group(mesh, Rank(9))) == std::vector{8, 9});
  CHECK(values(expert_data_group(mesh, Rank(9))) == std::vector{7, 9, 11});
  CHECK(values(data_group(mesh, Rank(9))) == std::vector{6, 7, 8, 9, 10, 11});
  CHECK(values(pipeline_group(mesh, Rank(9))) == std::vector{3, 9, 15});
}

TEST_CASE("coordinates and ranks are inverse, and every axis' groups tile the world") {
  for (const int64_t pp : {1, 2, 7})
    for (const int64_t ep : {1, 2, 7})
      for (const int64_t edp : {1, 3}) {
        const Mesh mesh{.pp = pp, .ep = ep, .dp = ep * edp};
        for (const auto group_of : {data_group, expert_group, expert_data_group, pipeline_group}) {
          std::multiset<int> seen;
          std::set<std::vector<int>> groups;
          for (int64_t r = 0; r < mesh.world(); ++r) {
            const Coordinates at = coordinates(mesh, Rank(r));
            CHECK(rank_at(mesh, at.pp, at.dp) == Rank(r));
            const std::vector<int> group = values(group_of(mesh, Rank(r)));
            CHECK(std::is_sorted(group.begin(), group.end()));
            CHECK(std::count(group.begin(), group.end(), r) == 1);
            if (groups.insert(group).second) seen.insert(group.begin(), group.end());
          }
          CHECK(static_cast<int64_t>(seen.size()) == mesh.world());  // disjoint and complete
        }
      }
}

TEST_CASE("experts are dealt in contiguous blocks of equal size") {
  const Mesh mesh{.pp = 1, .ep = 4, .dp = 4};
  CHECK(experts_of(mesh, 8, 3).first == 6);
  CHECK(experts_of(mesh, 8, 3).count == 2);
  CHECK_THROWS_AS(experts_of(mesh, 6, 0), InternalError);
}

TEST_CASE("the first layer of a stage is the sum of those before it") {
  Strategy strategy;
  strategy.layers_per_stage = {3, 1, 2};
  CHECK(first_layer(strategy, 0) == 0);
  CHECK(first_layer(strategy, 2) == 4);
  CHECK(first_layer(strategy, 3) == 6);  // one past the end: the number of layers
}

TEST_CASE("ranks and indices outside the mesh are refused") {
  const Mesh mesh{.pp = 2, .ep = 1, .dp = 2};
  CHECK_THROWS_AS(coordinates(mesh, Rank(4)), InternalError);
  CHECK_THROWS_AS(coordinates(mesh, Rank(-1)), InternalError);
  CHECK_THROWS_AS(rank_at(mesh, 2, 0), InternalError);
}
