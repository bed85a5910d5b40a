// Eq. 3 and 5 of Parm over the places of its groups.
#include <doctest/doctest.h>
#include <studies/paper/parm_placement.h>

#include <map>

using namespace piper::studies::paper::parm;

namespace {

constexpr LinkTimes kLinks{.inside = 1, .across = 8};

double sequential(const Grid& grid, double x) {
  return esp_all_gather_seconds(grid, kLinks, x) + ep_all_to_all_seconds(grid, kLinks, x);
}

}  // namespace

TEST_CASE("four ranks, EP 2 x ESP 2, in each of the four cases, by hand") {
  struct Case {
    Grid grid;
    PlacementCase kind;
    double fused, gather, all_to_all;
  };
  // 240 elements: the fused exchange sends 60 to each of three, the others 120 to one.
  const Case cases[] = {
      {{.ep = 2, .esp = 2, .ranks_per_node = 4}, PlacementCase::kOneNode, 180, 120, 120},
      {{.ep = 2, .esp = 2, .ranks_per_node = 2}, PlacementCase::kEspInNode, 2 * 60 * 8, 120, 960},
      {{.ep = 2, .esp = 2, .ranks_per_node = 2, .is_esp_inside = false},
       PlacementCase::kEpInNode,
       2 * 60 * 8,
       960,
       120},
      {{.ep = 2, .esp = 2, .ranks_per_node = 1}, PlacementCase::kOther, 3 * 60 * 8, 960, 960},
  };
  for (const Case& c : cases) {
    CHECK(fused_all_to_all_seconds(c.grid, kLinks, 240) == c.fused);
    CHECK(esp_all_gather_seconds(c.grid, kLinks, 240) == c.gather);
    CHECK(ep_all_to_all_seconds(c.grid, kLinks, 240) == c.all_to_all);
    CHECK(case_of(c.grid) == c.kind);
  }
}

TEST_CASE("eq. 3 and 5 hold in every case, by up to a factor of two and never the other way") {
  std::map<PlacementCase, int> seen;
  for (int ep = 1; ep <= 8; ++ep)
    for (int esp = 1; esp <= 8; ++esp)
      for (const int node : {1, 2, 3, 4, 7, 8})
        for (const bool inside : {true, false}) {
          const Grid grid{.ep = ep, .esp = esp, .ranks_per_node = node, .is_esp_inside = inside};
          CAPTURE(ep);
          CAPTURE(esp);
          CAPTURE(node);
          CAPTURE(inside);
          const double fused = fused_all_to_all_seconds(grid, kLinks, 1);
          CHECK(fused <= sequential(grid, 1) * (1 + 1e-12));
          ++seen[case_of(grid)];
        }
  CHECK(seen.size() == 4);
}

TEST_CASE("eq. 4 is not exact: in one node the fused exchange moves a little more") {
  // The paper has A2A_EP&ESP = A2A_EP there. One rank keeps 1 / P of it, against 1 / N_EP.
  const Grid grid{.ep = 2, .esp = 4, .ranks_per_node = 8};
  CHECK(fused_all_to_all_seconds(grid, kLinks, 8) == 7);
  CHECK(ep_all_to_all_seconds(grid, kLinks, 8) == 4);
  CHECK(esp_all_gather_seconds(grid, kLinks, 8) == 6);
}
