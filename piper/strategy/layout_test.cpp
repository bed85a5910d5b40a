#include <doctest/doctest.h>
#include <piper/strategy/layout.h>

#include <algorithm>
#include <set>

using namespace piper;
using namespace piper::strategy;

namespace {

Strategy with(Mesh mesh, Placement placement) {
  Strategy s;
  s.mesh = mesh;
  s.placement = placement;
  return s;
}

}  // namespace

TEST_CASE("every rank has one place, and every place one rank, under either placement") {
  for (const Mesh mesh : {Mesh{.pp = 3, .ep = 4, .dp = 4, .tp = 2}, Mesh{.pp = 2, .dp = 7},
                          Mesh{.pp = 4, .ep = 2, .dp = 6, .etp = 2, .tp = 2, .cp = 3}})
    for (const Placement placement : kPlacements) {
      const Layout layout(with(mesh, placement));
      for (int64_t rank = 0; rank < mesh.world(); ++rank) {
        const Place at = layout.place(Rank(rank));
        CHECK(layout.rank(at.stage, at.member) == Rank(rank));
      }
    }
}

TEST_CASE("the groups of an axis part a stage's members, and have the axis' size") {
  const Mesh mesh{.pp = 1, .ep = 4, .dp = 4, .etp = 2, .tp = 2, .cp = 2};
  const Layout layout(with(mesh, Placement::kDataInside));
  const auto check = [&](auto group_of, int64_t size) {
    std::multiset<int64_t> seen;
    for (int64_t member = 0; member < layout.num_members(); ++member) {
      const Members group = (layout.*group_of)(member);
      CHECK(group.size == size);
      CHECK((member - group.first) % group.stride == 0);
      CHECK((member - group.first) / group.stride < group.size);
      if (group.first == member)
        for (int64_t i = 0; i < group.size; ++i) seen.insert(group.first + i * group.stride);
    }
    for (int64_t member = 0; member < layout.num_members(); ++member)
      CHECK(seen.count(member) == 1);
  };
  check(&Layout::tensor, 2);
  check(&Layout::context, 2);
  check(&Layout::expert_tensor, 2);
  check(&Layout::experts, 4);
  check(&Layout::data, 8);
  check(&Layout::expert_data, 2);
}

TEST_CASE("a pipeline inside keeps tensor and expert groups on neighbouring ranks") {
  const Layout layout(with({.pp = 2, .ep = 4, .dp = 8}, Placement::kPipelineInside));
  CHECK(layout.num_together() == 4);
  CHECK(layout.message_distance() == 4);
  CHECK(layout.rank(0, 3) == Rank(3));
  CHECK(layout.rank(1, 0) == Rank(4));
  CHECK(layout.rank(0, 4) == Rank(8));
}
