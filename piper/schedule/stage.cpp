#include <piper/schedule/heads.h>
#include <piper/schedule/layer.h>
#include <piper/schedule/reductions.h>
#include <piper/schedule/stage.h>
#include <piper/schedule/transfers.h>

#include <algorithm>

namespace piper::schedule {

using graph::Phase;
using graph::SlotId;

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
        reductions_(writer_),
        pp_rank_(writer_.at().pp),
        placing_{.pp = step.strategy.mesh.pp,
                 .vpp = step.strategy.mesh.vpp,
                 .schedule = step.strategy.schedule} {
    for (int64_t i = 0; i < placing_.vpp; ++i) {
      const int64_t stage = virtual_stage(placing_.schedule, placing_.pp, pp_rank_, i);
      chunks_.push_back({.stage = stage,
                         .is_last = stage == placing_.pp * placing_.vpp - 1,
                         .first_layer = layer_number(stage),
                         .last_layer = layer_number(stage + 1) - 1,
                         .micro_batches = std::vector<MicroBatch>(
                             static_cast<size_t>(step.strategy.num_micro_batches))});
    }
  }

  void write() {
    const std::vector<Action> list = actions(placing_.schedule, placing_.pp, pp_rank_,
                                             step_.strategy.num_micro_batches, placing_.vpp);
    for (const Action& action : list)
      if (makes_weight_gradients(action.kind)) chunk(action).last_backward = action;
    for (const Item& item : insert_transfers(list, placing_, pp_rank_)) {
      switch (item.kind) {
        case Item::Kind::kReceive:
          receive(item.action);
          break;
        case Item::Kind::kCompute:
          compute(item.action);
          break;
        case Item::Kind::kSend:
          send(item.action);
          break;
      }
    }
    reductions_.write_update();
  }

 private:
  struct MicroBatch {
    SlotId activation = SlotId::none();  // arrived, or ready to be sent
    SlotId gradient = SlotId::none();    // likewise
    std::vector<HeadSlots> heads;        // the model's own, then those of the modules
    std::vector<LayerSlots> layers, modules;
    std::vector<RankWriter::WeightsDue> weights_due;  // of a backward in two parts
  };
  // A virtual stage.
  struct Chunk {
    int64_t stage;
    bool is_last;
    int32_t first_layer, last_layer;
    std::vector<MicroBatch> micro_batches;
    Action last_backward{};  // after it the gradients of the chunk's weights are final
    bool is_first() const { return stage == 0; }
  };

  Chunk& chunk(const Action& action) { return chunks_[static_cast<size_t>(action.chunk)]; }
  MicroBatch& micro_batch(const Action& action) {
    return chunk(action).micro_batches[static_cast<size_t>(action.micro_batch)];
  }
  int32_t layer_number(int64_t stage) const {
    return static_cast<int32_t>(strategy::first_layer(step_.strategy, stage));
  }

  void begin(const Action& action) { writer_.begin(phase_of(action.kind), action.micro_batch); }

  // A message is of the forward or of the backward, on both ends, whether or not one of them splits
  // the latter.
  void begin_message(const Action& action) {
    writer_.begin(action.kind == Action::Kind::kForward ? Phase::kForward : Phase::kBackward,
                  action.micro_batch);
  }

  void receive(const Action& action) {
    begin_message(action);
    const bool is_forward = action.kind == Action::Kind::kForward;
    const Chunk& here = chunk(action);
    MicroBatch& mb = micro_batch(action);
    (is_forward ? mb.activation : mb.gradient) = writer_.receive(
        rank_received_from(action, placing_, pp_rank_),
        {!is_forward, virtual_stage_before(action, placing_, pp_rank_), action.micro_batch},
        is_forward ? layer_output(step_, here.first_layer - 1)
                   : layer_input_gradient(step_, here.last_layer + 1));
  }

  void send(const Action& action) {
    begin_message(action);
    const bool is_forward = action.kind == Action::Kind::kForward;
    const MicroBatch& mb = micro_batch(action);
    writer_.send(rank_sent_to(action, placing_, pp_rank_),
                 {!is_forward, chunk(action).stage, action.micro_batch},
                 is_forward ? mb.activation : mb.gradient);
  }

