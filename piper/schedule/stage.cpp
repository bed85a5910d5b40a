#include <piper/schedule/chunk_steps.h>
#include <piper/schedule/heads.h>
#include <piper/schedule/host_copies.h>
#include <piper/schedule/layer.h>
#include <piper/schedule/rank_chunks.h>
#include <piper/schedule/stage.h>
#include <piper/schedule/state_tasks.h>
#include <piper/schedule/transfers.h>

#include <algorithm>
#include <optional>

namespace piper::schedule {

using graph::Phase;
using graph::SlotId;
using graph::TaskId;

Phase phase_of(Action::Kind kind) {
  switch (kind) {
    case Action::Kind::kForward:
      return Phase::kForward;
    case Action::Kind::kBackward:
      return Phase::kBackward;
    case Action::Kind::kBackwardInput:
      return Phase::kBackwardInput;
    case Action::Kind::kBackwardWeights:
      return Phase::kBackwardWeights;
  }
  return Phase::kForward;
}

namespace {

class RankLowering {
 public:
  RankLowering(StepWriter& step, Rank rank)
      : step_(step),
        writer_(step, rank),
        states_(writer_),
        pp_rank_(writer_.at().pp),
        placing_{.pp = step.strategy.mesh.pp,
                 .vpp = step.strategy.mesh.vpp,
                 .schedule = step.strategy.schedule},
        actions_(actions(placing_.schedule, placing_.pp, pp_rank_, step.strategy.num_micro_batches,
                         placing_.vpp)) {
    if (step.style.evaluates) leave_forwards();
    if (step.style.evaluates || !step.style.pairs_take_turns)
      for (Action& action : actions_) action.pairs_with_next = false;
    for (int64_t i = 0; i < placing_.vpp; ++i) chunks_.push_back(make_chunk(i));
    for (const Action& action : actions_) {
      Chunk& of = chunk(action);
      if (action.kind == Action::Kind::kForward && !of.first_forward) of.first_forward = action;
      if (makes_weight_gradients(action.kind)) of.last_backward = action;
    }
    if (strategy::offloads_activations(step.strategy.offload))
      copies_ = host_copies(placing_.schedule, placing_.pp, placing_.vpp,
                            step.strategy.num_micro_batches, pp_rank_);
  }

  void write() {
    const std::vector<Item> items = insert_transfers(actions_, placing_, pp_rank_);
    for (size_t i = 0; i < items.size(); ++i) {
      if (items[i].kind == Item::Kind::kCompute && items[i].action.pairs_with_next) {
        i = write_pair(items, i);
        ++place_;
      } else {
        write(items[i]);
      }
      if (items[i].kind != Item::Kind::kCompute) continue;
      bring_back();
      ++place_;
    }
    std::vector<int32_t> updated;
    for (const Chunk& of : chunks_)
      updated.insert(updated.end(), of.state_layers.begin(), of.state_layers.end());
    states_.write_update(updated);
  }

 private:
  struct MicroBatch {
    SlotId activation = SlotId::none();     // arrived, of the layers so far, or ready to be sent
    SlotId gradient = SlotId::none();       // likewise
    SlotId head_gradient = SlotId::none();  // of a head whose output a module's join reads too
    std::vector<HeadSlots> heads;           // the model's own, then those of the modules
    std::vector<LayerSlots> layers;         // from the chunk's first on; then of modules
    std::vector<RankWriter::WeightsDue> weights_due;  // of a backward in two parts
    TaskId sent_behind = TaskId::none();  // of the last action, in trainers that compute in order
    TaskId copied_out = TaskId::none(), copied_back = TaskId::none();
  };
  // A virtual stage.
  struct Chunk {
    int64_t stage = 0;
    ChunkLayers layers;
    std::vector<int32_t> state_layers;
    std::vector<MicroBatch> micro_batches;
    std::vector<ChunkStep> forward, backward;
    std::optional<Action> first_forward;
    Action last_backward{};  // after it the gradients of the chunk's weights are final
  };
  // An action that is being written.
  struct Cursor {
    Action action;
    const std::vector<ChunkStep>* steps = nullptr;
    StateTasks::Place place;
    Phase phase = Phase::kForward;
    bool is_paired = false;
    size_t next = 0;
    PendingTasks posted = {};
    bool done() const { return next == steps->size(); }
  };

  void leave_forwards() {
    std::erase_if(actions_, [](const Action& a) { return a.kind != Action::Kind::kForward; });
  }

