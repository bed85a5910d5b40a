#include <piper/cost/trainer/overlap_timeline.h>
#include <piper/cost/trainer/pair_overlap.h>
#include <piper/cost/trainer/stage_overlap.h>
#include <piper/strategy/rank_layout.h>

#include <algorithm>

namespace piper::cost {

using strategy::PipelineSchedule;
using strategy::Strategy;

namespace {

LevelUtilization mixed(const LevelUtilization& a, double part_a, const LevelUtilization& b) {
  LevelUtilization both;
  for (size_t l = 0; l < both.part.size(); ++l)
    both.part[l] = part_a * a.part[l] + (1 - part_a) * b.part[l];
  return both;
}

LevelUtilization state_needs(const Rates& rates, const Strategy& s, const StateTraffic& traffic) {
  const strategy::RankLayout layout(s);
  const auto seconds = [](const Reduction& r) { return r.reduce.total() + r.gather.total(); };
  const double dense = seconds(traffic.dense), experts = seconds(traffic.experts);
  const auto needs = [&](double of, strategy::Axis axis) {
    return of > 0 ? rates.ring_needs(layout.size(axis), layout.distance(axis)) : LevelUtilization{};
  };
  return mixed(needs(dense, strategy::Axis::kData), dense / (dense + experts),
               needs(experts, strategy::Axis::kExpertData));
}

// Walks the layers of a stage's virtual stages; seconds as busy_seconds() has them.
class OverlapWalk {
 public:
  OverlapWalk(const TrainerContext& context, const Strategy& s, const ShapePrices& prices,
              const StageSums& sums, const StateTraffic& traffic, int64_t stage, bool every)
      : context_(context),
        s_(s),
        prices_(prices),
        sums_(sums),
        traffic_(traffic),
        state_needs_(state_needs(context.rates.among(s.mesh.world()), s, traffic)),
        idle_(prices.needs, state_needs_),
        hidden_(context.trainer.hidden_gradients),
        stage_(stage),
        busy_(busy_seconds(context, sums)),
        scale_(compute_scale(context, sums)) {
    if (every) return;
    // What hides exchanges of a pair hides nothing else. The first forward and the last backwards
    // of 1F1B and interleaved are in no pair.
    if (strategy::pairs_share_layers(s.schedule)) return;
    const double computing = scale_.forward * sums.forward.compute +
                             scale_.backward * (sums.backward.compute + sums.again.compute);
    const double left = computing > 0 ? std::clamp(1 - busy_.hideable / computing, 0.0, 1.0) : 1;
    scale_.forward *= left;
    scale_.backward *= left;
  }

  // With every micro-batch.
  void every(bool gathers, bool reduces, StageOverlap& out) const {
    const LayerPrice* before = nullptr;
    LayerOverlap one;
    for_each_chunk(s_, stage_, [&](int64_t chunk) {
      ChunkOverlap sum;
      double pair_ends = 0;
      for_each_layer(
          chunk, false,
          [&](const LayerPrice* p, double dense, double experts, double forward, double backward) {
            if (p == nullptr || p != before)
              one = with_layer(p, gathers ? seconds(&Reduction::gather, dense, experts) : 0,
                               reduces ? seconds(&Reduction::reduce, dense, experts) : 0, forward,
                               backward);
            before = p;
            sum.forward += one.seconds.forward;
            sum.backward += one.seconds.backward;
            sum.backward_input += one.seconds.backward_input;
            sum.weights += one.seconds.weights;
            sum.reduces += one.seconds.reduces;
            sum.pair_saves += one.seconds.pair_saves;
            pair_ends = std::max(pair_ends, one.pair_ends);
          });
      sum.pair_saves -= pair_ends;
      add(sum, out);
      if (s_.mesh.vpp > 1 || strategy::pairs(s_.schedule)) out.chunks.push_back(sum);
    });
  }

  // Reductions behind the last gradients of each chunk, layer by layer; beside them runs what the
  // rank has still to do.
  void last(const Tail& tail, StageOverlap& out) const {
    OverlapTimeline beside = idle_;
    double alone = 0;
    for (const auto& [action, completes] : tail) {
      if (!completes) {
        beside.compute(alone_of(action));
        alone += alone_of(action);
        continue;
      }
      const bool is_whole = action.kind == schedule::Action::Kind::kBackward;
      const int64_t chunk = schedule::virtual_stage(s_.schedule, s_.mesh.pp, stage_, action.chunk);
      for_each_layer(
          chunk, true,
          [&](const LayerPrice* p, double dense, double experts, double, double backward) {
            const double weights = p != nullptr ? p->backward_weights * scale_.weights : 0;
            if (is_whole)
              pass_backward(beside, p, backward);
            else
              beside.compute(weights);
            alone += is_whole ? alone_backward(p, backward) : weights;
            beside.post(hidden_ * seconds(&Reduction::reduce, dense, experts));
          });
    }
    out.slowed = beside.now() - alone;
    out.rest = beside.queue() +
               (1 - hidden_) * (traffic_.dense.reduce.total() + traffic_.experts.reduce.total());
  }

