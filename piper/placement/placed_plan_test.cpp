#include <doctest/doctest.h>
#include <piper/model/import.h>
#include <piper/placement/placed_plan.h>
#include <piper/placement/placement_cases.h>
#include <testing/cost/relative_approx.h>

namespace piper::placement {
namespace {

using cost::near;

// One sequence a rank and step.
strategy::Strategy strategy_of(const model::Model& model, int64_t ep, int64_t dp) {
  strategy::Strategy s;
  s.mesh = {.pp = 1, .ep = ep, .dp = dp};
  s.layers_per_stage = {model.num_layers()};
  s.sequence = 1024;
  s.micro_batch_sequences = s.num_micro_batches = 1;
  s.global_batch_sequences = dp;
  return s;
}

}  // namespace

TEST_CASE("plans are ranked by their steps on the nodes, and say where they stood in the search") {
  const model::Model model = model::load_model("piper-10m");
  // Expert groups of four, whole where the search has them, are torn on nodes with three free slots.
  const cluster::Allocation allocation =
      example_places::allocation({{0, 0}, {1, 1}, {0, 0}}, {3, 3, 2});
  const Placeable torn{strategy_of(model, 4, 8), 10, {.exchange = 5}},
      whole{strategy_of(model, 1, 8), 11, {}};
  const PlacedPlan plan = rank_on_nodes(allocation, model, {torn, whole, whole});
  REQUIRE(plan.ranked.size() == 3);
  CHECK(plan.ranked[0].searched == 1);
  CHECK(plan.ranked[1].searched == 2);  // as long: as searched
  CHECK(plan.ranked[2].searched == 0);
  CHECK(plan.ranked[0].strategy.mesh.ep == 1);
  CHECK(plan.ranked[0].predicted_seconds == 11);
  CHECK(plan.ranked[0].step.seconds == near(11));
  CHECK(plan.ranked[2].step.seconds > 11);
  CHECK(plan.allocation.nodes.size() == 3);
}

TEST_CASE("no more than the best few are placed, and of nothing nothing") {
  const model::Model model = model::load_model("piper-10m");
  const cluster::Allocation allocation = example_places::allocation({{0, 0}}, {4});
  const std::vector<Placeable> many(kMostPlaced + 2, {strategy_of(model, 4, 4), 1, {}});
  CHECK(rank_on_nodes(allocation, model, many).ranked.size() == kMostPlaced);
  CHECK(rank_on_nodes(allocation, model, {}).ranked.empty());
}

}  // namespace piper::placement
