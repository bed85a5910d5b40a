#include <doctest/doctest.h>
#include <fmt/format.h>
#include <piper/cost/executor_estimator.h>
#include <piper/cost/walked_memory.h>
#include <piper/strategy/rank_layout.h>
#include <piper/strategy/runnable.h>
#include <testing/cost/example_model.h>

namespace piper::cost {
namespace {

using strategy::Offload;
using strategy::PipelineSchedule;
using strategy::Strategy;

// Walks every task of every micro-batch.
StageMemory walked_whole(const model::Model& model, const cluster::Cluster& cluster,
                         const Strategy& s, int64_t pp_rank) {
  const schedule::StepGraph step =
      schedule::write_step(model, s, {strategy::RankLayout(s).rank(pp_rank, 0)});
  return walked_memory(step, step_bytes(step, model, s, cluster, {}));
}

}  // namespace

TEST_CASE("a walk over a few micro-batches finds what one over all finds") {
  const model::Model model = example::mixture(8);
  const cluster::Cluster cluster = example::nodes();
  int num_with_more = 0;
  for (const PipelineSchedule schedule : strategy::kPipelineSchedules)
    for (const int64_t zero : {0, 2, 3})
      for (const Offload offload : strategy::kOffloads)
        for (const strategy::Recompute recompute :
             {strategy::Recompute::kNone, strategy::Recompute::kFull})
          for (const int64_t count : {8, 20}) {
            Strategy s = example::strategy(model, 2, 2, 2, count);
            s.schedule = schedule;
            if (strategy::is_v(schedule) || strategy::interleaves(schedule)) s.mesh.vpp = 2;
            s.layers_per_stage =
                strategy::even_split(model.num_layers(), s.mesh.num_virtual_stages());
            s.zero = zero;
            s.offload = offload;
            s.recompute = recompute;
            if (zero == 3 && strategy::pairs_share_layers(schedule)) continue;
            REQUIRE(strategy::not_runnable(s).empty());
            INFO(fmt::format("{} zero {} offload {} recompute {} x{}", strategy::name(schedule),
                             zero, strategy::name(offload), strategy::name(recompute), count));
            num_with_more += micro_batches_to_walk(s) < count ? 1 : 0;
            ExecutorEstimator estimator(model, cluster, s.precision, s.sequence);
            const std::vector<StageMemory> stages = estimator.memory(s);
            // Where a closed form stands for the walk, see plan/closed_form_test.cpp.
            const bool is_walked = zero >= 2 || offload != Offload::kNone ||
                                   strategy::pairs(schedule) ||
                                   strategy::splits_backward(schedule) || s.mesh.vpp > 1;
            if (!is_walked) continue;
            for (int64_t rank = 0; rank < s.mesh.pp; ++rank) {
              const StageMemory whole = walked_whole(model, cluster, s, rank);
              const StageMemory& stage = stages[static_cast<size_t>(rank)];
              CHECK(stage.working == whole.working);
              CHECK(stage.activations.total() == whole.activations.total());
              if (!strategy::offloads_optimizer(offload)) CHECK(stage.host == whole.host);
            }
          }
  CHECK(num_with_more > 80);
}

}  // namespace piper::cost
