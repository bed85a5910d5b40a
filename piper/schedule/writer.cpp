#include <piper/schedule/state_buffers.h>
#include <piper/schedule/writer.h>
#include <piper/strategy/rank_layout.h>
#include <piper/strategy/token_chunk.h>

#include <algorithm>

namespace piper::schedule {

using graph::NewTask;
using graph::SlotId;
using graph::TaskId;
using graph::TaskKind;

namespace {

constexpr size_t kNumSegmentKinds = static_cast<size_t>(SegmentKind::kWait) + 1;
constexpr size_t kNumShares = static_cast<size_t>(ComputePart::kBehind) + 1;
constexpr size_t kNumSlotKinds = static_cast<size_t>(SlotKind::kKept) + 1;
constexpr int32_t kFirstLayer = -2;

// A merge has no weights, a head's gradients are made in its forward, those of a ring step (latent
// attention's keys and values are made of latents there) at once, and those of a segment in parts
// with what is left of it.
bool has_weights_part(const Segment& segment) {
  return segment.kind != SegmentKind::kUnpermute && segment.kind != SegmentKind::kHead &&
         segment.kind != SegmentKind::kRingStep && segment.kind != SegmentKind::kKeepGradients &&
         segment.kind != SegmentKind::kDropWeights && segment.kind != SegmentKind::kWait &&
         (segment.share == ComputePart::kWhole || segment.share == ComputePart::kRest);
}

// Whether the weights' part of a segment reads a slot that its whole backward reads (step.h), as
// the `place`-th.
bool is_for_weights(SegmentKind segment, const SlotMeaning& slot, size_t place) {
  switch (slot.kind) {
    case SlotKind::kHidden:  // attention's is x, not x1, nor the x that was gathered
      return (segment != SegmentKind::kAttention && segment != SegmentKind::kProjection) ||
             place == (segment == SegmentKind::kProjection ? 3 : 1);
    case SlotKind::kReceived:  // not those that were gathered
    case SlotKind::kRows:
      return segment != SegmentKind::kExperts || place == 1;
    case SlotKind::kHiddenGradient:  // a join's is that of its layer's input
      return segment != SegmentKind::kGate && segment != SegmentKind::kProjection &&
             (segment != SegmentKind::kMtpProjection || place == 0);
    case SlotKind::kGathered:  // of a projection's: x, not the gradient of x1
      return segment != SegmentKind::kProjection || place == 3;
    case SlotKind::kQueries:
    case SlotKind::kKeysAndValues:
      return false;
    case SlotKind::kKeysAndValuesGradient:  // not the own part on a ring, which joins the rest
      return place == 1;
    case SlotKind::kRouting:
      return segment != SegmentKind::kGate;
    case SlotKind::kRowsGradient:
    case SlotKind::kReturnedGradient:
      return segment != SegmentKind::kGate;
    case SlotKind::kRoutingGradient:
      return false;
    default:
      return true;
  }
}

// The counter of `key` in a short list of pairs; returns what it was before.
template <class Key>
size_t count_up(std::vector<std::pair<Key, size_t>>& counters, const Key& key) {
  for (auto& [known, count] : counters)
    if (known == key) return count++;
  counters.emplace_back(key, 1);
  return 0;
}

template <class Id, class Entry>
Id intern(std::vector<int32_t>& ids, size_t index, std::vector<Entry>& entries,
          const Entry& entry) {
  if (ids[index] < 0) {
    ids[index] = static_cast<int32_t>(entries.size());
    entries.push_back(entry);
  }
  return Id(ids[index]);
}

}  // namespace

StepWriter::StepWriter(const model::Model& model, const strategy::Strategy& strategy,
                       const ExecutionStyle& style)
    : model(model), strategy(strategy), layout(strategy), style(style) {
  step_.graph = graph::Graph(layout.num_ranks());
  num_layers_ = model.layers.size() - kFirstLayer;
  // What is of all rows stands before the chunks, what has a hop has no chunk.
  const int64_t num_chunks = strategy::num_moe_chunks(strategy);
  const int64_t num_hops =
      strategy::has_ring(strategy) && style.follows_context_exchange ? strategy.mesh.cp : 1;
  const size_t tables =
      num_layers_ * static_cast<size_t>(std::max(num_chunks == 1 ? 1 : num_chunks + 1, num_hops));
  segment_ids_.assign(kNumShares * kNumSegmentKinds * tables, -1);
  shape_ids_.assign(kNumSlotKinds * kNumSegmentKinds * tables, -1);
}

graph::SegmentId StepWriter::id_of(const Segment& segment) {
  const size_t layer =
      segment.layer - kFirstLayer + static_cast<size_t>(segment.chunk + segment.hop) * num_layers_;
  const size_t of_layer = layer * kNumSegmentKinds + static_cast<size_t>(segment.kind);
  return intern<graph::SegmentId>(segment_ids_,
                                  of_layer * kNumShares + static_cast<size_t>(segment.share),
                                  step_.segments, segment);
}

graph::SlotShape StepWriter::id_of(const SlotMeaning& meaning) {
  const size_t layer =
      meaning.segment.layer - kFirstLayer +
      static_cast<size_t>(meaning.segment.chunk + meaning.segment.hop) * num_layers_;
  const size_t segment = layer * kNumSegmentKinds + static_cast<size_t>(meaning.segment.kind);
  return intern<graph::SlotShape>(shape_ids_,
                                  segment * kNumSlotKinds + static_cast<size_t>(meaning.kind),
                                  step_.slots, meaning);
}

graph::OperationId StepWriter::nth(std::vector<graph::OperationId>& operations, size_t n) {
  while (operations.size() <= n) operations.push_back(step_.graph.new_operation());
  return operations[n];
}

graph::OperationId StepWriter::exchange(graph::GroupId group, size_t n) {
  if (exchanges_.size() <= group.index()) exchanges_.resize(group.index() + 1);
  return nth(exchanges_[group.index()], n);
}

graph::OperationId StepWriter::message(Rank from, Rank to, const Message& message) {
  std::vector<graph::OperationId>& between =
      messages_[static_cast<uint64_t>(from.index()) << 32 | to.index()];
  const int64_t chunk = chunk_of_stage(strategy.mesh.pp, message.from_stage);
  const auto n =
      static_cast<size_t>((2 * chunk + (message.is_gradient ? 1 : 0)) * strategy.num_micro_batches +
                          message.micro_batch);
  if (between.size() <= n) between.resize(n + 1, graph::OperationId::none());
  if (!between[n].valid()) between[n] = step_.graph.new_operation();
  return between[n];
}

RankWriter::RankWriter(StepWriter& step, Rank rank)
    : step_(step),
      rank_(rank),
      at_(step.layout.coordinates(rank)),
      first_slot_(step.graph().slots().size()) {
  groups_.fill(graph::GroupId::none());
}

void RankWriter::begin(graph::Phase phase, int32_t micro_batch) {
  phase_ = phase;
  micro_batch_ = micro_batch;
}

SlotId RankWriter::slot(SlotKind kind, const Segment& segment) {
  writer_of_.push_back(TaskId::none());
  return step_.graph().add_slot({.rank = rank_,
                                 .shape = step_.id_of(SlotMeaning{kind, segment}),
                                 .micro_batch = micro_batch_});
}

void RankWriter::wait_for_writers(NewTask& task, const Slots& slots) const {
  TaskId last_computed = TaskId::none();
  for (const SlotId slot : slots.reads) {
    if (!slot.valid()) continue;
    const TaskId writer = writer_of_[slot.index() - first_slot_];
    if (!writer.valid()) continue;
    if (step_.graph().task(writer).kind != TaskKind::kCompute)
      task.dependencies.push_back(writer);
    else
      last_computed = std::max(last_computed, writer);
  }
  if (task.kind != TaskKind::kCompute) task.dependencies.push_back(last_computed);
}

TaskId RankWriter::write(NewTask task, const Slots& slots) {
  task.rank = rank_;
  task.phase = phase_;
  task.micro_batch = micro_batch_;
  task.reads = slots.reads;
  task.writes = slots.writes;
  task.frees = slots.frees;
  wait_for_writers(task, slots);
  const TaskId id = step_.graph().add(task);
  for (const SlotId slot : slots.writes)
    if (slot.valid()) writer_of_[slot.index() - first_slot_] = id;
  return id;
}

// What a weights' part of the layer that is still due reads is freed by the last of them.
void RankWriter::keep_for_weights(const Segment& segment, Slots& slots) {
  const auto reads = [&](const WeightsDue& of, SlotId freed) {
    return of.segment.layer == segment.layer &&
           std::ranges::find(of.reads, freed) != of.reads.end();
  };
  graph::List<SlotId> frees;
  for (const SlotId freed : slots.frees) {
    const bool is_due =
        std::ranges::any_of(weights_due_, [&](const WeightsDue& of) { return reads(of, freed); });
    (is_due ? weights_due_.back().frees : frees).push_back(freed);
  }
  slots.frees = frees;
}

void RankWriter::leave_weights(const Segment& segment, Slots& slots) {
  WeightsDue due{.segment = segment, .reads = {}, .frees = {}};
  size_t place = 0;
  for (const SlotId read : slots.reads)
    if (read.valid() && is_for_weights(segment.kind, step_.meaning(read), place++))
      due.reads.push_back(read);
  // If a layer has one slot for all, attention, last in its backward, stands for all its segments.
  const bool recomputes = step_.strategy.recompute_of(at_.pp) != strategy::Recompute::kNone;
  if (!step_.style.keeps_by_layer || (recomputes && segment.kind == SegmentKind::kAttention)) {
    const SlotId deferred = slot(SlotKind::kDeferred, segment);
    slots.writes.push_back(deferred);
    due.reads.push_back(deferred);
    due.frees.push_back(deferred);
  }
  weights_due_.push_back(due);
  keep_for_weights(segment, slots);
}

TaskId RankWriter::compute(const Segment& segment, const Slots& slots,
                           const graph::List<TaskId>& after) {
  Slots here = slots;
  if (phase_ == graph::Phase::kBackwardInput && has_weights_part(segment)) {
    if (segment.kind == SegmentKind::kEmbedding) {
      weights_due_.push_back({segment, slots.reads, slots.frees});
      return last_compute_;
    }
    leave_weights({.kind = segment.kind, .layer = segment.layer, .chunk = segment.chunk}, here);
  } else if (phase_ == graph::Phase::kBackwardInput && segment.kind == SegmentKind::kRingStep) {
    keep_for_weights(segment, here);
  }
  add_to_gradients(segment, here);
  NewTask task{.kind = TaskKind::kCompute, .segment = step_.id_of(segment), .dependencies = after};
  for (const TaskId waited : std::exchange(waited_for_, {})) task.dependencies.push_back(waited);
  last_compute_ = write(task, here);
  return last_compute_;
}

void RankWriter::add_to_gradients(const Segment& segment, Slots& slots) {
  for (const Segment& buffer : divided_gradients_of(step_, segment, phase_)) {
    const auto [found, is_new] =
        gradients_.try_emplace({buffer.kind, buffer.layer}, SlotId::none());
    if (is_new) found->second = slot(SlotKind::kGradients, buffer);
    (is_new ? slots.writes : slots.reads).push_back(found->second);
  }
}

SlotId RankWriter::take_gradients(const Segment& buffer) {
  const auto found = gradients_.find({buffer.kind, buffer.layer});
  if (found == gradients_.end()) return SlotId::none();
  const SlotId slot = found->second;
  gradients_.erase(found);
  return slot;
}

void RankWriter::wait_for_earlier(PendingTasks& posted) {
  for (const TaskId task : std::exchange(posted.earlier, {})) waited_for_.push_back(task);
}

void RankWriter::wait_for(PendingTasks& posted) {
  wait_for_earlier(posted);
  if (posted.latest.valid()) waited_for_.push_back(std::exchange(posted.latest, TaskId::none()));
}

TaskId RankWriter::host_copy(int32_t layer, const Slots& slots, const graph::List<TaskId>& after) {
  graph::List<TaskId> behind = after;
  if (step_.style.copies_in_turn) behind.push_back(last_host_copy_);
  last_host_copy_ = collective(TaskKind::kHostCopy, strategy::Axis::kRank,
                               {SegmentKind::kHostCopy, layer}, slots, behind);
  return last_host_copy_;
}

TaskId RankWriter::collective(TaskKind kind, strategy::Axis axis, const Segment& segment,
                              const Slots& slots, const graph::List<TaskId>& after,
                              std::optional<graph::Stream> stream) {
  graph::GroupId& group = groups_[static_cast<size_t>(axis)];
  if (!group.valid()) group = step_.graph().add_group(step_.layout.group(axis, rank_));
  const TaskId task = write({.kind = kind,
                             .segment = step_.id_of(segment),
                             .operation = step_.exchange(group, count_up(num_exchanges_, group)),
                             .group = group,
                             .dependencies = after,
                             .stream = stream},
                            slots);
  if (kind == TaskKind::kAllToAll || axis == strategy::Axis::kContext) last_exchange_ = task;
  return task;
}

TaskId RankWriter::send(int64_t pp, const Message& message, SlotId slot, TaskId behind) {
  const Rank peer = step_.layout.rank(pp, at_.member);
  const TaskId sent = write({.kind = TaskKind::kSend,
                             .operation = step_.message(rank_, peer, message),
                             .peer = peer,
                             .dependencies = {behind}},
                            {.reads = {slot}, .frees = {slot}});
  if (step_.style.waits_for_sends) compute({SegmentKind::kWait, -1}, {});
  return sent;
}

SlotId RankWriter::receive(int64_t pp, const Message& message, const SlotMeaning& meaning) {
  const Rank peer = step_.layout.rank(pp, at_.member);
  const SlotId arrived = slot(meaning.kind, meaning.segment);
  write({.kind = TaskKind::kReceive,
         .operation = step_.message(peer, rank_, message),
         .peer = peer,
         .dependencies = {last_compute_}},
        {.writes = {arrived}});
  return arrived;
}

}  // namespace piper::schedule
