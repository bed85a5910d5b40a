#include <piper/schedule/heads.h>
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
    std::vector<HeadSlots> heads;        // the model's own, then those of the modules
    std::vector<LayerSlots> layers, modules;
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
    const Segment embedding{SegmentKind::kEmbedding, -1};
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
    if (is_last()) heads_forward(mb);
  }

  void heads_forward(MicroBatch& mb) {
    mb.heads = {write_head_forward(writer_, -1, mb.activation)};
    mb.modules.resize(step_.model.mtp_depth);
    for (size_t i = 0; i < mb.modules.size(); ++i) {
      LayerSlots& slots = mb.modules[i];
      slots.x = write_join_forward(writer_, layer_of_module(i), mb.heads[i].x);
      const SlotId x = write_layer_forward(writer_, layer_of_module(i), slots);
      mb.heads.push_back(write_head_forward(writer_, layer_of_module(i), x));
    }
  }

  void backward(MicroBatch& mb, const Action& action, bool is_last_backward) {
    const auto reduce = [&](int32_t layer) {
      if (!is_last_backward) return;
      reductions_.write_layer(layer);
      begin(action);
    };
    if (is_last()) heads_backward(mb, action, reduce);
    for (int32_t layer = last_; layer >= first_; --layer) {
      mb.gradient = layer_backward(action, layer, mb.layers[layer - first_], mb.gradient);
      reduce(layer);
    }
    if (is_first()) {
      const SlotId gradient = mb.gradient;
      writer_.compute({SegmentKind::kEmbedding, -1}, {.reads = {gradient}, .frees = {gradient}});
      reduce(-1);
    }
  }

  // From the last module to the model's own head. A join's backward also reaches the norm of the head before it.
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
    reduce(-2);
    if (step_.model.copies_embedding() && !is_first()) reduce(-1);
  }

  SlotId layer_backward(const Action& action, int32_t layer, LayerSlots& slots, SlotId gradient) {
    if (step_.strategy.recompute == strategy::Recompute::kFull) {
      writer_.begin(Phase::kRecompute, action.micro_batch);
      write_layer_recompute(writer_, layer, slots);
      begin(action);
    }
    return write_layer_backward(writer_, layer, slots, gradient);
  }

  int32_t layer_of_module(size_t i) const {
    return static_cast<int32_t>(step_.model.num_layers() + static_cast<int64_t>(i));
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
