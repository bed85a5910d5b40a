// The table of pipeline schedules that everybody quotes, from the simulation: with p stages, m
// micro-batches, F and B seconds for a stage's forward and backward and free communication, the
// bubble is (p-1)(F+B) under GPipe and under 1F1B; the peak of activations is m under GPipe and p-i
// at stage i under 1F1B, and never above m.
#include <doctest/doctest.h>
#include <piper/sim/simulate.h>
#include <piper/strategy/rank_layout.h>
#include <testing/schedule/example_model.h>
#include <testing/sim/example_prices.h>

#include <algorithm>

using namespace piper;
using schedule::SegmentKind;
using schedule::SlotKind;
using schedule::StepGraph;
using strategy::PipelineSchedule;
using strategy::Recompute;

namespace {

constexpr double kStageForward = 3, kStageBackward = 7;

StepGraph pipeline(int64_t p, int64_t m, PipelineSchedule schedule,
                   Recompute recompute = Recompute::kNone) {
  return schedule::write_step(
      schedule::example::model(std::vector<int64_t>(p, 0)),
      schedule::example::strategy({.pp = p, .ep = 1, .dp = 1}, p, m, schedule, recompute));
}

// One layer a stage: F = 1 + 2, B = 3 + 4; embedding, head and update are free.
cost::Prices pipeline_prices(const StepGraph& step) {
  cost::Prices out = sim::example::priced(step, [&](const graph::Task& task) {
    if (task.kind != graph::TaskKind::kCompute) return 0.0;
    const bool forward = task.phase != graph::Phase::kBackward;
    const SegmentKind kind = step.segment(task).kind;
    if (kind == SegmentKind::kAttention) return forward ? 1.0 : 3.0;
    if (kind == SegmentKind::kDenseMlp) return forward ? 2.0 : 4.0;
    return 0.0;
  });
  // One byte for what a stage keeps of a micro-batch.
  for (size_t i = 0; i < out.slot_bytes.size(); ++i) {
    const schedule::SlotMeaning& meaning = step.meaning(graph::SlotId(i));
    out.slot_bytes[i] =
        meaning.kind == SlotKind::kTape && meaning.segment.kind == SegmentKind::kAttention;
  }
  return out;
}

}  // namespace

TEST_CASE("two stages and two micro-batches of 1F1B, second by second") {
  // stage 0  F0 F1 .. .. .. ..  B0 ......  B1      F 3 s, B 7 s
  // stage 1  .. F0 B0 ...... F1 B1 ......
  const StepGraph step = pipeline(2, 2, PipelineSchedule::k1F1B);
  const graph::Timeline timeline = sim::simulate(step, pipeline_prices(step));
  const auto start = [&](int rank, const std::string& name) {
    for (const graph::Task& task : step.graph.tasks())
      if (task.rank == Rank(rank) && task_name(step, task) == name)
        return timeline.tasks[task.id.index()].start_seconds;
    return -1.0;
  };
  CHECK(start(0, "F0 L0 attention") == 0);
  CHECK(start(0, "F1 L0 attention") == 3);
  CHECK(start(1, "F0 L1 attention") == 3);
  CHECK(start(1, "B0 L1 dense mlp") == 6);
  CHECK(start(1, "F1 L1 attention") == 13);
  CHECK(start(0, "B0 L0 dense mlp") == 13);
  CHECK(start(1, "B1 L1 dense mlp") == 16);
  CHECK(start(0, "B1 L0 dense mlp") == 23);
  CHECK(timeline.seconds() == 30);  // (m + p - 1)(F + B)
}

TEST_CASE("the bubble is (p-1)(F+B) under both schedules") {
  for (const int64_t p : {1, 2, 4, 7})
    for (const int64_t m : {1, 2, 4, 7, 16})
      for (const PipelineSchedule schedule : {PipelineSchedule::kGPipe, PipelineSchedule::k1F1B}) {
        const StepGraph step = pipeline(p, m, schedule);
        const double busy = static_cast<double>(m) * (kStageForward + kStageBackward);
        CAPTURE(p);
        CAPTURE(m);
        CHECK(sim::simulate(step, pipeline_prices(step)).seconds() - busy ==
              static_cast<double>(p - 1) * (kStageForward + kStageBackward));
      }
}

TEST_CASE("activations peak at m under GPipe and at p-i under 1F1B") {
  for (const int64_t p : {1, 2, 4, 7})
    for (const int64_t m : {1, 2, 4, 7, 16}) {
      const StepGraph gpipe = pipeline(p, m, PipelineSchedule::kGPipe);
      const StepGraph one_f_one_b = pipeline(p, m, PipelineSchedule::k1F1B);
      const graph::Timeline a = sim::simulate(gpipe, pipeline_prices(gpipe)),
                            b = sim::simulate(one_f_one_b, pipeline_prices(one_f_one_b));
      for (int64_t i = 0; i < p; ++i) {
        CHECK(a.peak_bytes[i] == m);
        CHECK(b.peak_bytes[i] == std::min(m, p - i));
      }
    }
}

TEST_CASE("recomputation costs one forward for each backward, the bubble stays as it was") {
  // A layer's second forward needs no gradient: while the pipeline drains it runs ahead, in the
  // bubble.
  const StepGraph step = pipeline(4, 8, PipelineSchedule::k1F1B, Recompute::kFull);
  const graph::Timeline timeline = sim::simulate(step, pipeline_prices(step));
  CHECK(timeline.seconds() == 8 * (kStageForward + kStageForward + kStageBackward) +
                                  3 * (kStageForward + kStageBackward));
  for (const int64_t peak : timeline.peak_bytes) CHECK(peak == 1);  // one tape at a time
}

TEST_CASE("a transfer is hidden when its receive is posted ahead, and costs its time at the ends") {
  // Steady state under GPipe: stage 1 has F_{j} to compute while F_{j+1} arrives, as long as the
  // transfer (1 s) is no longer than F. Filling: one transfer each way stays visible.
  const StepGraph step = pipeline(2, 8, PipelineSchedule::kGPipe);
  cost::Prices with_transfers = pipeline_prices(step);
  for (const graph::Task& task : step.graph.tasks())
    if (task.operation.valid() && !task.group.valid()) with_transfers.seconds[task.id.index()] = 1;
  CHECK(sim::simulate(step, with_transfers).seconds() ==
        (8 + 1) * (kStageForward + kStageBackward) + 1 + 1);
}

TEST_CASE("one pipeline of a mesh takes as long as the whole when all are alike") {
  const model::Model model = schedule::example::model({4, 4, 4, 4});
  const strategy::Strategy strategy =
      schedule::example::strategy({.pp = 4, .ep = 2, .dp = 4}, 4, 8);
  const auto seconds = [&](const std::vector<Rank>& ranks) {
    const StepGraph step = schedule::write_step(model, strategy, ranks);
    return sim::simulate(step, sim::example::priced(
                                   step,
                                   [&](const graph::Task& task) {
                                     return task.kind == graph::TaskKind::kCompute
                                                ? 1.0 + static_cast<double>(step.segment(task).kind)
                                                : 0.5;
                                   }))
        .seconds();
  };
  CHECK(seconds(strategy::RankLayout(strategy).group(strategy::Axis::kPipeline, Rank(1))) ==
        seconds({}));
}
