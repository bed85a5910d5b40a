#include <piper/stack/pieces.h>

#include <algorithm>

namespace piper::stack {
namespace {

using graph::Phase;
using graph::TaskKind;
using schedule::Segment;
using schedule::SegmentKind;
using strategy::Axis;
using strategy::Recompute;

cost::Moves part_of(const cost::Moves& moves, double part) {
  return {part * moves.latency, part * moves.transfer};
}

// Gradients of weights that a paired backward has put off.
struct Due {
  Segment segment;
  double seconds = 0;
};

class Writer {
 public:
  Writer(const ChunkPart& chunk, const StagePart& stage, const StepParts& step,
         const model::Model& model, EveryMicroBatch every, ActionKind action)
      : chunk_(chunk),
        stage_(stage),
        step_(step),
        model_(model),
        every_(every),
        action_(action),
        phase_(action.phase) {}

  std::vector<Piece> write() {
    switch (action_.phase) {
      case Phase::kForward:
        forward();
        break;
      case Phase::kBackward:
      case Phase::kBackwardInput:
        backward();
        break;
      case Phase::kBackwardWeights:
        weights();
        break;
      case Phase::kRecompute:
      case Phase::kUpdate:
        break;
    }
    return std::move(list_);
  }

 private:
  // --- lists of one action ---
  void forward() {
    if (action_.gathers && !every_.gathers) gather_all();
    if (chunk_.has_embedding) {
      const States states = begin_states(kEmbedding, step_.ends->embedding_parameters, 0);
      compute({SegmentKind::kEmbedding, -1}, scaled(step_.ends->embedding_forward));
      end_states(states);
    }
    for (size_t i = 0; i < chunk_.layers.size(); ++i) {
      const LayerPrice& p = *chunk_.layers[i];
      const States states = begin_states(number(i), p.dense_parameters, p.expert_parameters);
      layer_forward(p, number(i), scale());
      end_states(states);
    }
    if (chunk_.has_head) {
      const States states = begin_states(kHead, head_parameters(), 0);
      compute({SegmentKind::kHead, -1}, scaled(step_.ends->head_forward));
      end_states(states);
    }
  }

  void backward() {
    if (chunk_.has_head) {
      const States states = begin_states(kHead, head_parameters(), 0);
      compute({SegmentKind::kHead, -1}, scaled(step_.ends->head_backward));
      end_states(states);
    }
    for (size_t i = chunk_.layers.size(); i-- > 0;) {
      const LayerPrice& p = *chunk_.layers[i];
      const States states = begin_states(number(i), p.dense_parameters, p.expert_parameters);
      recompute(p, number(i));
      layer_backward(p, number(i));
      end_states(states);
    }
    make_due();
    if (chunk_.has_embedding) {
      const States states = begin_states(kEmbedding, step_.ends->embedding_parameters, 0);
      compute({SegmentKind::kEmbedding, -1}, scaled(step_.ends->embedding_backward));
      end_states(states);
    }
  }

  // The ends have made theirs with the input's part.
  void weights() {
    if (chunk_.has_head) end_states(begin_states(kHead, head_parameters(), 0));
    for (size_t i = chunk_.layers.size(); i-- > 0;) {
      const LayerPrice& p = *chunk_.layers[i];
      const States states = begin_states(number(i), p.dense_parameters, p.expert_parameters);
      compute(net(number(i)), p.feed_forward.backward_weights * chunk_.weights_scale);
      compute({SegmentKind::kAttention, number(i)},
              p.attention.backward_weights * chunk_.weights_scale);
      end_states(states);
    }
    if (chunk_.has_embedding)
      end_states(begin_states(kEmbedding, step_.ends->embedding_parameters, 0));
  }

  // --- a layer ---
  void layer_forward(const LayerPrice& p, int32_t layer, double scale, bool turns = true) {
    attention(p.tensor_forward, p.context_forward, layer, p.attention.forward * scale);
    feed_forward(p, layer, p.dispatch, p.combine, p.feed_forward.forward * scale, turns);
  }

  void layer_backward(const LayerPrice& p, int32_t layer) {
    const bool is_split = action_.is_paired || action_.phase == Phase::kBackwardInput;
    const auto less_weights = [&](const BlockCompute& block) {
      const double all = block.backward * chunk_.backward_scale;
      return is_split ? std::max(0.0, all - block.backward_weights * chunk_.weights_scale) : all;
    };
    const Due weights{net(layer), action_.is_paired ? p.feed_forward.backward_weights : 0};
    feed_forward(p, layer, p.combine, p.dispatch, less_weights(p.feed_forward), true, weights);
    make_due();
    attention(p.tensor_backward, p.context_backward, layer, less_weights(p.attention));
    if (action_.is_paired) due_ = {{SegmentKind::kAttention, layer}, p.attention.backward_weights};
  }