  Chunk make_chunk(int64_t number) {
    const RankChunk held = chunks_of(step_.strategy, pp_rank_)[static_cast<size_t>(number)];
    const bool has_modules = held.is_last && step_.style.has_mtp_modules;
    Chunk made{
        .stage = held.stage,
        .layers = {.first = held.first_layer,
                   .last = held.first_layer + held.num_layers - 1,
                   .is_first = held.is_first,
                   .is_last = held.is_last,
                   .num_modules = has_modules ? static_cast<int32_t>(step_.model.mtp_depth) : 0},
        .state_layers =
            schedule::state_layers(step_.model, step_.strategy, held, step_.style.has_mtp_modules),
        .micro_batches =
            std::vector<MicroBatch>(static_cast<size_t>(step_.strategy.num_micro_batches)),
        .forward = {},
        .backward = {},
        .first_forward = {}};
    made.forward = forward_steps(step_, made.layers, pp_rank_);
    made.backward = backward_steps(step_, made.layers, pp_rank_);
    return made;
  }

  Chunk& chunk(const Action& action) { return chunks_[static_cast<size_t>(action.chunk)]; }
  MicroBatch& micro_batch(const Action& action) {
    return chunk(action).micro_batches[static_cast<size_t>(action.micro_batch)];
  }

  // --- items ---
  void write(const Item& item) {
    switch (item.kind) {
      case Item::Kind::kReceive:
        return receive(item.action);
      case Item::Kind::kSend:
        return send(item.action);
      case Item::Kind::kCompute:
        return compute(item.action);
    }
  }

  // A message is of the forward or of the backward, on both ends, whether or not one of them splits
  // the latter.
  void begin_message(const Action& action) {
    writer_.begin(action.kind == Action::Kind::kForward ? Phase::kForward : Phase::kBackward,
                  action.micro_batch);
  }

  void receive(const Action& action) {
    begin_message(action);
    const bool is_forward = action.kind == Action::Kind::kForward;
    const ChunkLayers& here = chunk(action).layers;
    MicroBatch& mb = micro_batch(action);
    (is_forward ? mb.activation : mb.gradient) = writer_.receive(
        rank_received_from(action, placing_, pp_rank_),
        {!is_forward, virtual_stage_before(action, placing_, pp_rank_), action.micro_batch},
        is_forward                                 ? layer_output(step_, here.first - 1)
        : here.last + 1 < step_.model.num_layers() ? layer_input_gradient(step_, here.last + 1)
                                                   : head_input_gradient());
  }

  // What comes from a last stage that has no layer but the head.
  SlotMeaning head_input_gradient() const {
    return {SlotKind::kHiddenGradient,
            {gathers_head_gradient(step_) ? SegmentKind::kTensor : SegmentKind::kHead, -1}};
  }

  void send(const Action& action) {
    begin_message(action);
    const bool is_forward = action.kind == Action::Kind::kForward;
    const MicroBatch& mb = micro_batch(action);
    states_.let_pass(writer_.send(rank_sent_to(action, placing_, pp_rank_),
                                  {!is_forward, chunk(action).stage, action.micro_batch},
                                  is_forward ? mb.activation : mb.gradient, mb.sent_behind));
  }

  void compute(const Action& action) {
    if (action.kind == Action::Kind::kBackwardWeights) return backward_weights(action);
    Cursor cursor = begin(action);
    while (!cursor.done()) advance(cursor);
    end(cursor);
  }

  // A forward and the backward behind it, turn by turn; what stands between them in the list
  // follows the forward. The backward's rows go on their way first, so that from then on one's rows
  // travel while the other computes. The weights' parts of the backward's segments are made while
  // its next rows travel.
  size_t write_pair(const std::vector<Item>& items, size_t first) {
    size_t second = first + 1;
    while (items[second].kind != Item::Kind::kCompute) ++second;
    Cursor cursors[2] = {begin(items[first].action), begin(items[second].action, true)};
    bool is_ended[2] = {false, false};
    const bool turns = std::ranges::any_of(
        *cursors[1].steps, [](const ChunkStep& s) { return s.kind == ChunkStep::Kind::kYield; });
    for (int turn = turns ? 1 : 0; !is_ended[0] || !is_ended[1]; turn = 1 - turn) {
      Cursor& cursor = cursors[turn];
      if (is_ended[turn]) continue;
      while (!cursor.done() && advance(cursor)) {
      }
      if (!cursor.done()) continue;
      end(cursor);
      is_ended[turn] = true;
      if (turn == 0)
        for (size_t i = first + 1; i < second; ++i) write(items[i]);
    }
    return second;  // its own send stands behind it
  }

