#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/strategy/rank_layout.h>

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

const std::vector<Mesh>& meshes() {
  static const std::vector<Mesh> all = {{.pp = 1},
                                        {.pp = 2, .dp = 7},
                                        {.pp = 3, .ep = 2, .dp = 6},
                                        {.pp = 3, .ep = 4, .dp = 4, .tp = 2},
                                        {.pp = 1, .ep = 4, .dp = 4, .etp = 2, .tp = 2, .cp = 2},
                                        {.pp = 4, .ep = 2, .dp = 6, .etp = 2, .tp = 2, .cp = 3}};
  return all;
}

}  // namespace

TEST_CASE("four ranks with pp 2 and ep 2 have dp 2 and edp 1") {
  const Mesh mesh{.pp = 2, .ep = 2, .dp = 2};
  const RankLayout layout(mesh);
  CHECK(layout.num_ranks() == 4);
  CHECK(layout.coordinates(Rank(3)) ==
        Coordinates{.pp = 1, .member = 1, .dp = 1, .ep = 1, .edp = 0});
  CHECK(values(layout.group(Axis::kExpert, Rank(2))) == std::vector{2, 3});
  CHECK(values(layout.group(Axis::kData, Rank(0))) == std::vector{0, 1});
  CHECK(values(layout.group(Axis::kExpertData, Rank(1))) == std::vector{1});
  CHECK(values(layout.group(Axis::kPipeline, Rank(1))) == std::vector{1, 3});
}

TEST_CASE(
    "of attention and experts alone, the expert axis is the innermost: its groups are neighbours") {
  const RankLayout layout(Mesh{.pp = 3, .ep = 2, .dp = 6});  // 18 ranks, edp 3
  // rank 9 = 1 * 6 + 3: stage 1, dp 3 = edp 1 * 2 + ep 1
  CHECK(layout.coordinates(Rank(9)) ==
        Coordinates{.pp = 1, .member = 3, .dp = 3, .ep = 1, .edp = 1});
  CHECK(values(layout.group(Axis::kExpert, Rank(9))) == std::vector{8, 9});
  CHECK(values(layout.group(Axis::kExpertData, Rank(9))) == std::vector{7, 9, 11});
  CHECK(values(layout.group(Axis::kData, Rank(9))) == std::vector{6, 7, 8, 9, 10, 11});
  CHECK(values(layout.group(Axis::kPipeline, Rank(9))) == std::vector{3, 9, 15});
}

TEST_CASE("two meshes over one stage: tp 2 cp 2 dp 2 and etp 2 ep 2 edp 2") {
  const RankLayout layout(Mesh{.pp = 2, .ep = 2, .dp = 2, .etp = 2, .tp = 2, .cp = 2});
  // rank 13 = 8 + 5; 5 = (dp 1 * 2 + cp 0) * 2 + tp 1 = (edp 1 * 2 + ep 0) * 2 + etp 1
  CHECK(layout.coordinates(Rank(13)) ==
        Coordinates{.pp = 1, .member = 5, .tp = 1, .cp = 0, .dp = 1, .etp = 1, .ep = 0, .edp = 1});
  CHECK(values(layout.group(Axis::kTensor, Rank(13))) == std::vector{12, 13});
  CHECK(values(layout.group(Axis::kContext, Rank(13))) == std::vector{13, 15});
  CHECK(values(layout.group(Axis::kData, Rank(13))) == std::vector{9, 11, 13, 15});
  CHECK(values(layout.group(Axis::kExpertTensor, Rank(13))) == std::vector{12, 13});
  CHECK(values(layout.group(Axis::kExpert, Rank(13))) == std::vector{13, 15});
  CHECK(values(layout.group(Axis::kTensorExpert, Rank(13))) == std::vector{12, 13, 14, 15});
  CHECK(values(layout.group(Axis::kExpertData, Rank(13))) == std::vector{9, 13});
  CHECK(values(layout.group(Axis::kEmbeddingTable, Rank(13))) == std::vector{5, 13});
}

