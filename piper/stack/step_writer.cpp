#include <piper/base/error.h>
#include <piper/schedule/action.h>
#include <piper/stack/step_writer.h>
#include <piper/strategy/rank_layout.h>

#include <algorithm>
#include <cmath>

namespace piper::stack {

using strategy::Axis;

using graph::OperationId;
using graph::Phase;
using graph::SlotId;
using graph::TaskId;
using graph::TaskKind;
using schedule::Action;
using schedule::Segment;
using schedule::SegmentKind;

namespace {

std::vector<char> marked(const std::vector<Rank>& ranks, int64_t world) {
  std::vector<char> is_here(static_cast<size_t>(world));
  for (const Rank rank : ranks) is_here[rank.index()] = 1;
  return is_here;
}

}  // namespace

StepWriter::StepWriter(Estimator& estimator, const strategy::Strategy& s, const StepParts& parts,
                       const std::vector<Rank>& written)
    : estimator_(estimator),
      strategy_(s),
      parts_(parts),
      layout_(s),
      ports_(estimator.cluster(), marked(written, s.mesh.world())),
      first_host_port_(static_cast<int32_t>(ports_.capacity().size())) {
  PIPER_CHECK(s.mesh.world() <= estimator.cluster().num_devices(), "more ranks than devices");
  const bool keeps = s.mesh.pp > 1 && estimator.stack().keeps_weights_in_pipelines;
  every_ = {.gathers = s.zero == 3 && !keeps, .reduces = s.zero >= 2 && !keeps};
  const int64_t world = s.mesh.world();
  out_.step.graph = graph::Graph(world);
  out_.step.slots = {{schedule::SlotKind::kTape, {SegmentKind::kAttention, -1}}};
  cost::Links& links = out_.prices.links;
  links.capacity = ports_.capacity();
  links.capacity.resize(links.capacity.size() + static_cast<size_t>(world), cost::kWholeShare);
  links.first_need = {0};
  out_.prices.static_bytes.resize(static_cast<size_t>(world));
  for (const Rank rank : written) {
    const StageBytes& b = parts.stages[static_cast<size_t>(layout_.stage(rank))].bytes;
    out_.prices.static_bytes[rank.index()] =
        std::llround(b.weights_and_gradients + b.optimizer + b.fixed);
  }
  messages_.assign(static_cast<size_t>(2 * s.mesh.num_virtual_stages() * s.num_micro_batches *
                                       layout_.num_members()),
                   -1);
}

WholeStep StepWriter::take() {
  out_.prices.node_of_rank.assign(static_cast<size_t>(graph().num_ranks()), 0);
  return std::move(out_);
}

graph::SegmentId StepWriter::id_of(const Segment& segment) {
  const auto [found, is_new] =
      segments_.try_emplace({segment.kind, segment.layer}, graph::SegmentId(segments_.size()));
  if (is_new) out_.step.segments.push_back(segment);
  return found->second;
}

SlotId StepWriter::add_slot(Rank rank, int32_t micro_batch, double bytes) {
  out_.prices.slot_bytes.push_back(std::llround(bytes));
  return graph().add_slot({.rank = rank, .shape = graph::SlotShape(0), .micro_batch = micro_batch});
}

TaskId StepWriter::add(const graph::NewTask& task, double seconds, double transient_bytes) {
  out_.prices.seconds.push_back(seconds);
  out_.prices.transient_bytes.push_back(std::llround(transient_bytes));
  return graph().add(task);
}

StepWriter::Group& StepWriter::group(Axis axis, Rank rank) {
  std::vector<Rank> ranks = layout_.group(axis, rank);
  const auto [found, is_new] = groups_.try_emplace(
      {axis, ranks.front().value, ranks.back().value, std::ssize(ranks)}, Group{});
  if (is_new) {
    found->second.ranks = ranks;
    found->second.pattern = pattern_of(axis, rank, ranks);
    found->second.id = graph().add_group(std::move(ranks));
  }
  return found->second;
}

// As the stack prices it: for a group that begins at device 0.
int32_t StepWriter::pattern_of(Axis axis, Rank rank, const std::vector<Rank>& ranks) {
  if (axis == Axis::kWorld) return -1;
  if (axis == Axis::kRank)
    return new_pattern(
        {.seconds = 1, .needs = {{first_host_port_ + rank.value, cost::kWholeShare}}});
  if (ranks.size() < 2 || axis == Axis::kExpert) return -1;
  const cost::LevelNeeds needs =
      estimator_.rates().ring_needs(std::ssize(ranks), layout_.distance(axis));
  return new_pattern(ports_.among(ranks, needs.part, 1));
}

int32_t StepWriter::pattern_of(Group& group, const cost::LevelNeeds& needs) {
  for (const auto& [known, pattern] : group.own_patterns)
    if (known.part == needs.part) return pattern;
  const int32_t pattern =
      group.ranks.size() < 2 ? -1 : new_pattern(ports_.among(group.ranks, needs.part, 1));
  return group.own_patterns.emplace_back(needs, pattern).second;
}

int32_t StepWriter::new_pattern(const cost::Transfer& transfer) {
  cost::Links& links = out_.prices.links;
  links.needs.insert(links.needs.end(), transfer.needs.begin(), transfer.needs.end());
  links.first_need.push_back(static_cast<uint32_t>(links.needs.size()));
  return static_cast<int32_t>(links.first_need.size()) - 2;
}

OperationId StepWriter::new_operation(int32_t pattern, const cost::Moves& moves) {
  cost::Links& links = out_.prices.links;
  const bool shares = pattern >= 0 && moves.transfer > cost::kLeastTransfer * moves.total();
  links.pattern.push_back(shares ? pattern : -1);
  links.transfer_seconds.push_back(moves.transfer);
  return graph().new_operation();
}

OperationId StepWriter::nth(Group& group, size_t n, const cost::Moves& moves,
                            const cost::LevelNeeds* needs) {
  if (group.operations.size() == n)
    group.operations.push_back(
        new_operation(needs != nullptr ? pattern_of(group, *needs) : group.pattern, moves));
  return group.operations[n];
}

OperationId StepWriter::message(Rank from, Rank to, int64_t boundary, bool is_gradient,
                                int32_t micro_batch) {
  const int64_t member = layout_.member(from);
  int32_t& found = messages_[static_cast<size_t>(
      ((boundary * 2 + (is_gradient ? 1 : 0)) * strategy_.num_micro_batches + micro_batch) *
          layout_.num_members() +
      member)];
  if (found >= 0) return OperationId(found);
  const auto [pattern, is_new] = message_patterns_.try_emplace(
      static_cast<uint64_t>(from.value) << 32 | static_cast<uint64_t>(to.value), -1);
  if (is_new)
    pattern->second = new_pattern(ports_.message(
        from, to,
        estimator_.rates().message_needs(layout_.distance(strategy::Axis::kPipeline)).part, 1));
  const OperationId id = new_operation(pattern->second, parts_.message);
  found = id.value;
  return id;
}

RankWriter::RankWriter(StepWriter& step, Rank rank)
    : step_(step),
      rank_(rank),
      at_(step.layout().coordinates(rank)),
      placing_{.pp = step.strategy().mesh.pp,
               .vpp = step.strategy().mesh.vpp,
               .schedule = step.strategy().schedule} {}

void RankWriter::begin(Phase phase, int32_t micro_batch) {
  phase_ = phase;
  micro_batch_ = micro_batch;
}

SlotId RankWriter::slot(double bytes, const Action& action) {
  return bytes > 0 ? step_.add_slot(rank_, action.micro_batch, bytes) : SlotId::none();
}

TaskId RankWriter::compute(const Segment& segment, double seconds, double transient_bytes,
                           const After& after, const Slots& slots) {
  computed_ = step_.add({.rank = rank_,
                         .kind = TaskKind::kCompute,
                         .phase = phase_,
                         .micro_batch = micro_batch_,
                         .segment = step_.id_of(segment),
                         .dependencies = after,
                         .writes = {slots.writes},
                         .frees = {slots.frees}},
                        seconds, transient_bytes);
  return computed_;
}

TaskId RankWriter::collective(TaskKind kind, const Segment& segment, Axis axis,
                              const cost::Moves& moves, const After& after, const Slots& slots,
                              const cost::LevelNeeds* needs) {
  Posted& posted = posted_[static_cast<size_t>(axis)];
  if (posted.group == nullptr) posted.group = &step_.group(axis, rank_);
  return step_.add({.rank = rank_,
                    .kind = kind,
                    .phase = phase_,
                    .micro_batch = micro_batch_,
                    .segment = step_.id_of(segment),
                    .operation = step_.nth(*posted.group, posted.num++, moves, needs),
                    .group = posted.group->id,
                    .dependencies = after,
                    .writes = {slots.writes},
                    .frees = {slots.frees}},
                   moves.total());
}

TaskId RankWriter::post(const Piece& piece, const After& after) {
  return collective(piece.task, piece.segment, piece.axis, piece.moves, after, {}, piece.needs);
}

TaskId RankWriter::copy(double seconds, const After& after, const Slots& slots) {
  return collective(TaskKind::kHostCopy, {SegmentKind::kHostCopy, -1}, Axis::kRank,
                    {.latency = 0, .transfer = seconds}, after, slots);
}

TaskId RankWriter::sum_over_world(const After& after) {
  return collective(TaskKind::kAllReduce, {SegmentKind::kStatistics, -1}, Axis::kWorld, {}, after,
                    {});
}

// A message is of the forward or of the backward, whether or not one of its ends splits the latter.
void RankWriter::begin_message(const Action& action) {
  begin(action.kind == Action::Kind::kForward ? Phase::kForward : Phase::kBackward,
        action.micro_batch);
}

TaskId RankWriter::receive(const Action& action) {
  begin_message(action);
  const bool is_forward = action.kind == Action::Kind::kForward;
  const int64_t from = schedule::virtual_stage_before(action, placing_, at_.pp);
  const Rank peer =
      step_.layout().rank(schedule::rank_received_from(action, placing_, at_.pp), at_.member);
  return step_.add({.rank = rank_,
                    .kind = TaskKind::kReceive,
                    .phase = phase_,
                    .micro_batch = micro_batch_,
                    .operation = step_.message(peer, rank_, is_forward ? from : from - 1,
                                               !is_forward, action.micro_batch),
                    .peer = peer,
                    .dependencies = {computed_}},
                   step_.parts().message.total());
}

void RankWriter::send(const Action& action, TaskId after) {
  begin_message(action);
  const bool is_forward = action.kind == Action::Kind::kForward;
  const int64_t to = schedule::virtual_stage_after(action, placing_, at_.pp);
  const Rank peer =
      step_.layout().rank(schedule::rank_sent_to(action, placing_, at_.pp), at_.member);
  step_.add({.rank = rank_,
             .kind = TaskKind::kSend,
             .phase = phase_,
             .micro_batch = micro_batch_,
             .operation = step_.message(rank_, peer, is_forward ? to - 1 : to, !is_forward,
                                        action.micro_batch),
             .peer = peer,
             .dependencies = {after}},
            step_.parts().message.total());
  if (step_.parts().message_wait > 0)
    compute({SegmentKind::kMessageWait, -1}, step_.parts().message_wait, 0, {}, {});
}

}  // namespace piper::stack
