// Every pipeline schedule, lowered to a graph and simulated, against its list of actions simulated
// alone.
#include <doctest/doctest.h>
#include <piper/cost/bubble.h>
#include <piper/cost/pipeline_simulator.h>
#include <piper/sim/simulate.h>
#include <testing/cost/relative_approx.h>
#include <testing/schedule/example_model.h>
#include <testing/sim/example_prices.h>

#include <algorithm>

using namespace piper;
using cost::near;
using graph::Phase;
using schedule::SegmentKind;
using schedule::SlotKind;
using schedule::StepGraph;
using strategy::PipelineSchedule;

namespace {

constexpr double kForward = 3, kInput = 3.5, kWeights = 2.5, kMessage = 0.25;

// The list of actions has a pair's micro-batches one after the other, so the graph does, too,
// unless they take turns.
StepGraph pipeline_of(PipelineSchedule schedule, int64_t pp, int64_t vpp, int64_t m,
                      bool pairs_take_turns = false) {
  const int64_t layers = pp * vpp;
  strategy::Strategy s =
      schedule::example::strategy({.pp = pp, .ep = 1, .dp = 1}, layers, m, schedule);
  s.mesh.vpp = vpp;
  s.layers_per_stage.assign(static_cast<size_t>(layers), 1);
  return schedule::write_step(
      schedule::example::model(std::vector<int64_t>(static_cast<size_t>(layers), 0)), s, {},
      {.pairs_take_turns = pairs_take_turns});
}

// One layer a virtual stage; embedding, head and update are free. One byte for what a chunk keeps
// of a micro-batch.
cost::Prices prices(const StepGraph& step) {
  cost::Prices out = sim::example::priced(step, [&](const graph::Task& task) {
    if (task.peer.valid()) return kMessage;
    if (task.kind != graph::TaskKind::kCompute) return 0.0;
    const SegmentKind kind = step.segment(task).kind;
    if (kind != SegmentKind::kAttention && kind != SegmentKind::kDenseMlp) return 0.0;
    const double share = kind == SegmentKind::kAttention ? 0.25 : 0.75;
    switch (task.phase) {
      case Phase::kForward:
      case Phase::kRecompute:
        return share * kForward;
      case Phase::kBackward:
        return share * (kInput + kWeights);
      case Phase::kBackwardInput:
        return share * kInput;
      case Phase::kBackwardWeights:
        return share * kWeights;
      case Phase::kUpdate:
        break;
    }
    return 0.0;
  });
  for (size_t i = 0; i < out.slot_bytes.size(); ++i) {
    const schedule::SlotMeaning& meaning = step.meaning(graph::SlotId(i));
    out.slot_bytes[i] =
        meaning.kind == SlotKind::kTape && meaning.segment.kind == SegmentKind::kAttention;
  }
  return out;
}

}  // namespace

TEST_CASE(
    "the simulated step takes as long, and holds as much, as the schedule's list of actions") {
  for (const PipelineSchedule schedule : strategy::kPipelineSchedules)
    for (const int64_t pp : {int64_t{1}, int64_t{2}, int64_t{4}, int64_t{7}})
      for (const int64_t m : {int64_t{1}, int64_t{3}, 2 * pp, 4 * pp}) {
        const int64_t vpp = strategy::is_v(schedule) ? 2 : strategy::interleaves(schedule) ? 3 : 1;
        if (strategy::interleaves(schedule) && (pp == 1 || m % pp != 0)) continue;
        CAPTURE(std::string(strategy::name(schedule)));
        CAPTURE(pp);
        CAPTURE(m);
        const StepGraph step = pipeline_of(schedule, pp, vpp, m);
        const graph::Timeline timeline = sim::simulate(step, prices(step));
        cost::PipelineSimulator simulator(schedule, pp, vpp, m);
        const std::vector<cost::ChunkSeconds> chunks(static_cast<size_t>(pp * vpp),
                                                     {.forward = kForward,
                                                      .backward_input = kInput,
                                                      .backward_weights = kWeights,
                                                      .backward = kInput + kWeights,
                                                      .send_forward = kMessage,
                                                      .send_backward = kMessage});
        double last = 0;
        for (const cost::RankSeconds& rank : simulator.simulate(chunks))
          last = std::max(last, rank.finish);
        CHECK(timeline.seconds() == near(last));
        const StepGraph in_turns = pipeline_of(schedule, pp, vpp, m, true);
        CHECK(sim::simulate(in_turns, prices(in_turns)).seconds() <= near(last));
        for (int64_t rank = 0; rank < pp; ++rank)
          CHECK(timeline.peak_bytes[static_cast<size_t>(rank)] ==
                cost::chunk_forwards_in_flight(schedule, pp, vpp, rank, m));
      }
}