TEST_CASE("first and last stage, the world and a rank alone") {
  const RankLayout layout(Mesh{.pp = 4, .dp = 2}, Placement::kPipelineInside);
  CHECK(values(layout.group(Axis::kEmbeddingTable, layout.rank(3, 1))) == std::vector{4, 7});
  CHECK(layout.size(Axis::kEmbeddingTable) == 2);
  CHECK(layout.size(Axis::kWorld) == 8);
  CHECK(RankLayout(Mesh{.dp = 2}).size(Axis::kEmbeddingTable) == 1);
  CHECK(values(RankLayout(Mesh{.dp = 2}).group(Axis::kEmbeddingTable, Rank(1))) == std::vector{1});
  CHECK(values(layout.group(Axis::kRank, Rank(6))) == std::vector{6});
  CHECK(std::string(name(Axis::kExpertTensor)) == "expert tensor");
  CHECK(std::string(name(Axis::kRank)) == "rank");
}

TEST_CASE("every rank has one place, and every place one rank, under either placement") {
  for (const Mesh& mesh : meshes())
    for (const Placement placement : kPlacements) {
      const RankLayout layout(mesh, placement);
      std::set<std::tuple<int64_t, int64_t, int64_t, int64_t>> attention, experts;
      for (const Rank rank : layout.world()) {
        const Coordinates at = layout.coordinates(rank);
        CHECK(layout.rank(at.pp, at.member) == rank);
        attention.insert({at.pp, at.tp, at.cp, at.dp});
        experts.insert({at.pp, at.etp, at.ep, at.edp});
      }
      CHECK(std::ssize(attention) == mesh.world());
      CHECK(std::ssize(experts) == mesh.world());
    }
}

TEST_CASE("the groups of every axis part the world, have its size, and differ in its index alone") {
  for (const Mesh& mesh : meshes())
    for (const Placement placement : kPlacements) {
      const RankLayout layout(mesh, placement);
      for (const Axis axis :
           {Axis::kTensor, Axis::kContext, Axis::kData, Axis::kExpertTensor, Axis::kExpert,
            Axis::kExpertData, Axis::kStage, Axis::kPipeline, Axis::kWorld, Axis::kRank}) {
        std::multiset<int> seen;
        std::set<std::vector<int>> groups;
        for (const Rank rank : layout.world()) {
          const std::vector<int> group = values(layout.group(axis, rank));
          CHECK(std::ssize(group) == layout.size(axis));
          CHECK(std::is_sorted(group.begin(), group.end()));
          CHECK(std::count(group.begin(), group.end(), rank.value) == 1);
          if (groups.insert(group).second) seen.insert(group.begin(), group.end());
        }
        CHECK(static_cast<int64_t>(seen.size()) == layout.num_ranks());  // disjoint and complete
      }
      for (const Rank rank : layout.world())
        for (const Rank other : layout.group(Axis::kExpert, rank)) {
          Coordinates a = layout.coordinates(rank), b = layout.coordinates(other);
          CHECK(a.pp == b.pp);
          CHECK(a.etp == b.etp);
          CHECK(a.edp == b.edp);
        }
    }
}

TEST_CASE("a pipeline inside keeps tensor and expert groups on neighbouring ranks") {
  const RankLayout layout(Mesh{.pp = 2, .ep = 4, .dp = 8}, Placement::kPipelineInside);
  CHECK(layout.num_together() == 4);
  CHECK(layout.distance(Axis::kPipeline) == 4);
  CHECK(layout.distance(Axis::kExpert) == 1);
  CHECK(layout.distance(Axis::kExpertData) == 8);
  CHECK(layout.rank(0, 3) == Rank(3));
  CHECK(layout.rank(1, 0) == Rank(4));
  CHECK(layout.rank(0, 4) == Rank(8));
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

TEST_CASE("ranks and indices outside the mesh are refused, and degrees that do not fit") {
  const RankLayout layout(Mesh{.pp = 2, .ep = 1, .dp = 2});
  CHECK_THROWS_AS(layout.coordinates(Rank(4)), InternalError);
  CHECK_THROWS_AS(layout.coordinates(Rank(-1)), InternalError);
  CHECK_THROWS_AS(layout.rank(2, 0), InternalError);
  CHECK_THROWS_AS(layout.members(Axis::kPipeline, 0), InternalError);
  CHECK_THROWS_AS(RankLayout(Mesh{.ep = 4, .dp = 6}), InternalError);
}
