#include <piper/schedule/reductions.h>
#include <piper/strategy/rank_layout.h>

namespace piper::schedule {

using graph::TaskId;

void Reductions::reduce(const Segment& segment, const std::vector<Rank>& members, TaskId after) {
  if (members.size() > 1) tasks_.push_back(writer_.reduce(segment, members, {after}));
}

void Reductions::write_layer(int32_t layer) {
  const strategy::RankLayout& layout = writer_.step().layout;
  const TaskId last = writer_.last_compute();
  writer_.begin(graph::Phase::kUpdate, -1);
  reduce({SegmentKind::kDenseGradients, layer}, layout.group(strategy::Axis::kData, writer_.rank()),
         last);
  if (layer >= 0 && writer_.step().model.layers[layer].feed_forward.is_moe())
    reduce({SegmentKind::kExpertGradients, layer},
           layout.group(strategy::Axis::kExpertData, writer_.rank()), last);
}

void Reductions::write_tied_embedding() {
  const strategy::RankLayout& layout = writer_.step().layout;
  const strategy::Coordinates& at = writer_.at();
  const int64_t last_stage = layout.num_stages() - 1;
  const bool is_end = at.pp == 0 || at.pp == last_stage;
  if (!writer_.step().model.shares_embedding() || !strategy::ends_apart(writer_.step().strategy) ||
      !is_end)
    return;
  const std::vector<Rank> ends = {layout.rank(0, at.member), layout.rank(last_stage, at.member)};
  // It sums what the data group has summed, so it waits for all of that; by then there is nothing
  // to overlap with.
  graph::ShortList<TaskId> after = tasks_;
  after.push_back(writer_.last_compute());
  tasks_.push_back(writer_.reduce({SegmentKind::kTiedEmbedding, -1}, ends, after));
}

void Reductions::write_update() {
  writer_.begin(graph::Phase::kUpdate, -1);
  write_tied_embedding();
  const TaskId norm = writer_.compute({SegmentKind::kGradientNorm, -1}, {}, tasks_);
  const std::vector<Rank> world = writer_.step().layout.world();
  TaskId statistics = TaskId::none();
  if (world.size() > 1) statistics = writer_.reduce({SegmentKind::kStatistics, -1}, world, {norm});
  writer_.compute({SegmentKind::kOptimizer, -1}, {}, {statistics});
}

}  // namespace piper::schedule
