#include <piper/schedule/layer.h>
#include <piper/schedule/reductions.h>
#include <piper/schedule/stage.h>
#include <piper/schedule/transfers.h>

#include <algorithm>

namespace piper::schedule {

using graph::Phase;
using graph::SlotId;

namespace {

class RankLowering {
 public:
  RankLowering(StepWriter& step, Rank rank)
      : step_(step),
        writer_(step, rank),
        reductions_(writer_),
        stage_(writer_.at().pp),
        first_(static_cast<int32_t>(strategy::first_layer(step.strategy, stage_))),
        last_(static_cast<int32_t>(strategy::first_layer(step.strategy, stage_ + 1)) - 1),
        micro_batches_(step.strategy.num_micro_batches) {}

  void write() {
    const strategy::Strategy& strategy = step_.strategy;
    const std::vector<Action> list =
        actions(strategy.schedule, strategy.mesh.pp, stage_, strategy.num_micro_batches);
    const auto last_backward = std::find_if(list.rbegin(), list.rend(), [](const Action& action) {
      return action.kind == Action::Kind::kBackward;
    });
    for (const Item& item : insert_transfers(list, strategy.mesh.pp, stage_)) {
      switch (item.kind) {
        case Item::Kind::kReceive:
          receive(item.action);
          break;
        case Item::Kind::kCompute:
          compute(item.action, item.action == *last_backward);
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
    SlotId head_input = SlotId::none();
    SlotId head_tape = SlotId::none();
    std::vector<LayerSlots> layers;
  };

  bool is_first() const { return stage_ == 0; }
  bool is_last() const { return stage_ == step_.strategy.mesh.pp - 1; }

  void begin(const Action& action) {
    writer_.begin(action.kind == Action::Kind::kForward ? Phase::kForward : Phase::kBackward,
                  action.micro_batch);
  }

  void receive(const Action& action) {
    begin(action);
    const int64_t from = stage_received_from(action, step_.strategy.mesh.pp, stage_);
    MicroBatch& mb = micro_batches_[action.micro_batch];
    if (action.kind == Action::Kind::kForward)
      mb.activation = writer_.receive(from, layer_output(step_.model, first_ - 1));
    else
      mb.gradient = writer_.receive(from, layer_input_gradient(last_ + 1));
  }

  void send(const Action& action) {
    begin(action);
    const MicroBatch& mb = micro_batches_[action.micro_batch];
    writer_.send(stage_sent_to(action, step_.strategy.mesh.pp, stage_),
                 action.kind == Action::Kind::kForward ? mb.activation : mb.gradient);
  }

  void compute(const Action& action, bool is_last_backward) {
    begin(action);
    MicroBatch& mb = micro_batches_[action.micro_batch];
    if (action.kind == Action::Kind::kForward)
      forward(mb);
    else
      backward(mb, action, is_last_backward);
  }

  void forward(MicroBatch& mb) {
    const Segment embedding{SegmentKind::kEmbedding, -1}, head{SegmentKind::kHead, -1};
    SlotId x = mb.activation;
    if (is_first()) {
      x = writer_.slot(SlotKind::kHidden, embedding);
      writer_.compute(embedding, {.writes = {x}});
    }
    mb.layers.resize(last_ - first_ + 1);
    for (int32_t layer = first_; layer <= last_; ++layer) {
      LayerSlots& slots = mb.layers[layer - first_];
      slots.x = x;
      x = write_layer_forward(writer_, layer, slots);
    }
    mb.activation = x;
    if (is_last()) {
      mb.head_input = x;
      mb.head_tape = writer_.slot(SlotKind::kTape, head);
      writer_.compute(head, {.reads = {x}, .writes = {mb.head_tape}});
    }
  }

  void backward(MicroBatch& mb, const Action& action, bool is_last_backward) {
    if (is_last()) write_head_backward(mb);
    const auto reduce = [&](int32_t layer) {
      if (!is_last_backward) return;
      reductions_.write_layer(layer);
      begin(action);
    };
    if (is_last()) reduce(-2);
    for (int32_t layer = last_; layer >= first_; --layer) {
      LayerSlots& slots = mb.layers[layer - first_];
      if (step_.strategy.recompute == strategy::Recompute::kFull) {
        writer_.begin(Phase::kRecompute, action.micro_batch);
        write_layer_recompute(writer_, layer, slots);
        begin(action);
      }
      mb.gradient = write_layer_backward(writer_, layer, slots, mb.gradient);
      reduce(layer);
    }
    if (is_first()) {
      const SlotId gradient = mb.gradient;
      writer_.compute({SegmentKind::kEmbedding, -1}, {.reads = {gradient}, .frees = {gradient}});
      reduce(-1);
    }
  }

  void write_head_backward(MicroBatch& mb) {
    const Segment head{SegmentKind::kHead, -1};
    mb.gradient = writer_.slot(SlotKind::kHiddenGradient, head);
    writer_.compute(head, {.reads = {mb.head_input, mb.head_tape},
                           .writes = {mb.gradient},
                           .frees = {mb.head_input, mb.head_tape}});
  }

  StepWriter& step_;
  RankWriter writer_;
  Reductions reductions_;
  int64_t stage_;
  int32_t first_, last_;  // layers of the stage
  std::vector<MicroBatch> micro_batches_;
};

}  // namespace

void write_rank(StepWriter& step, Rank rank) { RankLowering(step, rank).write(); }

}  // namespace piper::schedule