  void make_due() {
    compute(due_.segment, due_.seconds * chunk_.weights_scale);
    due_ = {};
  }

  void attention(const Travel& tensor, const Travel& context, int32_t layer, double seconds) {
    const Segment segment{SegmentKind::kAttention, layer};
    for (const auto& [travel, axis, kind] :
         {std::tuple{&tensor, Axis::kTensor, SegmentKind::kTensor},
          {&context, Axis::kContext, SegmentKind::kContext}}) {
      if (travel->moves.total() <= 0) continue;
      const int32_t one = post(TaskKind::kCollective, {kind, layer}, axis, travel->moves);
      const double beside = std::min(travel->hidden, seconds);
      compute(segment, beside);
      wait(one);
      seconds -= beside;
    }
    compute(segment, seconds);
  }

  // Rows go, are computed with, and come back; in the backward their gradients do.
  void feed_forward(const LayerPrice& p, int32_t layer, const Travel& there, const Travel& back,
                    double seconds, bool turns, const Due& weights = Due()) {
    const Segment segment = net(layer);
    const double before = std::min(there.hidden, seconds / 2),
                 behind = std::min(back.hidden, seconds / 2);
    exchange(segment, SegmentKind::kGate, there, before, turns);
    if (p.expert_tensor.moves.total() > 0)
      wait(post(TaskKind::kCollective, {SegmentKind::kTensor, layer}, Axis::kExpertTensor,
                p.expert_tensor.moves));
    compute(segment, seconds - before - behind);
    make_due();
    due_ = weights;
    exchange(segment, SegmentKind::kExperts, back, behind, turns);
  }

  void exchange(const Segment& beside, SegmentKind rows, const Travel& travel, double seconds,
                bool turns) {
    if (travel.moves.total() <= 0) return compute(beside, seconds);
    const int32_t one =
        post(TaskKind::kAllToAll, {rows, beside.layer}, Axis::kExpert, travel.moves);
    list_.back().needs = &travel.needs;
    compute(beside, seconds);
    make_due();
    if (turns) list_.push_back({.kind = Piece::Kind::kTurn});
    wait(one);
  }

  void recompute(const LayerPrice& p, int32_t layer) {
    if (chunk_.recompute == Recompute::kNone) return;
    phase_ = Phase::kRecompute;
    if (chunk_.recompute == Recompute::kFull)
      layer_forward(p, layer, chunk_.backward_scale, false);
    else
      compute(chunk_.recompute == Recompute::kExperts ? net(layer)
                                                      : Segment{SegmentKind::kAttention, layer},
              p.again(chunk_.recompute, *step_.stack).compute * chunk_.backward_scale);
    phase_ = action_.phase;
  }

  // --- states ---
  struct States {
    std::vector<int32_t> waits;
    int32_t layer = 0;
    double dense = 0, experts = 0;
  };

  // `dense`, `experts`: parameters whose turn it is.
  States begin_states(int32_t layer, double dense, double experts) {
    States states{.waits = {}, .layer = layer, .dense = dense, .experts = experts};
    const bool is_forward = action_.phase == Phase::kForward;
    const bool is_weights = action_.phase == Phase::kBackwardWeights;
    const double hidden = step_.hidden_gradients;
    if (every_.gathers && !is_weights) {
      for (const int32_t one : gather(states, 1 - hidden, TaskKind::kCollective)) wait(one);
      states.waits = gather(states, hidden);
    } else if (!gathered_.empty() && is_forward) {
      for (const int32_t one : gathered_.front()) wait(one);
      gathered_.erase(gathered_.begin());
    }
    if (every_.reduces && makes_gradients())
      for (const int32_t one : reduce(states, hidden)) states.waits.push_back(one);
    return states;
  }

  // Updated weights in the order in which they are needed.
  void gather_all() {
    const double part = step_.hidden_gradients * stage_.traffic.gathers;
    const auto add = [&](int32_t layer, double dense, double experts) {
      gathered_.push_back(
          gather({.waits = {}, .layer = layer, .dense = dense, .experts = experts}, part));
    };
    if (chunk_.has_embedding) add(kEmbedding, step_.ends->embedding_parameters, 0);
    for (size_t i = 0; i < chunk_.layers.size(); ++i)
      add(number(i), chunk_.layers[i]->dense_parameters, chunk_.layers[i]->expert_parameters);
    if (chunk_.has_head) add(kHead, head_parameters(), 0);
  }

