#include <doctest/doctest.h>
#include <piper/cost/trainer/stage_overlap.h>
#include <piper/model/import.h>

using namespace piper;

TEST_CASE("chunks of the same layers are held up alike by the states that travel beside them") {
  const model::Model model = model::load_model("qwen3-30b-a3b");
  const cluster::Cluster cluster = cluster::load_cluster("frontier");
  const cost::TrainerProfile trainer = cost::load_trainer("piper");
  strategy::Strategy s{.precision = strategy::Precision::kBf16, .sequence = 4096};
  s.schedule = strategy::PipelineSchedule::kDualPipeV;
  s.mesh = {.pp = 2, .ep = 4, .dp = 8, .tp = 4};
  s.mesh.vpp = 2;
  s.layers_per_stage = {12, 12, 12, 12};
  s.micro_batch_sequences = 1;
  s.num_micro_batches = 8;
  s.global_batch_sequences = 64;
  const cost::TrainerContext context{.model = model,
                                     .cluster = cluster,
                                     .trainer = trainer,
                                     .precision = s.precision,
                                     .sequence = s.sequence,
                                     .rates = cost::Rates(cluster, s.precision),
                                     .efficiency = 0.8};
  cost::ShapePricer shapes(context);
  cost::ScheduleFacts schedules;
  cost::SumsOfStages sums(context);
  cost::StageOverlaps overlaps(context, schedules);
  for (const int64_t zero : {2, 3}) {
    s.zero = zero;
    const cost::ShapePrices& prices = shapes.of(s, 1);
    // The second rank has the two chunks in the middle, without embedding and head.
    const cost::StageOverlap stage = overlaps.of(s, prices, sums.of(s, prices))[1];
    REQUIRE(stage.chunks.size() == 2);
    CAPTURE(zero);
    CHECK(stage.chunks[0].backward > 0);
    CHECK(stage.chunks[0].pair_saves == doctest::Approx(stage.chunks[1].pair_saves));
    CHECK(stage.chunks[0].forward == doctest::Approx(stage.chunks[1].forward));
  }
}