  // --- a forward or a backward ---
  Cursor begin(const Action& action, bool is_paired = false) {
    Chunk& here = chunk(action);
    MicroBatch& mb = micro_batch(action);
    const bool is_forward = action.kind == Action::Kind::kForward;
    Cursor cursor{.action = action,
                  .steps = is_forward ? &here.forward : &here.backward,
                  .place = {.phase = phase_of(action.kind),
                            .micro_batch = action.micro_batch,
                            .makes_gradients = makes_weight_gradients(action.kind),
                            .is_last = action == here.last_backward},
                  .phase = is_paired ? Phase::kBackwardInput : phase_of(action.kind),
                  .is_paired = is_paired};
    begin(cursor);
    take_from_own_chunk(action);
    if (is_forward) {
      mb.layers.resize(static_cast<size_t>(
          std::max(1, here.layers.last - here.layers.first + 1 + here.layers.num_modules)));
      if (action == here.first_forward) gather_ahead(here);
    }
    const SlotId arrived = is_forward ? mb.activation : mb.gradient;
    if (step_.style.in_order && arrived.valid()) cursor.posted.wait_for(writer_.writer(arrived));
    if (copies_) {
      const int32_t before = is_forward ? copies_->starts_behind[index(action)] : -1;
      if (before >= 0) cursor.posted.wait_for(micro_batch_of(before).copied_out);
      if (!is_forward) cursor.posted.wait_for(mb.copied_back);
    }
    return cursor;
  }

  void begin(const Cursor& c) { writer_.begin(c.phase, c.action.micro_batch); }

  // The embedding of a last stage is that of its modules.
  void gather_ahead(const Chunk& of) {
    std::vector<StateTasks::Ahead> list;
    for (const int32_t layer : of.state_layers) {
      const bool is_of_modules = layer == StateTasks::kEmbedding && !of.layers.is_first;
      list.push_back(
          {layer, is_of_modules ? static_cast<int32_t>(step_.model.num_layers()) : layer});
    }
    states_.gather_ahead(list);
  }

  // The next step; false at a turn.
  bool advance(Cursor& c) {
    const ChunkStep& step = (*c.steps)[c.next++];
    begin(c);
    MicroBatch& mb = micro_batch(c.action);
    switch (step.kind) {
      case ChunkStep::Kind::kYield:
        if (!c.is_paired) return false;
        make_weights_due(c);
        return false;
      case ChunkStep::Kind::kBeginStates:
        states_.begin(step.layer, c.place, c.posted);
        return true;
      case ChunkStep::Kind::kEndStates:
        if (c.is_paired && states_.reduces(c.place)) make_weights_due(c);
        states_.end(step.layer, c.place, c.posted);
        return true;
      case ChunkStep::Kind::kTask:
        if (step.task->is_recomputed) writer_.begin(Phase::kRecompute, c.action.micro_batch);
        write_layer_task(writer_, *step.passes, *step.task, step.layer, slots_of(c, step.layer),
                         c.posted);
        states_.let_pass(writer_.take_last_exchange());
        return true;
      case ChunkStep::Kind::kEmbedding:
      case ChunkStep::Kind::kEnter:
      case ChunkStep::Kind::kLeave:
      case ChunkStep::Kind::kHead:
      case ChunkStep::Kind::kJoin:
        if (step.kind == ChunkStep::Kind::kHead && step.layer >= 0)
          states_.begin_head_of_module(c.place);
        if (step.kind != ChunkStep::Kind::kEnter && step.kind != ChunkStep::Kind::kLeave)
          writer_.wait_for(c.posted);
        if (c.action.kind == Action::Kind::kForward)
          forward(step, mb, slots_of(c, step.layer));
        else
          backward(step, mb, slots_of(c, step.layer));
        return true;
    }
    return true;
  }

  LayerSlots& slots_of(const Cursor& c, int32_t layer) {
    const Chunk& here = chunk(c.action);
    return micro_batch(c.action)
        .layers[static_cast<size_t>(std::max(0, layer - here.layers.first))];
  }
  size_t module_of(int32_t layer) const {
    return static_cast<size_t>(layer - step_.model.num_layers());
  }