  void end_states(const States& states) {
    for (const int32_t one : states.waits) wait(one);
    if (!makes_gradients()) return;
    if (every_.reduces)
      for (const int32_t one : reduce(states, 1 - step_.hidden_gradients, TaskKind::kCollective))
        wait(one);
    else if (action_.reduces)
      reduce(states, step_.hidden_gradients);
  }

  bool makes_gradients() const {
    return action_.phase == Phase::kBackward || action_.phase == Phase::kBackwardWeights;
  }

  // What hides goes one after the other on a stream of its own; what is waited for at once does not
  // queue behind it.
  std::vector<int32_t> gather(const States& s, double part,
                              TaskKind task = TaskKind::kStateCollective) {
    std::vector<int32_t> posted;
    const auto add = [&](Axis axis, const Reduction& r, double parameters, double all) {
      if (r.gather.total() <= 0 || parameters <= 0 || part <= 0) return;
      posted.push_back(post(task, {SegmentKind::kWeights, s.layer}, axis,
                            part_of(r.gather, part * parameters / all)));
    };
    add(Axis::kData, stage_.traffic.dense, s.dense, stage_.dense_parameters);
    add(Axis::kExpertData, stage_.traffic.experts, s.experts, stage_.expert_parameters);
    return posted;
  }

  std::vector<int32_t> reduce(const States& s, double part,
                              TaskKind task = TaskKind::kStateCollective) {
    std::vector<int32_t> posted;
    const auto add = [&](Axis axis, SegmentKind kind, const Reduction& r, double parameters,
                         double all) {
      if (r.reduce.total() <= 0 || parameters <= 0 || part <= 0) return;
      posted.push_back(
          post(task, {kind, s.layer}, axis, part_of(r.reduce, part * parameters / all)));
    };
    add(Axis::kData, SegmentKind::kDenseGradients, stage_.traffic.dense, s.dense,
        stage_.dense_parameters);
    add(Axis::kExpertData, SegmentKind::kExpertGradients, stage_.traffic.experts, s.experts,
        stage_.expert_parameters);
    return posted;
  }

  // --- pieces ---
  void compute(const Segment& segment, double seconds) {
    if (seconds > 0)
      list_.push_back(
          {.kind = Piece::Kind::kCompute, .phase = phase_, .segment = segment, .seconds = seconds});
  }
  int32_t post(TaskKind task, const Segment& segment, Axis axis, const cost::Moves& moves) {
    const int32_t number = num_posts_++;
    list_.push_back({.kind = Piece::Kind::kPost,
                     .phase = phase_,
                     .segment = segment,
                     .task = task,
                     .axis = axis,
                     .moves = moves,
                     .post = number});
    return number;
  }
  void wait(int32_t one) { list_.push_back({.kind = Piece::Kind::kWait, .post = one}); }

  double scale() const {
    return action_.phase == Phase::kForward ? chunk_.forward_scale : chunk_.backward_scale;
  }
  double scaled(double seconds) const { return seconds * scale(); }
  int32_t number(size_t i) const {
    return static_cast<int32_t>(chunk_.first_layer) + static_cast<int32_t>(i);
  }
  Segment net(int32_t layer) const {
    return {model_.layers[static_cast<size_t>(layer)].feed_forward.is_moe()
                ? SegmentKind::kExperts
                : SegmentKind::kDenseMlp,
            layer};
  }

  // A shared table lies with both ends.
  double head_parameters() const {
    const bool copied = model_.tied_embeddings && !chunk_.has_embedding;
    return step_.ends->head_parameters + (copied ? step_.ends->embedding_parameters : 0);
  }

  static constexpr int32_t kEmbedding = -1, kHead = -2;
  const ChunkPart& chunk_;
  const StagePart& stage_;
  const StepParts& step_;
  const model::Model& model_;
  EveryMicroBatch every_;
  ActionKind action_;
  Phase phase_;
  Due due_;
  std::vector<Piece> list_;
  int32_t num_posts_ = 0;
  std::vector<std::vector<int32_t>> gathered_;  // of the next computing, and so on
};

}  // namespace

std::vector<Piece> pieces_of(const ChunkPart& chunk, const StagePart& stage, const StepParts& step,
                             const model::Model& model, EveryMicroBatch every, ActionKind action) {
  return Writer(chunk, stage, step, model, every, action).write();
}

}  // namespace piper::stack