  void compute(const Action& action) {
    begin(action);
    take_from_own_chunk(action);
    switch (action.kind) {
      case Action::Kind::kForward:
        return forward(chunk(action), micro_batch(action));
      case Action::Kind::kBackward:
      case Action::Kind::kBackwardInput:
        return backward(action);
      case Action::Kind::kBackwardWeights:
        return backward_weights(action);
    }
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

  void forward(const Chunk& here, MicroBatch& mb) {
    const Segment embedding{SegmentKind::kEmbedding, -1};
    SlotId x = mb.activation;
    if (here.is_first()) {
      x = writer_.slot(SlotKind::kHidden, embedding);
      writer_.compute(embedding, {.writes = {x}});
    }
    mb.layers.resize(static_cast<size_t>(here.last_layer - here.first_layer + 1));
    for (int32_t layer = here.first_layer; layer <= here.last_layer; ++layer) {
      LayerSlots& slots = mb.layers[static_cast<size_t>(layer - here.first_layer)];
      x = write_layer_forward(writer_, layer, x, slots);
    }
    mb.activation = x;
    if (here.is_last) heads_forward(mb);
  }

  void heads_forward(MicroBatch& mb) {
    mb.heads = {write_head_forward(writer_, -1, mb.activation)};
    mb.modules.resize(static_cast<size_t>(step_.model.mtp_depth));
    for (size_t i = 0; i < mb.modules.size(); ++i) {
      LayerSlots& slots = mb.modules[i];
      const SlotId joined = write_join_forward(writer_, layer_of_module(i), mb.heads[i].x);
      const SlotId x = write_layer_forward(writer_, layer_of_module(i), joined, slots);
      mb.heads.push_back(write_head_forward(writer_, layer_of_module(i), x));
    }
  }

  void backward(const Action& action) {
    const Chunk& here = chunk(action);
    MicroBatch& mb = micro_batch(action);
    const auto reduce = [&](int32_t layer) { reduce_if_final(action, layer); };
    if (here.is_last) heads_backward(mb, action, reduce);
    for (int32_t layer = here.last_layer; layer >= here.first_layer; --layer) {
      mb.gradient = layer_backward(
          action, layer, mb.layers[static_cast<size_t>(layer - here.first_layer)], mb.gradient);
      reduce(layer);
    }
    if (here.is_first()) {
      const SlotId gradient = mb.gradient;
      writer_.compute({SegmentKind::kEmbedding, -1}, {.reads = {gradient}, .frees = {gradient}});
      reduce(-1);
    }
    mb.weights_due = writer_.take_weights_due();
  }

  // From the last module to the model's own head. A join's backward also reaches the norm of the
  // head before it.
  template <class Reduce>
  void heads_backward(MicroBatch& mb, const Action& action, Reduce reduce) {
    SlotId joined = SlotId::none();  // gradient of the input of module i
    for (size_t i = mb.modules.size();; --i) {
      const bool is_joined = i < mb.modules.size();
      const int32_t layer = i > 0 ? layer_of_module(i - 1) : -1;
      mb.gradient = write_head_backward(writer_, layer, mb.heads[i], is_joined);
      if (is_joined) {
        mb.gradient =
            write_join_backward(writer_, layer_of_module(i), joined, mb.gradient, mb.heads[i].x);
        reduce(layer_of_module(i));
      }
      if (i == 0) break;
      joined = layer_backward(action, layer, mb.modules[i - 1], mb.gradient);
    }
    reduce_heads(reduce);
  }

  template <class Reduce>
  void reduce_heads(Reduce reduce) {
    reduce(-2);
    if (step_.model.copies_embedding() && strategy::ends_apart(step_.strategy)) reduce(-1);
  }

  // Segment by segment in the order of the input's part. A head has no weights' part, a module's
  // gradients are final after its join's.
  void backward_weights(const Action& action) {
    const auto reduce = [&](int32_t layer) { reduce_if_final(action, layer); };
    if (chunk(action).is_last) reduce_heads(reduce);
    for (const auto& [segment, slots] : micro_batch(action).weights_due) {
      writer_.compute(segment, {.reads = slots, .frees = slots});
      const bool is_module = segment.layer >= step_.model.num_layers();
      const SegmentKind last = is_module ? SegmentKind::kMtpJoin : SegmentKind::kAttention;
      if (segment.kind == last || segment.kind == SegmentKind::kEmbedding) reduce(segment.layer);
    }
    micro_batch(action).weights_due.clear();
  }

  void reduce_if_final(const Action& action, int32_t layer) {
    if (action != chunk(action).last_backward) return;
    reductions_.write_layer(layer);
    begin(action);
  }

  SlotId layer_backward(const Action& action, int32_t layer, LayerSlots& slots, SlotId gradient) {
    begin(action);
    write_layer_recompute(writer_, layer, slots);
    return write_layer_backward(writer_, layer, gradient, slots);
  }

  int32_t layer_of_module(size_t i) const {
    return static_cast<int32_t>(step_.model.num_layers() + static_cast<int64_t>(i));
  }

  StepWriter& step_;
  RankWriter writer_;
  Reductions reductions_;
  int64_t pp_rank_;
  Placing placing_;
  std::vector<Chunk> chunks_;
};

}  // namespace

void write_rank(StepWriter& step, Rank rank) { RankLowering(step, rank).write(); }

}  // namespace piper::schedule