  void forward(const ChunkStep& step, MicroBatch& mb, LayerSlots& slots) {
    const Segment embedding{SegmentKind::kEmbedding, -1};
    switch (step.kind) {
      case ChunkStep::Kind::kEmbedding:
        mb.activation = writer_.slot(SlotKind::kHidden, embedding);
        writer_.compute(embedding, {.writes = {mb.activation}});
        return;
      case ChunkStep::Kind::kEnter:
        slots[step.passes->x] = mb.activation;
        return;
      case ChunkStep::Kind::kLeave:
        mb.activation = slots[step.passes->output];
        return;
      case ChunkStep::Kind::kHead:
        if (step_.style.evaluates)
          write_loss(writer_, mb.activation);
        else
          mb.heads.push_back(write_head_forward(writer_, step.layer, mb.activation));
        return;
      case ChunkStep::Kind::kJoin:
        mb.activation = write_join_forward(writer_, step.layer, mb.heads[module_of(step.layer)].x);
        return;
      case ChunkStep::Kind::kTask:
      case ChunkStep::Kind::kYield:
      case ChunkStep::Kind::kBeginStates:
      case ChunkStep::Kind::kEndStates:
        return;
    }
  }

  void backward(const ChunkStep& step, MicroBatch& mb, LayerSlots& slots) {
    switch (step.kind) {
      case ChunkStep::Kind::kEmbedding:
        writer_.compute({SegmentKind::kEmbedding, -1},
                        {.reads = {mb.gradient}, .frees = {mb.gradient}});
        return;
      case ChunkStep::Kind::kEnter:
        slots[step.passes->output_gradient] = mb.gradient;
        return;
      case ChunkStep::Kind::kLeave:
        mb.gradient = slots[step.passes->x_gradient];
        return;
      case ChunkStep::Kind::kHead: {
        const size_t head = step.layer < 0 ? 0 : module_of(step.layer) + 1;
        const bool is_joined = head + 1 < mb.heads.size();
        (is_joined ? mb.head_gradient : mb.gradient) =
            write_head_backward(writer_, step.layer, mb.heads[head], is_joined);
        return;
      }
      case ChunkStep::Kind::kJoin:
        mb.gradient = write_join_backward(writer_, step.layer, mb.gradient, mb.head_gradient,
                                          mb.heads[module_of(step.layer)].x);
        return;
      case ChunkStep::Kind::kTask:
      case ChunkStep::Kind::kYield:
      case ChunkStep::Kind::kBeginStates:
      case ChunkStep::Kind::kEndStates:
        return;
    }
  }

  void make_weights_due(Cursor& c) {
    writer_.begin(Phase::kBackwardWeights, c.action.micro_batch);
    for (const auto& [segment, reads, frees] : writer_.take_weights_due())
      c.posted.computed = writer_.compute(segment, {.reads = reads, .frees = frees});
    begin(c);
  }

  void end(Cursor& c) {
    MicroBatch& mb = micro_batch(c.action);
    const bool is_forward = c.action.kind == Action::Kind::kForward;
    if (c.is_paired)
      make_weights_due(c);
    else
      mb.weights_due = writer_.take_weights_due();
    begin(c);
    if (step_.style.in_order) end_in_order(c, mb);
    if (copies_ && is_forward && copies_->is_copied[index(c.action)]) copy_out(c.action);
    if (step_.style.evaluates) give_back(c.action);
  }

  // The action's compute ends when its collectives have, and its message leaves then.
  void end_in_order(Cursor& c, MicroBatch& mb) {
    writer_.wait_for(c.posted);
    if (writer_.waits())
      c.posted.computed = writer_.compute({SegmentKind::kWait, -1, ComputePart::kRest}, {});
    mb.sent_behind = c.posted.computed;
  }

  // What another chunk of this rank made is neither sent nor received.
  void take_from_own_chunk(const Action& action) {
    const int64_t before = virtual_stage_before(action, placing_, pp_rank_);
    if (before < 0 || rank_received_from(action, placing_, pp_rank_) >= 0) return;
    const Chunk& from = chunks_[static_cast<size_t>(chunk_of_stage(placing_.pp, before))];
    const MicroBatch& made = from.micro_batches[static_cast<size_t>(action.micro_batch)];
    MicroBatch& mb = micro_batch(action);
    if (action.kind == Action::Kind::kForward)
      mb.activation = made.activation;
    else
      mb.gradient = made.gradient;
  }