  // Updated weights that come in from the start on, chunk after chunk, each before its first
  // forward; what does not hide of them comes at the end.
  void first(StageOverlap& out) const {
    const double all =
        traffic_.gathers * (traffic_.dense.gather.total() + traffic_.experts.gather.total());
    out.gathered = hidden_ * all;
    out.gathered_last = (1 - hidden_) * all;
    // Where they are awaited longest: where the pipeline begins, and where a V turns.
    const bool turns = strategy::is_v(s_.schedule) && stage_ + 1 == s_.mesh.pp;
    const double forward = busy_.forward / static_cast<double>(s_.mesh.vpp);
    double alone = static_cast<double>(stage_) * forward, left = out.gathered;
    if ((stage_ != 0 && !turns) || left <= alone) return;
    OverlapTimeline beside = idle_;
    beside.post(left);
    beside.compute(alone);
    bool is_first = true;
    for_each_chunk(s_, stage_, [&](int64_t chunk) {
      if (!is_first) {
        beside.compute(forward * between_chunks());
        alone += forward * between_chunks();
      }
      is_first = false;
      for_each_layer(
          chunk, false, [&](const LayerPrice* p, double dense, double experts, double end, double) {
            left -= hidden_ * traffic_.gathers * seconds(&Reduction::gather, dense, experts);
            beside.wait(std::max(0.0, left));
            pass_forward(beside, p, end);
            alone += alone_forward(p, end);
          });
    });
    out.first = beside.now() - alone;
  }

 private:
  // But what depends on how many backwards are split, in a schedule of pairs.
  void add(const ChunkOverlap& chunk, StageOverlap& to) const {
    to.forward += chunk.forward;
    if (strategy::pairs(s_.schedule)) return;
    if (strategy::splits_backward(s_.schedule)) {
      to.backward += chunk.backward_input;
      to.weights += chunk.weights;
    } else {
      to.backward += chunk.backward;
      to.reduces += chunk.reduces;
    }
  }

  struct LayerOverlap {
    ChunkOverlap seconds;
    double pair_ends = 0;  // that a chunk of such layers in pairs takes longer at its ends
  };

  // `in`, `back`: seconds of its weights that come in (once a pass), of its gradients that leave.
  LayerOverlap with_layer(const LayerPrice* p, double in, double back, double forward,
                          double backward) const {
    const bool pairs = strategy::pairs(s_.schedule);
    const bool splits = strategy::splits_backward(s_.schedule);
    LayerOverlap layer;
    ChunkOverlap& out = layer.seconds;
    OverlapTimeline ahead = idle_;
    ahead.post(hidden_ * in);
    pass_forward(ahead, p, forward);
    ahead.wait();
    out.forward = ahead.now() - alone_forward(p, forward) + (1 - hidden_) * in;
    if (pairs || !splits) out.backward = backward_with(p, in + back, backward, 0);
    if (!splits && in + back > 0) out.reduces = back / (in + back) * out.backward;
    if (splits) {
      const double weights = p != nullptr ? p->backward_weights * scale_.weights : 0;
      out.backward_input = backward_with(p, in, backward, weights);
      out.weights = std::max(0.0, hidden_ * back - weights) + (1 - hidden_) * back;
    }
    // Without an exchange there is no turn: one runs after the other.
    if (pairs && p != nullptr && p->mixture_forward.dispatch.moves.total() > 0) {
      const PairSeconds pair = pair_with(*p, in, back);
      const PairSaving& alone = prices_.saved_in_pairs(*p, s_.recompute_of(stage_));
      // No pair is faster for its states.
      out.pair_saves =
          std::min(out.forward + out.backward, alone_forward(p, forward) + out.forward +
                                                   alone_backward(p, backward) + out.backward -
                                                   pair.layer - alone.layer);
      layer.pair_ends = std::max(0.0, pair.ends - alone.ends);
    }
    return layer;
  }

  // `less`: gradients of weights that are made apart.
  double backward_with(const LayerPrice* p, double moves, double end, double less) const {
    OverlapTimeline beside = idle_;
    beside.post(hidden_ * moves);
    pass_backward(beside, p, end, less);
    beside.wait();
    return beside.now() - alone_backward(p, end) + less + (1 - hidden_) * moves;
  }

