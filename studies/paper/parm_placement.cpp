#include <studies/paper/parm_placement.h>

#include <algorithm>

namespace piper::studies::paper::parm {
namespace {

struct Member {
  int64_t ep = 0, esp = 0, node = 0;
};

Member member_of(const Grid& g, int64_t number) {
  const int64_t inner = g.is_esp_inside ? g.esp : g.ep;
  const int64_t low = number % inner, high = number / inner;
  return {.ep = g.is_esp_inside ? high : low,
          .esp = g.is_esp_inside ? low : high,
          .node = number / g.ranks_per_node};
}

// Every rank sends `elements` to each of those that `meets` names.
template <class Meets>
double slowest(const Grid& grid, const LinkTimes& links, double elements, const Meets& meets) {
  double longest = 0;
  const int64_t num_ranks = grid.ep * grid.esp;
  for (int64_t from = 0; from < num_ranks; ++from) {
    const Member a = member_of(grid, from);
    double inside = 0, across = 0;
    for (int64_t to = 0; to < num_ranks; ++to) {
      const Member b = member_of(grid, to);
      if (from != to && meets(a, b)) (a.node == b.node ? inside : across) += elements;
    }
    longest = std::max({longest, inside * links.inside, across * links.across});
  }
  return longest;
}

}  // namespace

PlacementCase case_of(const Grid& g) {
  if (g.ep * g.esp <= g.ranks_per_node) return PlacementCase::kOneNode;
  // Groups of neighbours lie in one node when whole ones fill it.
  const int64_t inner = g.is_esp_inside ? g.esp : g.ep;
  if (g.ranks_per_node % inner != 0) return PlacementCase::kOther;
  return g.is_esp_inside ? PlacementCase::kEspInNode : PlacementCase::kEpInNode;
}

double fused_all_to_all_seconds(const Grid& grid, const LinkTimes& links, double elements) {
  const double pair = elements / static_cast<double>(grid.ep * grid.esp);
  return slowest(grid, links, pair, [](const Member&, const Member&) { return true; });
}

double ep_all_to_all_seconds(const Grid& grid, const LinkTimes& links, double elements) {
  const double pair = elements / static_cast<double>(grid.ep);
  return slowest(grid, links, pair,
                 [](const Member& a, const Member& b) { return a.esp == b.esp; });
}

double esp_all_gather_seconds(const Grid& grid, const LinkTimes& links, double elements) {
  const double pair = elements / static_cast<double>(grid.esp);
  return slowest(grid, links, pair, [](const Member& a, const Member& b) { return a.ep == b.ep; });
}

}  // namespace piper::studies::paper::parm
