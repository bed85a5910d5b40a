#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/cost/expert_price.h>
#include <piper/cost/expert_rows.h>
#include <piper/cost/load_distribution.h>
#include <piper/cost/rank_parameters.h>
#include <piper/schedule/migration.h>
#include <testing/cost/example_model.h>

using namespace piper;
using namespace piper::cost;
using balance::ExpertPlacement;

namespace {

// 4 experts on 2 ranks; the first two have all the rows.
ExpertLoad hot_rank(const model::Model& model) {
  ExpertLoad load;
  load.share.assign(model.layers.size(), {0.5, 0.5, 0, 0});
  return load;
}

}  // namespace

TEST_CASE("rows go to the rank that the placement names") {
  const model::Model model = example::mixture(2);
  const strategy::Strategy s = example::strategy(model, 1, 2, 2);
  ExpertLoad load = hot_rank(model);
  const int64_t rows = s.micro_batch_sequences * s.sequence * 2;  // top 2
  CHECK(ExpertRows(model, s, load).rows_to(1, 0) == rows);
  load.placements.emplace(1, ExpertPlacement::plain(4, 2).swapped(1, 2));
  const ExpertRows moved(model, s, load);
  CHECK(moved.rows_to(0, 0) == rows);  // the other layer is plain
  CHECK(moved.rows_to(1, 0) == rows / 2);
  CHECK(moved.rows_to(1, 1) == rows / 2);
  CHECK(moved.work(1, int64_t{0}).received_rows == rows);  // half of what two ranks send
  CHECK(moved.work(0, int64_t{0}).received_rows == 2 * rows);
  // One of two layers is balanced by it.
  CHECK(imbalance_of(hot_rank(model), 2) == 2);
  CHECK(imbalance_of(load, 2) == 1.5);
}

TEST_CASE("a step whose experts are well placed takes as long as one with an even load") {
  const model::Model model = example::mixture(2);
  const strategy::Strategy s = example::strategy(model, 1, 2, 2);
  const schedule::StepGraph step = schedule::write_step(model, s);
  const auto exchanges = [&](const ExpertLoad& load) {
    const Prices prices = price(step, model, s, example::nodes(), load);
    double seconds = 0;
    for (const graph::Task& task : step.graph.tasks())
      if (task.kind == graph::TaskKind::kAllToAll) seconds += prices.seconds[task.id.index()];
    return seconds;
  };
  ExpertLoad skewed = hot_rank(model), placed = skewed, even;
  even.share.assign(model.layers.size(), {0.25, 0.25, 0.25, 0.25});
  for (const int32_t layer : {0, 1})
    placed.placements.emplace(layer, ExpertPlacement({{0, 2}, {3, 1}}, 4));
  CHECK(exchanges(placed) == doctest::Approx(exchanges(even)));
  CHECK(exchanges(skewed) > 1.01 * exchanges(even));
}

TEST_CASE(
    "a placement on another group, or with other copies than the strategy's, is refused by the "
    "prices") {
  const model::Model model = example::mixture(1);
  const strategy::Strategy s = example::strategy(model, 1, 2, 2);
  ExpertLoad load;
  load.placements.emplace(0, ExpertPlacement::plain(4, 4));
  CHECK_THROWS_WITH_AS(
      ExpertRows(model, s, load),
      "expert load: a placement of layer 0 has 4 experts and 0 copies on 4 ranks; "
      "allowed: the layer's experts and 0 copies on the 2 ranks of an expert group",
      InvalidInput);
  load.placements.insert_or_assign(0, ExpertPlacement({{0, 1, 2}, {2, 3}}, 4));
  CHECK_THROWS_AS(ExpertRows(model, s, load), InvalidInput);
}

TEST_CASE("an expert takes along 12 bytes a parameter in fp32 and bf16, and 24 in fp64") {
  const model::Model model = example::mixture(1);  // 3 x 8 x 16 parameters an expert
  CHECK(moved_expert_bytes(model, 0, strategy::Precision::kFp32) == 12 * 384);
  CHECK(moved_expert_bytes(model, 0, strategy::Precision::kBf16) == 12 * 384);
  CHECK(moved_expert_bytes(model, 0, strategy::Precision::kFp64) == 24 * 384);
}

TEST_CASE("a migration is priced by hand: a copy, a message, a copy") {
  const model::Model model = example::mixture(1);
  const strategy::Strategy s = example::strategy(model, 1, 2, 2);
  const cluster::Cluster nodes = example::nodes();  // 100 GB/s of memory; 1 us and 100 GB/s inside
  const ExpertPlacement plain = ExpertPlacement::plain(4, 2);
  const schedule::StepGraph graph =
      schedule::write_migration(model, s, {{0, balance::moves_between(plain, plain.swapped(0, 2))}})
          .step;
  const Prices prices = price(graph, model, s, nodes);
  const double bytes = 12 * 384;
  for (const graph::Task& task : graph.graph.tasks()) {
    CAPTURE(schedule::task_name(graph, task));
    const double seconds = prices.seconds[task.id.index()];
    if (task.kind == graph::TaskKind::kCompute)
      CHECK(seconds == doctest::Approx(2 * bytes / 100e9).epsilon(1e-6));
    else
      CHECK(seconds == doctest::Approx(1e-6 + bytes / 100e9).epsilon(1e-6));
  }
  for (const int64_t slot : prices.slot_bytes) CHECK(slot == static_cast<int64_t>(bytes));
  const auto experts = expert_prices(model, s, nodes);
  REQUIRE(experts.size() == 1);
  CHECK(experts.at(0).bytes == static_cast<int64_t>(bytes));
  CHECK(experts.at(0).seconds_per_expert ==
        doctest::Approx(4 * bytes / 100e9 + 1e-6 + bytes / 100e9).epsilon(1e-6));
  CHECK(experts.at(0).seconds_per_row > 0);
}