  // A pair's seconds in one layer; `in` arrives for the forward and for the backward.
  PairSeconds pair_with(const LayerPrice& p, double in, double back) const {
    const PairCompute compute = pair_compute(p, s_.recompute_of(stage_), context_.trainer, scale_);
    return pair_seconds(
        p, prices_.needs, compute,
        {.weights = in, .gradients = back, .hidden = hidden_, .needs = state_needs_});
  }

  // Forwards of a chunk's length from a micro-batch's on one chunk of the rank to its on the next.
  double between_chunks() const {
    const int64_t p = s_.mesh.pp;
    if (strategy::is_v(s_.schedule)) return static_cast<double>(2 * (p - 1 - stage_));
    return static_cast<double>(p - 1);
  }

  double seconds(CommTime Reduction::*what, double dense, double experts) const {
    double sum = 0;
    if (dense > 0) sum += (traffic_.dense.*what).total() * dense / sums_.dense_parameters;
    if (experts > 0) sum += (traffic_.experts.*what).total() * experts / sums_.expert_parameters;
    return sum;
  }

  // visit(layer or null for an end, parameters, an end's seconds forward and backward); backwards:
  // from the head.
  void for_each_layer(int64_t chunk, bool backwards, auto visit) const {
    const EndPrice& ends = prices_.ends;
    const bool head = chunk + 1 == std::ssize(s_.layers_per_stage);
    int64_t first = 0;
    for (int64_t c = 0; c < chunk; ++c) first += s_.layers_per_stage[static_cast<size_t>(c)];
    const int64_t n = s_.layers_per_stage[static_cast<size_t>(chunk)];
    const auto embed = [&] {
      if (chunk == 0)
        visit(nullptr, ends.embedding_parameters, 0.0, ends.embedding_forward * scale_.forward,
              ends.embedding_backward * scale_.backward);
    };
    const auto project = [&] {
      if (head)
        visit(nullptr, ends.head_parameters, 0.0, ends.head_forward * scale_.forward,
              ends.head_backward * scale_.backward);
    };
    if (backwards)
      project();
    else
      embed();
    for (int64_t i = 0; i < n; ++i) {
      const int64_t layer = backwards ? first + n - 1 - i : first + i;
      const LayerPrice& p = prices_.of_layer(layer);
      visit(&p, p.dense_parameters, p.expert_parameters, 0.0, 0.0);
    }
    if (backwards)
      embed();
    else
      project();
  }

  // A chunk's part of what the rank's chunks take.
  double alone_of(const schedule::Action& action) const {
    using Kind = schedule::Action::Kind;
    const auto chunks = static_cast<double>(s_.mesh.vpp);
    switch (action.kind) {
      case Kind::kForward:
        return busy_.forward / chunks;
      case Kind::kBackward:
        return busy_.backward / chunks;
      case Kind::kBackwardInput:
        return (busy_.backward - busy_.weights) / chunks;
      case Kind::kBackwardWeights:
        return busy_.weights / chunks;
    }
    return 0;
  }

  double again(const LayerPrice& p) const {
    const strategy::Recompute recompute = s_.recompute_of(stage_);
    if (recompute == strategy::Recompute::kNone) return 0;
    const PassPrice pass = p.again(recompute, context_.trainer);
    return pass.compute * scale_.backward + communication(pass);
  }
  void pass_forward(OverlapTimeline& beside, const LayerPrice* p, double end) const {
    if (p == nullptr) return beside.compute(end);
    beside.forward(*p, p->attention.forward * scale_.forward,
                   p->feed_forward.forward * scale_.forward);
  }
  void run_again(OverlapTimeline& beside, const LayerPrice& p) const {
    if (s_.recompute_of(stage_) == strategy::Recompute::kFull)
      beside.forward(p, p.attention.forward * scale_.backward,
                     p.feed_forward.forward * scale_.backward);
    else
      beside.compute(again(p));
  }
  void pass_backward(OverlapTimeline& beside, const LayerPrice* p, double end,
                     double less = 0) const {
    if (p == nullptr) return beside.compute(end);
    run_again(beside, *p);
    const double all = p->backward.compute * scale_.backward;
    const double kept = all > 0 ? std::max(0.0, all - less) / all * scale_.backward : 0;
    beside.backward(*p, p->attention.backward * kept, p->feed_forward.backward * kept);
  }
  double alone_forward(const LayerPrice* p, double end) const {
    return p == nullptr ? end : p->forward.compute * scale_.forward + communication(p->forward);
  }
  double alone_backward(const LayerPrice* p, double end) const {
    return p == nullptr
               ? end
               : again(*p) + p->backward.compute * scale_.backward + communication(p->backward);
  }