  // Segment by segment in the order of the input's part. A head has no weights' part, a module's
  // gradients are final after its join's.
  void backward_weights(const Action& action) {
    const Chunk& here = chunk(action);
    const StateTasks::Place place{.phase = Phase::kBackwardWeights,
                                  .micro_batch = action.micro_batch,
                                  .makes_gradients = true,
                                  .is_last = action == here.last_backward};
    writer_.begin(place.phase, place.micro_batch);
    PendingTasks posted;
    const auto around = [&](int32_t layer) {
      states_.begin(layer, place, posted);
      states_.end(layer, place, posted);
    };
    if (here.layers.is_last) {
      around(StateTasks::kHead);
      if (here.layers.num_modules > 0 && step_.model.copies_embedding() &&
          strategy::ends_apart(step_.strategy))
        around(StateTasks::kEmbedding);
    }
    int32_t begun = StateTasks::kHead;
    for (const auto& [segment, reads, frees] : std::exchange(micro_batch(action).weights_due, {})) {
      if (segment.layer != begun) states_.begin(segment.layer, place, posted);
      begun = segment.layer;
      writer_.wait_for(posted);
      posted.computed = writer_.compute(segment, {.reads = reads, .frees = frees});
      const bool is_module = segment.layer >= step_.model.num_layers();
      const bool projects = step_.strategy.mesh.cp > 1 && step_.style.follows_context_exchange;
      const SegmentKind last = is_module  ? SegmentKind::kMtpProjection
                               : projects ? SegmentKind::kProjection
                                          : SegmentKind::kAttention;
      if (segment.kind == last || segment.kind == SegmentKind::kEmbedding)
        states_.end(segment.layer, place, posted);
    }
    writer_.wait_for(posted);
    if (writer_.waits()) writer_.compute({SegmentKind::kWait, -1, ComputePart::kRest}, {});
  }

  // --- activations that live with the host ---
  size_t index(const Action& action) const {
    return static_cast<size_t>(action.chunk * step_.strategy.num_micro_batches +
                               action.micro_batch);
  }
  MicroBatch& micro_batch_of(int32_t which) {
    const int64_t m = step_.strategy.num_micro_batches;
    return chunks_[static_cast<size_t>(which / m)].micro_batches[static_cast<size_t>(which % m)];
  }

  // What the layers keep for their backwards, each slot once.
  template <class F>
  void for_each_kept(Chunk& of, MicroBatch& mb, F visit) {
    for (int32_t layer = of.layers.first; layer <= of.layers.last; ++layer) {
      const LayerPasses& passes = passes_of(step_, layer, pp_rank_);
      LayerSlots& slots = mb.layers[static_cast<size_t>(layer - of.layers.first)];
      for (const LayerSlot slot : passes.kept)
        if (!step_.style.keeps_by_layer || passes.slots[slot.index()].kind == SlotKind::kKept)
          visit(slots[slot], meaning(passes, slot, layer));
    }
  }

  Slots freed(const Action& action) {
    Slots slots;
    for_each_kept(chunk(action), micro_batch(action), [&](SlotId slot, const SlotMeaning&) {
      slots.reads.push_back(slot);
      slots.frees.push_back(slot);
    });
    return slots;
  }

  void give_back(const Action& action) {
    const Slots slots = freed(action);
    if (!slots.frees.empty()) writer_.compute({SegmentKind::kWait, -1}, slots);
  }

  void copy_out(const Action& action) {
    const Chunk& of = chunk(action);
    const Slots slots = freed(action);
    micro_batch(action).copied_out =
        writer_.host_copy(of.layers.first, slots, {writer_.last_compute()});
  }

  // What comes back behind the action just written.
  void bring_back() {
    if (!copies_) return;
    const std::vector<HostCopies::Back>& back = copies_->back;
    for (; brought_ < back.size() && back[brought_].place == place_; ++brought_) {
      MicroBatch& mb = micro_batch_of(back[brought_].which);
      const int64_t m = step_.strategy.num_micro_batches;
      Chunk& of = chunks_[static_cast<size_t>(back[brought_].which / m)];
      writer_.begin(Phase::kBackward, static_cast<int32_t>(back[brought_].which % m));
      Slots slots;
      for_each_kept(of, mb, [&](SlotId& slot, const SlotMeaning& of_slot) {
        slots.writes.push_back(slot = writer_.slot(of_slot.kind, of_slot.segment));
      });
      mb.copied_back =
          writer_.host_copy(of.layers.first, slots, {writer_.last_compute(), mb.copied_out});
    }
  }

  StepWriter& step_;
  RankWriter writer_;
  StateTasks states_;
  int64_t pp_rank_;
  PipelineLayout placing_;
  std::vector<Action> actions_;
  std::vector<Chunk> chunks_;
  std::optional<HostCopies> copies_;
  int32_t place_ = 0;   // of the action that is written, in the rank's list
  size_t brought_ = 0;  // copies back that are posted
};

}  // namespace

void write_rank(StepWriter& step, Rank rank) { RankLowering(step, rank).write(); }

}  // namespace piper::schedule
