#include <piper/schedule/state_tasks.h>
#include <piper/strategy/rank_layout.h>
#include <piper/strategy/residual_code.h>

#include <algorithm>
#include <utility>

namespace piper::schedule {

using graph::Phase;
using graph::SlotId;
using graph::TaskId;
using graph::TaskKind;
using strategy::Axis;

StateTasks::StateTasks(RankWriter& writer)
    : writer_(writer),
      style_(writer.step().style),
      zero_(writer.step().strategy.zero),
      start_(writer.step().strategy.reduction_start),
      beside_(style_.exposes_param_sync ? ComputePart::kBeside : ComputePart::kWhole) {
  const bool keeps = style_.keeps_weights_in_pipelines && writer.step().strategy.mesh.pp > 1;
  gathers_always_ = zero_ == 3 && !keeps;
  reduces_always_ = zero_ >= 2 && !keeps;
  holds_weights_ = gathers_always_ && style_.states_in_slots;
}

TaskId StateTasks::post_one(What what, Axis axis, const Segment& segment,
                            const PendingTasks& behind, bool is_waited_for, const Slots& slots) {
  const bool gathers = what == What::kGather;
  // Updated weights wait for nobody.
  const bool is_free = gathers && writer_.phase() == Phase::kForward && !gathers_always_;
  graph::List<TaskId> after;
  if (!is_free) {
    after = style_.in_order ? behind.all() : behind.earlier;
    if (!style_.in_order || !behind.computed.valid()) after.push_back(writer_.last_compute());
  }
  if (style_.param_sync_has_stream && !is_waited_for) {
    after.push_back(last_state_);
    last_state_ = writer_.collective(TaskKind::kStateCollective, axis, segment, {}, after);
    return last_state_;
  }
  return writer_.collective(gathers ? TaskKind::kAllGather : reduction_of(segment), axis, segment,
                            slots, after);
}

TaskKind StateTasks::reduction_of(const Segment& segment) const {
  const bool in_full =
      zero_ == 0 || (is_summed_by_ends(segment.layer) && (zero_ == 1 || style_.states_in_slots));
  return in_full ? TaskKind::kAllReduce : TaskKind::kReduceScatter;
}

// Behind the last backward that adds to either: those of homes have all when it is done.
TaskId StateTasks::bring_copies_home(int32_t layer, const PendingTasks& behind,
                                     const Slots& homes) {
  graph::List<TaskId> after = behind.earlier;
  after.push_back(writer_.last_compute());
  return writer_.collective(TaskKind::kReduceScatter, Axis::kExpert,
                            {SegmentKind::kCopiedGradients, layer}, homes, after);
}

TaskId StateTasks::spread_copies(int32_t layer, const graph::List<TaskId>& gathered,
                                 const Slots& homes) {
  return writer_.collective(TaskKind::kAllGather, Axis::kExpert,
                            {SegmentKind::kCopiedWeights, layer}, homes, gathered);
}

StateTasks::Tasks StateTasks::post(What what, int32_t layer, ComputePart share,
                                   const PendingTasks& behind, bool is_waited_for) {
  Tasks posted;
  PendingTasks behind_copies = behind;
  if (what == What::kReduce && copies_experts(writer_.step(), layer)) {
    posted.push_back(bring_copies_home(layer, behind, {}));
    behind_copies.wait_for(posted.back());
  }
  if (what == What::kReduce || zero_ > 0)
    for (const StateBuffer& buffer : state_buffers(writer_.step(), layer)) {
      const SegmentKind kind = what == What::kGather ? buffer.weights : buffer.gradients;
      const bool is_of_experts = kind == SegmentKind::kExpertGradients;
      // An evaluation computes with what all were told (strategy/residual_code.h).
      if (kind == SegmentKind::kExpertWeights && style_.evaluates &&
          strategy::compresses_experts(writer_.step().strategy))
        continue;
      posted.push_back(post_one(what, axis_of(TaskKind::kAllReduce, kind), {kind, layer, share},
                                is_of_experts ? behind_copies : behind, is_waited_for));
    }
  if (what == What::kGather && copies_experts(writer_.step(), layer)) {
    graph::List<TaskId> gathered;
    for (const TaskId task : posted) gathered.push_back(task);
    posted.push_back(spread_copies(layer, gathered, {}));
  }
  if (what == What::kReduce && !is_waited_for && !style_.param_sync_has_stream)
    for (const TaskId task : posted) reduced_.push_back(task);
  return posted;
}

void StateTasks::hold_back(int32_t layer, const PendingTasks& behind) {
  graph::List<TaskId> after = behind.earlier;
  after.push_back(writer_.last_compute());
  const bool has_copies = copies_experts(writer_.step(), layer);
  bool is_alone = has_copies;  // copies whose homes nobody else holds
  for (const StateBuffer& buffer : state_buffers(writer_.step(), layer)) {
    if (has_copies && buffer.gradients == SegmentKind::kExpertGradients) {
      held_back_.push_back({SegmentKind::kCopiedGradients, layer, after});
      is_alone = false;
    }
    held_back_.push_back({buffer.gradients, layer, after});
  }
  if (is_alone) held_back_.push_back({SegmentKind::kCopiedGradients, layer, after});
}

void StateTasks::start_held_back(size_t most, TaskId behind, bool in_turn) {
  const Phase phase = writer_.phase();
  const int32_t micro_batch = writer_.micro_batch();
  writer_.begin(Phase::kUpdate, -1);
  for (; most > 0 && !held_back_.empty(); --most) {
    const HeldBack held = held_back_.front();
    held_back_.pop_front();
    const Segment segment{held.gradients, held.layer};
    const bool are_copies = held.gradients == SegmentKind::kCopiedGradients;
    graph::List<TaskId> after = held.behind;
    after.push_back(behind);
    // Copies' gradients come home before their layer's are summed.
    if (in_turn || come_home_) after.push_back(last_started_);
    come_home_ = are_copies;
    last_started_ = writer_.collective(
        are_copies ? TaskKind::kReduceScatter : reduction_of(segment),
        are_copies ? Axis::kExpert : axis_of(TaskKind::kAllReduce, held.gradients), segment, {},
        after, graph::Stream::kStates);
    reduced_.push_back(last_started_);
  }
  writer_.begin(phase, micro_batch);
}

void StateTasks::let_pass(TaskId exchange) {
  if (!exchange.valid()) return;
  passed_ = exchange;
  has_let_pass_ = true;
  if (start_ == strategy::ReductionStart::kYielding)
    start_held_back(strategy::num_let_pass(held_back_.size()), exchange, true);
}

void StateTasks::gather_ahead(const std::vector<Ahead>& layers) {
  if (gathers_always_ || !style_.overlaps_param_sync) return;
  for (const Ahead& ahead : layers)
    ahead_.emplace_back(ahead.needed_by, post(What::kGather, ahead.layer, beside_, {}, false));
}

// The first layers' states are brought while the world sums the statistics.
void StateTasks::update_from_host(const std::vector<int32_t>& layers, TaskId behind) {
  constexpr size_t kOnDevice = 2;  // layers
  std::vector<SlotId> states;
  const auto bring = [&] {
    const size_t i = states.size();
    if (i == layers.size()) return;
    states.push_back(
        writer_.slot(SlotKind::kOptimizerStates, {SegmentKind::kUpdateLayer, layers[i]}));
    writer_.host_copy(layers[i], {.writes = {states[i]}}, {behind});
  };
  for (size_t i = 0; i < kOnDevice; ++i) bring();
  for (size_t i = 0; i < layers.size(); ++i) {
    const TaskId updated =
        writer_.compute({SegmentKind::kUpdateLayer, layers[i]}, {.reads = {states[i]}});
    writer_.host_copy(layers[i], {.reads = {states[i]}, .frees = {states[i]}}, {updated});
    bring();
  }
}

void StateTasks::scatter(int32_t layer, const PendingTasks& behind, bool is_last) {
  const bool takes_copies = is_last && copies_experts(writer_.step(), layer);
  bool has_taken = false;
  Travelling of{.layer = layer, .phase = writer_.phase(), .micro_batch = writer_.micro_batch()};
  for (const StateBuffer& buffer : state_buffers(writer_.step(), layer)) {
    const Segment segment{buffer.gradients, layer};
    Slots slots;
    SlotId added = writer_.take_gradients(segment);
    if (added.valid())
      slots.reads = {added};
    else
      slots.writes = {added = writer_.slot(SlotKind::kGradients, segment)};
    PendingTasks ready = behind;
    if (takes_copies && segment.kind == SegmentKind::kExpertGradients) {
      ready.wait_for(bring_copies_home(layer, behind, slots));
      slots = {.reads = {added}};
      has_taken = true;
    }
    of.tasks.push_back(post_one(What::kReduce, axis_of(TaskKind::kAllReduce, segment.kind), segment,
                                ready, false, slots));
    of.buffers.push_back(added);
  }
  if (!of.buffers.empty()) travelling_.push_back(of);
  // If nobody else holds the homes, no reduction above has taken the copies' gradients home.
  if (takes_copies && !has_taken) reduced_.push_back(bring_copies_home(layer, behind, {}));
}

void StateTasks::keep(const Travelling& of) {
  const Phase phase = writer_.phase();
  const int32_t micro_batch = writer_.micro_batch();
  writer_.begin(of.phase, of.micro_batch);
  writer_.compute({SegmentKind::kKeepGradients, of.layer},
                  {.reads = of.buffers, .frees = of.buffers}, of.tasks);
  writer_.begin(phase, micro_batch);
}

void StateTasks::keep(size_t num_first) {
  for (size_t i = 0; i < num_first; ++i) keep(travelling_[i]);
  travelling_.erase(travelling_.begin(),
                    travelling_.begin() + static_cast<std::ptrdiff_t>(num_first));
}

// A head adds to its gradients in the forward already, to the embedding's where that is its table.
// A module adds to the embedding's as well, and to those of the norm before it.
void StateTasks::keep_before(int32_t layer, const Place& place) {
  if (place.phase == Phase::kForward && layer != kHead) return;
  const StepWriter& step = writer_.step();
  const bool is_module = layer >= step.model.num_layers();
  const bool has_table = is_module || (layer == kHead && step.model.tied_embeddings);
  for (auto of = travelling_.begin(); of != travelling_.end();) {
    const bool is_added_to = of->layer == layer || (has_table && of->layer == kEmbedding) ||
                             (is_module && of->layer == layer_before_module(step, layer));
    if (is_added_to) keep(*of);
    of = is_added_to ? travelling_.erase(of) : of + 1;
  }
}

// An embedding's backward adds rows to its table, and experts' weights' part multiplies what was
// kept; a head on the first table's rank computes with that. A module computes with the embedding,
// with the norm before it and with the head, whose weights are those of the model's own.
graph::List<StateTasks::WeightsKey> StateTasks::weights_of(int32_t layer,
                                                           const Place& place) const {
  const StepWriter& step = writer_.step();
  const bool is_weights_part = place.phase == Phase::kBackwardWeights;
  graph::List<WeightsKey> keys;
  if (layer == kEmbedding && place.phase != Phase::kForward) return keys;
  if (layer == kHead && is_weights_part) return keys;
  const auto add = [&](int32_t of) {
    for (const StateBuffer& buffer : state_buffers(step, of))
      if (!is_weights_part || buffer.weights != SegmentKind::kExpertWeights)
        keys.push_back({buffer.weights, of});
  };
  add(layer);
  const bool is_module = layer >= step.model.num_layers();
  const bool is_apart = strategy::ends_apart(step.strategy);
  if (is_module) {
    const int32_t before = layer_before_module(step, layer);
    // The norm is among what ranks hold whole: in the first buffer.
    const graph::List<StateBuffer> buffers = state_buffers(step, before);
    if (before != kHead && !buffers.empty() &&
        buffers.begin()->weights != SegmentKind::kExpertWeights)
      keys.push_back({buffers.begin()->weights, before});
    add(kHead);
  }
  if (is_module ? !(step.model.tied_embeddings && is_apart)
                : layer == kHead && step.model.tied_embeddings && !is_apart)
    add(kEmbedding);
  return keys;
}

void StateTasks::hold_weights(int32_t layer, const Place& place, PendingTasks& posted) {
  const TaskId before = writer_.last_compute();
  const bool is_held_already = layer == kHead && place.phase != Phase::kForward;
  Slots homes;
  graph::List<TaskId> gathered;
  for (const WeightsKey& key : weights_of(layer, place)) {
    Held& held = held_[key];
    if (!is_held_already && held.count++ == 0) {
      const Segment segment{key.first, key.second};
      held.weights = writer_.slot(SlotKind::kWeights, segment);
      held.gathered =
          writer_.collective(TaskKind::kStateCollective, axis_of(TaskKind::kAllGather, key.first),
                             segment, {.writes = {held.weights}}, {gather_guard_, held.dropped});
    }
    posted.wait_for(held.gathered);
    if (key.first == SegmentKind::kExpertWeights && key.second == layer) {
      homes.reads.push_back(held.weights);
      gathered.push_back(held.gathered);
    }
  }
  // Copies stay for all of the step.
  if (copies_experts(writer_.step(), layer) && has_copies_.insert(layer).second)
    posted.wait_for(spread_copies(layer, gathered, homes));
  gather_guard_ = before;
}

void StateTasks::drop_weights(int32_t layer, const Place& place) {
  if (layer == kHead && place.phase == Phase::kForward && !style_.evaluates) return;
  graph::List<SlotId> dropped;
  graph::List<WeightsKey> keys;
  for (const WeightsKey& key : weights_of(layer, place)) {
    Held& held = held_.at(key);
    if (--held.count > 0) continue;
    dropped.push_back(held.weights);
    keys.push_back(key);
  }
  if (dropped.empty()) return;
  const TaskId task =
      writer_.compute({SegmentKind::kDropWeights, layer}, {.reads = dropped, .frees = dropped});
  for (const WeightsKey& key : keys) held_.at(key).dropped = task;
}

void StateTasks::begin(int32_t layer, const Place& place, PendingTasks& posted) {
  keep_before(layer, place);
  if (holds_weights_) {
    hold_weights(layer, place, posted);
  } else if (gathers_always_ && place.phase != Phase::kBackwardWeights) {
    const ComputePart waited = style_.exposes_param_sync ? ComputePart::kRest : ComputePart::kWhole;
    for (const TaskId task : post(What::kGather, layer, waited, posted, true))
      posted.wait_for(task);
    if (style_.exposes_param_sync && style_.overlaps_param_sync)
      posted.beside = post(What::kGather, layer, beside_, posted, false);
  } else if (place.phase == Phase::kForward) {
    for (const auto& [needed_by, tasks] : ahead_)
      if (needed_by == layer)
        for (const TaskId task : tasks) posted.wait_for(task);
    std::erase_if(ahead_, [&](const auto& ahead) { return ahead.first == layer; });
  }
  if (reduces_always_ && place.makes_gradients && style_.overlaps_param_sync &&
      style_.exposes_param_sync)
    for (const TaskId task : post(What::kReduce, layer, beside_, posted, false))
      posted.beside.push_back(task);
}

void StateTasks::end(int32_t layer, const Place& place, PendingTasks& posted) {
  for (const TaskId task : std::exchange(posted.beside, {})) posted.wait_for(task);
  if (holds_weights_) drop_weights(layer, place);
  if (divides_gradients(writer_.step(), layer)) {
    const size_t before = travelling_.size();
    if (place.makes_gradients) scatter(layer, posted, place.is_last);
    // The ends are too short for others to travel beside them.
    if (layer >= 0) keep(before);
    return;
  }
  // Nothing travels that they would be in the way of.
  if (!std::exchange(has_let_pass_, false) && start_ == strategy::ReductionStart::kYielding)
    start_held_back(held_back_.size(), TaskId::none(), false);
  if (!place.makes_gradients) return;
  const bool is_in_full = style_.states_in_slots && is_summed_by_ends(layer);
  if (reduces_always_ && !is_in_full) {
    if (style_.exposes_param_sync)
      for (const TaskId task : post(What::kReduce, layer, ComputePart::kRest, posted, true))
        posted.wait_for(task);
    else
      post(What::kReduce, layer, beside_, posted, false);
  } else if (place.is_last && start_ != strategy::ReductionStart::kReady) {
    hold_back(layer, posted);
  } else if (place.is_last && style_.overlaps_param_sync) {
    writer_.begin(Phase::kUpdate, -1);
    post(What::kReduce, layer, beside_, posted, false);
    writer_.begin(place.phase, place.micro_batch);
  }
}

bool StateTasks::is_summed_by_ends(int32_t layer) const {
  const StepWriter& step = writer_.step();
  if (!strategy::ends_apart(step.strategy)) return false;
  if (step.model.tied_embeddings) return layer == kEmbedding || layer == kHead;
  return style_.has_mtp_modules && step.model.copies_embedding() && layer == kEmbedding;
}

void StateTasks::write_tied_embedding() {
  const int64_t stage = writer_.at().pp;
  const bool is_end = stage == 0 || stage == writer_.step().layout.num_stages() - 1;
  if (!is_summed_by_ends(kEmbedding) || !is_end) return;
  // It sums what the data group has summed, so it waits for all of that; by then there is nothing
  // to overlap with.
  graph::List<TaskId> after = reduced_;
  after.push_back(writer_.last_compute());
  reduced_.push_back(writer_.collective(TaskKind::kAllReduce, Axis::kEmbeddingTable,
                                        {SegmentKind::kTiedEmbedding, -1}, {}, after));
}

// The rest of all of a stage's states, one after the other.
void StateTasks::post_rest(What what, TaskId behind) {
  const bool always = what == What::kGather ? gathers_always_ : reduces_always_;
  if (always || !style_.exposes_param_sync || (what == What::kGather && zero_ == 0)) return;
  const bool gathers = what == What::kGather;
  PendingTasks before;
  before.wait_for(behind);
  for (const auto& [axis, weights, gradients] :
       {std::tuple{Axis::kData, SegmentKind::kDenseWeights, SegmentKind::kDenseGradients},
        {Axis::kExpertData, SegmentKind::kExpertWeights, SegmentKind::kExpertGradients}}) {
    if (writer_.step().layout.size(axis) < 2) continue;
    const TaskId task = post_one(
        what, axis, {gathers ? weights : gradients, -1, ComputePart::kRest}, before, false);
    before.wait_for(task);
    if (!gathers) reduced_.push_back(task);
  }
}

void StateTasks::write_update(const std::vector<int32_t>& layers) {
  keep(travelling_.size());
  for (HeldBack& held : held_back_) held.behind.push_back(writer_.last_compute());
  start_held_back(held_back_.size(), passed_, false);
  writer_.begin(Phase::kUpdate, -1);
  post_rest(What::kReduce, TaskId::none());
  reduced_.push_back(last_state_);
  if (!style_.evaluates) write_tied_embedding();
  const TaskId norm = writer_.compute({SegmentKind::kGradientNorm, -1}, {}, reduced_);
  TaskId summed = TaskId::none();
  if (writer_.step().layout.num_ranks() > 1)
    summed = writer_.collective(TaskKind::kAllReduce, Axis::kWorld, {SegmentKind::kStatistics, -1},
                                {}, {norm});
  TaskId last = writer_.compute({SegmentKind::kOptimizer, -1}, {}, {summed});
  if (style_.evaluates) return;
  if (strategy::offloads_optimizer(writer_.step().strategy.offload)) {
    if (style_.updates_on_device)
      update_from_host(layers, norm);
    else
      last = writer_.host_copy(-1, {}, {last});
  }
  post_rest(What::kGather, last);
}

}  // namespace piper::schedule