  const TrainerContext& context_;
  const Strategy& s_;
  const ShapePrices& prices_;
  const StageSums& sums_;
  const StateTraffic& traffic_;
  LevelUtilization state_needs_;
  OverlapTimeline idle_;
  double hidden_;
  int64_t stage_;
  BusySeconds busy_;
  ComputeScale scale_;
};

}  // namespace

StageOverlap StageOverlaps::of_stage(const Strategy& s, const ShapePrices& prices,
                                     const StageSums& sums, int64_t stage) {
  StageOverlap out;
  const StateTraffic traffic = state_traffic(context_, s, sums);
  if (traffic.total() <= 0) return out;
  const bool reduces = reduces_every(s), gathers = s.zero == 3 && reduces;
  const OverlapWalk walk(context_, s, prices, sums, traffic, stage, reduces);
  if (reduces) walk.every(gathers, reduces, out);
  if (!reduces) walk.last(schedules_.tail(s, stage), out);
  if (!gathers) walk.first(out);
  return out;
}

void StageOverlaps::set_backward(const Strategy& s, int64_t stage, StageOverlap& out) {
  const ListFacts& list = schedules_.lists(s)[static_cast<size_t>(stage)];
  out.backward = 0;
  for (size_t i = 0; i < out.chunks.size(); ++i) {
    const ChunkOverlap& chunk = out.chunks[i];
    out.backward += list.whole[i] * chunk.backward +
                    (1 - list.whole[i]) * (chunk.backward_input + chunk.weights) -
                    list.paired * chunk.pair_saves;
  }
}

bool StageOverlaps::reduces_every(const Strategy& s) const {
  return s.zero >= 2 && !(s.mesh.pp > 1 && context_.trainer.keeps_weights_in_pipelines);
}

// Where a V turns, a rank's second chunk follows its first at once: weights may come in later than
// forwards.
bool StageOverlaps::awaits_weights(const Strategy& s, const StageSums& sums, int64_t stage,
                                   const StageOverlap& like) const {
  if (!strategy::is_v(s.schedule) || stage + 1 < s.mesh.pp || like.gathered <= 0) return false;
  return like.gathered > static_cast<double>(s.mesh.pp) / 2 * busy_seconds(context_, sums).forward;
}

const std::vector<StageOverlap>& StageOverlaps::of(const Strategy& s, const ShapePrices& prices,
                                                   const StrategySums& sums) {
  if (sums.number != sums_number_) known_.clear();
  sums_number_ = sums.number;
  const Key key{s.mesh.dp,   s.num_micro_batches, s.zero,
                s.placement, s.schedule,          s.expert_compression};
  for (const auto& [known, found] : known_)
    if (known == key) return found;
  const std::vector<StageSums>& of = sums.stages;
  std::vector<StageOverlap> stages;
  for (int64_t stage = 0; stage < s.mesh.pp; ++stage) {
    const auto i = static_cast<size_t>(stage);
    // In a V's last actions no stage is like the one before it.
    const bool repeats = stage > 1 && of[i].same_as(of[i - 1]) &&
                         (!strategy::is_v(s.schedule) || reduces_every(s)) &&
                         s.layers_per_stage[i] == s.layers_per_stage[i - 1] &&
                         s.recompute_of(stage) == s.recompute_of(stage - 1) &&
                         !awaits_weights(s, of[i], stage, stages.back());
    stages.push_back(repeats ? stages.back() : of_stage(s, prices, of[i], stage));
    if (reduces_every(s) && strategy::pairs(s.schedule)) set_backward(s, stage, stages.back());
  }
  return known_.emplace_back(key, std::move(stages)).second;
}

// Under 1F1B, GPipe and interleaved chunks the last backward of every stage follows that of the
// stage behind it, and what slows one slows the end; the stages behind have been done before. Split
// backwards end together.
double shown_states(const Strategy& s, const std::vector<StageOverlap>& stages,
                    const std::vector<double>& earlier) {
  double tail = 0, slowed = 0, gathered = 0, first = 0;
  const bool split = strategy::splits_backward(s.schedule);
  for (size_t i = stages.size(); i-- > 0;) {
    slowed = split ? std::max(slowed, stages[i].slowed) : slowed + stages[i].slowed;
    tail = std::max(tail, slowed + stages[i].rest - earlier[i]);
    gathered = std::max(gathered, stages[i].gathered_last);
    first = std::max(first, stages[i].first);
  }
  return std::max(tail, slowed) + first + gathered;
}

}  // namespace piper::cost
