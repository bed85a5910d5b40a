// `piper plan --nodes`: the plan for the nodes that a job has (plan/placed_steps.h).
#pragma once

#include <piper/cli/place_report.h>
#include <piper/plan/placed_steps.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

namespace piper::cli {

// So many of the best are placed.
inline constexpr size_t kMostPlaced = 8;

struct NodesQuestion {
  AllocationFlags allocation;
  LaunchFileFlags files;
  bool is_asked() const { return !allocation.nodes.empty(); }
};
// Throws InvalidInput: what goes with --nodes only.
void check(const NodesQuestion& question);

// One strategy on the nodes.
struct OnNodes {
  strategy::Strategy strategy;
  double predicted_seconds = 0;  // ranks as the search assumes them
  plan::PlacedStep step;
};

struct PlacedPlan {
  cluster::Allocation allocation;
  std::vector<OnNodes> ranked;  // fastest as placed first
};

// Places the first of `ranked`, brings them into the order of their steps as placed. `describe`:
// its strategy, predicted seconds and what they expose.
struct Placeable {
  strategy::Strategy strategy;
  double seconds = 0;
  plan::ExposedSeconds exposed;
};
template <class Candidate, class Describe>
PlacedPlan rank_on_nodes(cluster::Allocation allocation, const model::Model& model,
                         std::vector<Candidate>& ranked, Describe describe) {
  const plan::Slots slots = plan::slots_of(allocation);
  const size_t num = std::min(ranked.size(), kMostPlaced);
  std::vector<OnNodes> placed;
  for (size_t i = 0; i < num; ++i) {
    Placeable one = describe(ranked[i]);
    plan::PlacedStep step =
        place_step(allocation, slots, model, one.strategy, one.exposed, one.seconds);
    placed.push_back({std::move(one.strategy), one.seconds, std::move(step)});
  }
  std::vector<size_t> order(num);
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, {}, [&](size_t i) { return placed[i].step.seconds; });
  std::vector<Candidate> sorted;
  PlacedPlan plan{.allocation = std::move(allocation), .ranked = {}};
  for (const size_t i : order) {
    sorted.push_back(std::move(ranked[i]));
    plan.ranked.push_back(std::move(placed[i]));
  }
  std::ranges::move(sorted, ranked.begin());
  return plan;
}

// Of a plan that is not empty: the table, the map of the best, its launch files.
void print_on_nodes(const PlacedPlan& plan, const model::Model& model,
                    const NodesQuestion& question);
Json to_json(const PlacedPlan& plan, const model::Model& model);
void write_launch_files(const PlacedPlan& plan, const model::Model& model,
                        const NodesQuestion& question);

}  // namespace piper::cli
