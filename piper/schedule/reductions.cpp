#include <piper/schedule/reductions.h>
#include <piper/strategy/rank_layout.h>

namespace piper::schedule {

using graph::TaskId;

void Reductions::reduce(strategy::Axis axis, const Segment& segment,
                        const graph::ShortList<TaskId>& after) {
  if (writer_.step().layout.size(axis) > 1)
    tasks_.push_back(writer_.collective(graph::TaskKind::kAllReduce, axis, segment, {}, after));
}

void Reductions::write_layer(int32_t layer) {
  const TaskId last = writer_.last_compute();
  writer_.begin(graph::Phase::kUpdate, -1);
  reduce(strategy::Axis::kData, {SegmentKind::kDenseGradients, layer}, {last});
  if (layer >= 0 && writer_.step().model.layers[layer].feed_forward.is_moe())
    reduce(strategy::Axis::kExpertData, {SegmentKind::kExpertGradients, layer}, {last});
}

void Reductions::write_tied_embedding() {
  const StepWriter& step = writer_.step();
  const int64_t stage = writer_.at().pp;
  const bool is_end = stage == 0 || stage == step.layout.num_stages() - 1;
  if (!step.model.shares_embedding() || !strategy::ends_apart(step.strategy) || !is_end) return;
  // It sums what the data group has summed, so it waits for all of that; by then there is nothing
  // to overlap with.
  graph::ShortList<TaskId> after = tasks_;
  after.push_back(writer_.last_compute());
  reduce(strategy::Axis::kEnds, {SegmentKind::kTiedEmbedding, -1}, after);
}

void Reductions::write_update() {
  writer_.begin(graph::Phase::kUpdate, -1);
  write_tied_embedding();
  const TaskId norm = writer_.compute({SegmentKind::kGradientNorm, -1}, {}, tasks_);
  tasks_ = {};
  reduce(strategy::Axis::kWorld, {SegmentKind::kStatistics, -1}, {norm});
  writer_.compute({SegmentKind::kOptimizer, -1}, {}, tasks_);
}

}  // namespace piper::schedule
