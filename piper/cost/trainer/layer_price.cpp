#include <piper/cost/trainer/layer_pass.h>
#include <piper/cost/trainer/layer_price.h>
#include <piper/cost/trainer/mixture_order.h>
#include <piper/model/count.h>

#include <algorithm>

namespace piper::cost {
namespace {

using model::AttentionKind;
using strategy::Precision;
using strategy::Recompute;

CommTime twice(const CommTime& moves) { return {2 * moves.latency, 2 * moves.transfer}; }
CollectiveCost hidden_behind(const CommTime& moves, double seconds) {
  return {.moves = moves, .hidden = seconds};
}

class LayerPricer {
 public:
  LayerPricer(const model::Model& model, const model::Layer& layer, const LayerShape& shape,
              const TrainerProfile& trainer, const Rates& rates, Precision precision)
      : model_(model),
        layer_(layer),
        s_(shape),
        trainer_(trainer),
        rates_(rates),
        precision_(precision),
        hidden_(static_cast<double>(model.hidden)),
        tp_(static_cast<double>(shape.tp)),
        local_tokens_(shape.sequence_parallel ? shape.tokens / tp_ : shape.tokens) {}

  LayerPrice price() {
    p_.input_bytes = kElement * local_tokens_ * hidden_;
    attention();
    if (layer_.feed_forward.is_moe())
      mixture();
    else
      dense();
    residuals();
    parameters();
    host();
    tensor_collectives();
    return p_;
  }

 private:
  void add(BlockCompute& block, double forward, double backward, double weights) {
    block.forward += forward;
    block.backward += backward;
    block.backward_weights += weights;
    p_.forward.compute += forward;
    p_.backward.compute += backward;
    p_.backward_weights += weights;
  }
  void add(BlockCompute& block, const LayerPass& pass, double part = 1) {
    add(block, part * pass.forward(), part * pass.backward(), part * pass.weights());
  }

  double head_dim() const {
    const model::Attention& a = layer_.attention;
    if (a.kind == AttentionKind::kLatent)
      return static_cast<double>(a.latent.nope_head_dim + a.latent.rope_head_dim);
    if (a.kind == AttentionKind::kGatedDelta) return static_cast<double>(a.delta.key_head_dim);
    return static_cast<double>(a.head_dim);
  }

  // Queries, keys with values, and attention's output, elements of one token on this rank.
  struct Heads {
    double queries = 0, keys_and_values = 0, output = 0;
  };
  Heads heads() const {
    const model::Attention& a = layer_.attention;
    const auto n = static_cast<double>(a.num_heads) / tp_;
    if (a.kind == AttentionKind::kLatent) {
      const model::LatentAttention& l = a.latent;
      const auto value = static_cast<double>(l.value_head_dim);
      return {n * head_dim(), n * (head_dim() + value), n * value};
    }
    if (a.kind == AttentionKind::kGatedDelta) {
      const model::GatedDeltaAttention& d = a.delta;
      const double key = static_cast<double>(d.key_heads * d.key_head_dim) / tp_;
      const double value = static_cast<double>(d.value_heads * d.value_head_dim) / tp_;
      return {key, key + value, value};
    }
    // Fewer key heads than ranks: each rank still holds one.
    const double kv = std::max(static_cast<double>(a.num_kv_heads) / tp_, 1.0);
    const auto d = static_cast<double>(a.head_dim), v = static_cast<double>(a.value_dim());
    return {n * d, kv * (d + v), n * v};
  }
  // Keys and values that the layer projects itself, elements of one token on this rank.
  double projected_keys_and_values(const Heads& h) const {
    const model::Attention& a = layer_.attention;
    if (a.kind != AttentionKind::kGrouped || a.key_value == model::KeyValue::kProjected)
      return h.keys_and_values;
    return h.keys_and_values * static_cast<double>(a.projected_key_width()) /
           static_cast<double>(a.key_width() + a.value_width());
  }

  void projections(LayerPass& pass, const Heads& h) {
    const double t = s_.tokens;
    const model::Attention& a = layer_.attention;
    if (a.kind == AttentionKind::kLatent) {
      const model::LatentAttention& l = a.latent;
      const auto rank = static_cast<double>(l.key_value_rank);
      const auto rope = static_cast<double>(l.rope_head_dim);
      const auto query = static_cast<double>(l.query_rank);
      if (query > 0) pass.linear(t, query, hidden_);
      pass.linear(t, h.queries, query > 0 ? query : hidden_);
      pass.linear(t, rank + rope, hidden_);
      const auto n = static_cast<double>(a.num_heads) / tp_;
      pass.linear(t, n * static_cast<double>(l.nope_head_dim + l.value_head_dim), rank);
      // Rotary and plain parts put side by side, and taken apart again.
      pass.elements(2 * t * (h.queries + h.keys_and_values),
                    3 * t * (h.queries + h.keys_and_values), 8);
    } else {
      const double gate = (a.output_gate ? h.queries : 0) +
                          (a.head_gate ? static_cast<double>(a.num_heads) / tp_ : 0);
      pass.linear(t, h.queries + gate + projected_keys_and_values(h), hidden_);
      if (a.rotary)
        pass.elements(2 * t * (h.queries + h.keys_and_values / 2),
                      2 * t * (h.queries + h.keys_and_values / 2), 2);
      if (a.qk_norm != model::QkNorm::kNone)
        pass.elements(2 * t * (h.queries + h.keys_and_values / 2),
                      4 * t * (h.queries + h.keys_and_values / 2), 2);
    }
    pass.linear(t, hidden_, h.output);
  }

  // Products of the indexer and of the layer's own embedding: every rank of a tensor-parallel group
  // computes them whole.
  void small_products(LayerPass& pass) const {
    const double t = s_.tokens;
    const model::Attention& a = layer_.attention;
    const model::Indexer& i = a.indexer;
    if (i.has_weights()) {
      const bool latent = a.kind == AttentionKind::kLatent;
      pass.linear(t, static_cast<double>(i.heads * i.head_dim),
                  latent ? static_cast<double>(a.latent.query_rank) : hidden_);
      pass.linear(t, static_cast<double>(i.head_dim + (latent ? i.heads : 0)), hidden_);
    }
    if (layer_.input_width == 0) return;
    const auto width = static_cast<double>(layer_.input_width);
    pass.linear(t, 2 * width, hidden_);
    pass.linear(t, hidden_, width);
  }

  // Scores that are written out: both products as plain ones over all pairs, and the passes of
  // softmax and dropout.
  void unfused_scores(LayerPass& pass) {
    const auto n = static_cast<double>(layer_.attention.num_heads) / tp_;
    const int64_t window = layer_.attention.window;
    const double span =
        window > 0 ? std::min(s_.sequence, static_cast<double>(window)) : s_.sequence;
    const double pairs = s_.tokens * span * n;
    const double flops =
        2 * pairs * (head_dim() + static_cast<double>(layer_.attention.value_dim()));
    constexpr double kBatchedEfficiency = 0.45;  // of the peak: batched products of one head each
    const double seconds = flops / (kBatchedEfficiency * rates_.peak_flops_per_second());
    add(p_.attention, seconds, 2 * seconds, 0);
    p_.scores_forward += seconds;
    pass.elements(trainer_.softmax_passes * pairs, trainer_.softmax_passes * pairs, 3);

    p_.attention_bytes += pairs * (2 * kElement + (trainer_.dropout ? 1 : 0));
  }

  bool fused() const {
    return trainer_.fused_attention && (trainer_.fuses_sinks || !layer_.attention.sinks);
  }

  void attention() {
    LayerPass pass(rates_, precision_);
    const Heads h = heads();
    projections(pass, h);
    small_products(pass);
    const double flops = model::layer_token_flops(model_, layer_, static_cast<int64_t>(s_.sequence))
                             .attention_scores /
                         tp_ * s_.tokens;
    if (fused() || layer_.attention.kind != AttentionKind::kGrouped) {
      const double before = pass.forward();
      pass.attention(flops, s_.sequence, head_dim());
      p_.scores_forward += pass.forward() - before;
      context(pass.forward() - before, h);
    } else {
      unfused_scores(pass);
    }
    p_.attention_forward = pass.forward() + (fused() ? 0 : p_.scores_forward);
    add(p_.attention, pass);
    const double rotary = trainer_.keeps_rotary_inputs ? h.queries + h.keys_and_values / 2 : 0;
    const bool keeps_keys = layer_.attention.key_value != model::KeyValue::kOfEarlierLayer;
    double kept = h.queries + (keeps_keys ? h.keys_and_values : 0) + h.output + rotary;
    if (layer_.attention.kind == AttentionKind::kLatent) {
      const model::LatentAttention& l = layer_.attention.latent;
      kept += static_cast<double>(2 * l.query_rank + 2 * l.key_value_rank);
    }
    const double bytes = kElement * s_.tokens * kept;
    if (trainer_.recomputes_scores_only)
      p_.other_bytes += bytes;
    else
      p_.attention_bytes += bytes;
    p_.attention_bytes += kElement * local_tokens_ * hidden_;  // normalised input
  }

  // Keys and values of the other ranks arrive while attention works on those that are there.
  void context(double attention_seconds, const Heads& h) {
    if (s_.cp == 1) return;
    const auto cp = static_cast<double>(s_.cp);
    const double bytes = kElement * s_.tokens * h.keys_and_values * cp;
    const CommTime ring = rates_.all_gather(s_.cp, s_.tp, bytes);
    constexpr double kMostHidden = 0.9;
    p_.context_forward =
        hidden_behind(ring, std::min(attention_seconds, kMostHidden * ring.total()));
    p_.context_backward = hidden_behind(
        twice(ring), std::min(2.5 * attention_seconds, kMostHidden * 2 * ring.total()));
    p_.forward.context += p_.context_forward.exposed();
    p_.backward.context += p_.context_backward.exposed();
  }

  // Bytes of a feed-forward's own intermediates: the first product's output and the second's input.
  double ffn_bytes(double rows, double ffn, int64_t matrices) const {
    const double up = matrices == 3 ? 2 : 1;
    return kElement * rows * ffn * (up + 1 + (trainer_.keeps_gate_output && matrices == 3 ? 1 : 0));
  }

  void dense() {
    const model::FeedForward& f = layer_.feed_forward;
    LayerPass pass(rates_, precision_);
    const double ffn = static_cast<double>(f.ffn) / tp_;
    pass.feed_forward(s_.tokens, hidden_, ffn, f.num_matrices);
    p_.experts_forward = pass.forward();
    add(p_.feed_forward, pass);
    p_.experts_bytes += ffn_bytes(s_.tokens, ffn, f.num_matrices);
    p_.other_bytes += kElement * local_tokens_ * hidden_;    // residual after attention
    p_.experts_bytes += kElement * local_tokens_ * hidden_;  // normalised
    p_.backward_bytes = std::max(
        p_.backward_bytes, kElement * s_.tokens * (ffn * (f.num_matrices == 3 ? 3 : 2) + hidden_));
  }

  // What one rank routes and sends of a mixture layer. A strategy's own words for it are
  // strategy::repeats_rows(), divides_rows(), fuses_exchange() and gathers_expert_rows().
  struct MixtureRows {
    double own = 0;       // tokens of the rank's: shared experts, what is kept of the gate
    double tokens = 0;    // that the rank routes
    double rows = 0;      // of those: gate, merge
    double sent = 0;      // of those, by this rank
    double received = 0;  // by the experts' products
    // Whether ranks that share an expert receive different rows and gather them, or are all sent
    // all rows in one exchange; else they receive the same ones.
    bool is_gathered = false, is_fused = false;
    double gathered = 0;  // tokens that are gathered in front of the layer
    double output = 0;    // tokens or rows of a whole tp group that are gathered behind the layer
    Group exchange;
  };
  MixtureRows mixture_rows() const {
    const auto k = static_cast<double>(layer_.feed_forward.top_k);
    const auto etp = static_cast<double>(s_.etp);
    const double rows_of_token = k * s_.rows_of_copy;
    const bool holds = trainer_.schedules_mixtures && s_.tp > 1 && !s_.sequence_parallel;
    const bool repeats = holds && s_.moe_schedule != strategy::MoeSchedule::kParmS1;
    const bool divides = repeats && traits(s_.moe_schedule).divides_rows;
    MixtureRows r{.own = repeats ? s_.tokens : s_.tokens / tp_};
    r.tokens = r.own;
    const bool gathers = trainer_.schedules_mixtures && traits(s_.moe_schedule).gathers_tokens;
    if (gathers) r.gathered = r.tokens *= etp;
    r.rows = r.tokens * rows_of_token;
    r.sent = divides ? r.rows / tp_ : r.rows;
    r.is_fused = s_.etp > 1 && traits(s_.moe_schedule).fuses_exchange;
    r.is_gathered =
        s_.etp > 1 && !r.is_fused && !gathers && !(repeats && !divides && s_.tp % s_.etp == 0);
    r.received = r.sent * (r.is_gathered || r.is_fused ? etp : 1) * s_.imbalance;
    r.output = divides ? r.rows : holds && !repeats ? s_.tokens : 0;
    r.exchange =
        r.is_fused ? Group{.size = s_.ep * s_.etp} : Group{.stride = s_.etp, .size = s_.ep};
    return r;
  }

  void mixture() {
    const model::FeedForward& f = layer_.feed_forward;
    const auto experts = static_cast<double>(f.num_experts);
    const auto etp = static_cast<double>(s_.etp), ffn = static_cast<double>(f.ffn);
    const MixtureRows r = mixture_rows();
    const double local = experts / static_cast<double>(s_.ep);
    const auto chunks = static_cast<double>(s_.moe_chunks);
    LayerPass routing(rates_, precision_);
    const double passes = trainer_.mixture_passes;
    routing.elements(12 * passes * r.tokens * experts, 12 * passes * r.tokens * experts,
                     6 * passes);
    const double sorted = 2 * passes * (r.sent + r.rows) * hidden_;
    routing.elements(sorted, sorted, 6 * passes);  // sorted, and back
    if (traits(s_.moe_schedule).groups_peers && s_.moe_chunks > 1) {
      // Every further group of peers adds its copies to all tokens.
      const auto further = static_cast<double>(s_.moe_chunks - 1);
      routing.elements(2 * further * r.tokens * hidden_, 2 * further * r.tokens * hidden_, further);
    }
    const bool converted = trainer_.dispatch_element_bytes < kElement;
    if (converted) routing.elements(2 * r.tokens * hidden_, 2 * r.tokens * hidden_);
    add(p_.feed_forward, routing);
    LayerPass products(rates_, precision_), shared(rates_, precision_);
    products.feed_forward(r.received / local / chunks, hidden_, ffn / etp, f.num_matrices,
                          local * chunks, trainer_.grouped_efficiency, converted);
    const double shared_ffn =
        static_cast<double>(f.shared_ffn + f.parallel_dense_ffn) / shared_ranks();
    const double shared_tokens = trainer_.schedules_mixtures ? r.own : s_.tokens;
    if (shared_ffn > 0)
      shared.feed_forward(shared_tokens, hidden_, shared_ffn, f.num_dense_matrices);
    p_.experts_forward = products.forward() + shared.forward();
    add(p_.feed_forward, products);
    add(p_.feed_forward, shared);
    exchange(r, products, shared);
    p_.experts_bytes += ffn_bytes(r.received, ffn / etp, f.num_matrices);
    if (shared_ffn > 0)
      p_.experts_bytes += ffn_bytes(shared_tokens, shared_ffn, f.num_dense_matrices);
    p_.other_bytes += kElement * r.received * hidden_;         // rows as they came in
    p_.other_bytes += 2 * kElement * local_tokens_ * hidden_;  // residual, normalised
    p_.other_bytes += 4 * r.own * experts;                     // probabilities
    p_.backward_bytes =
        std::max(p_.backward_bytes, kElement * r.received * (3 * ffn / etp + hidden_));
  }

  // Ranks that divide the matrices of shared experts.
  double shared_ranks() const { return trainer_.schedules_mixtures ? 1 : tp_; }

  void exchange(const MixtureRows& r, const LayerPass& products, const LayerPass& shared) {
    const double elements =
        r.sent * hidden_ * s_.imbalance * (r.is_fused ? static_cast<double>(s_.etp) : 1);
    const bool plain = is_plain(s_.exchange.algorithm);
    const int64_t stride = r.exchange.stride, size = r.exchange.size;
    const double copies = crosses_once(trainer_, s_.exchange.algorithm)
                              ? static_cast<double>(layer_.feed_forward.top_k)
                              : 1;
    // In its own order, not in that of a library.
    const bool is_rotated = trainer_.chooses_exchange && copies == 1 &&
                            s_.exchange.algorithm == strategy::AllToAll::kFlat;
    const double pair_elements = elements / s_.imbalance / static_cast<double>(size);
    const auto travel = [&](double element_bytes) {
      const double bytes = element_bytes * elements;
      CommTime moves = rates_.all_to_all(size, stride, bytes, copies);
      if (!plain) {  // what is longer than its bytes is waiting
        const double flat = rates_.all_to_all(size, stride, bytes, 1).total();
        const double seconds = rates_.exchange_seconds(
            size, stride, s_.exchange, {element_bytes * pair_elements, s_.imbalance},
            {&layer_.feed_forward, element_bytes * hidden_}, flat);
        moves.transfer = std::min(moves.transfer, seconds);
        moves.latency = seconds - moves.transfer;
      }
      if (is_rotated)
        moves = times_flat(moves,
                           rates_.over_node_aware(size, stride, s_.exchange,
                                                  {element_bytes * pair_elements, s_.imbalance}));
      CollectiveCost one = hidden_behind(moves, trainer_.hidden_exchange * moves.total());
      one.needs = rates_.all_to_all_needs(size, stride, bytes, copies, moves.transfer);
      return one;
    };
    MixtureCollectives m{.dispatch = travel(trainer_.dispatch_element_bytes),
                         .combine = travel(kElement)};
    if (!plain)
      p_.exchange_bytes = rates_.exchange_scratch(size, stride, s_.exchange,
                                                  kElement * s_.imbalance * pair_elements,
                                                  {&layer_.feed_forward, kElement * hidden_});
    // A gather and a reduce-scatter of the rows, or an all-reduce.
    const CommTime among = s_.etp > 1 && !r.is_fused
                               ? rates_.all_gather(s_.etp, 1, kElement * r.received * hidden_)
                               : CommTime{};
    m.expert_tensor.moves = twice(among);
    m.gathered_first = r.is_gathered ? 0.5 : 0;
    if (r.gathered > 0)
      m.tokens.moves = rates_.all_gather(s_.etp, 1, kElement * r.gathered * hidden_);
    if (r.output > 0) m.output.moves = rates_.all_gather(s_.tp, 1, kElement * r.output * hidden_);
    // With groups of peers, what each chunk moves; by_group() scales it to a whole exchange.
    std::vector<CommTime> groups;
    if (traits(s_.moe_schedule).groups_peers && s_.moe_chunks > 1)
      for (int64_t i = 0; i < s_.moe_chunks; ++i)
        groups.push_back(rates_.all_to_all(size, stride, kElement * elements,
                                           strategy::token_chunk(size, s_.moe_chunks, i)));
    const double flat = rates_.all_to_all(size, stride, kElement * elements, 1).total();
    const auto by_group = [&](const CollectiveCost& whole) {
      std::vector<CommTime> scaled = groups;
      for (CommTime& of : scaled) {
        of.latency *= whole.moves.total() / flat;
        of.transfer *= whole.moves.total() / flat;
      }
      return scaled;
    };
    p_.mixture_forward = p_.mixture_backward = m;
    p_.has_shared_beside =
        trainer_.schedules_mixtures && s_.moe_chunks == 1 && layer_.feed_forward.has_shared();
    if (trainer_.schedules_mixtures) {
      in_order(r, among, products.forward(), shared.forward(), p_.feed_forward.forward,
               p_.mixture_forward, by_group);
      std::swap(p_.mixture_backward.dispatch, p_.mixture_backward.combine);
      const auto backward = [&](double all, double weights) {
        return s_.splits_backward ? all - weights : all;
      };
      in_order(r, among, backward(products.backward(), products.weights()),
               backward(shared.backward(), shared.weights()),
               backward(p_.feed_forward.backward, p_.feed_forward.backward_weights),
               p_.mixture_backward, by_group);
      std::swap(p_.mixture_backward.dispatch, p_.mixture_backward.combine);
    }
    const auto expose = [](const MixtureCollectives& pass, PassPrice& to) {
      to.exchange += pass.exposed();
      to.tensor += pass.tokens.exposed() + pass.expert_tensor.exposed() + pass.output.exposed();
    };
    expose(p_.mixture_forward, p_.forward);
    expose(p_.mixture_backward, p_.backward);
  }

  // What of a pass's travels hides, `m.dispatch` being the first of its exchanges. What does behind
  // compute runs beside parts of it; of what hides behind other travels those are shorter by it.
  // `by_group(exchange)`: its chunks where they are groups of peers, else none.
  void in_order(const MixtureRows& r, const CommTime& among, double experts, double shared,
                double block, MixtureCollectives& m, auto by_group) const {
    const int64_t n = s_.moe_chunks;
    MixtureParts parts{.num_chunks = n,
                       .there = m.dispatch.moves,
                       .in = r.is_gathered ? among : CommTime{},
                       .sum = r.is_gathered ? among : twice(among),
                       .back = m.combine.moves,
                       .out = m.output.moves,
                       .there_of_chunk = by_group(m.dispatch),
                       .back_of_chunk = by_group(m.combine),
                       .experts = experts / s_.compute_efficiency,
                       .beside = shared / s_.compute_efficiency};
    const auto share = [&](const CollectiveCost& exchange, int64_t ranks) {
      return need_one_link(exchange.needs, rates_.ring_needs(ranks, 1));
    };
    parts.is_one_link = (among.total() > 0 && share(m.dispatch, s_.etp)) ||
                        (parts.out.total() > 0 && share(m.combine, s_.tp));
    for (CollectiveCost* of : {&m.dispatch, &m.combine, &m.expert_tensor, &m.output})
      of->moves = of_chunks(of->moves, n);
    if (!parts.there_of_chunk.empty()) {
      m.dispatch.moves = of_chunks(parts.there_of_chunk);
      m.combine.moves = of_chunks(parts.back_of_chunk);
    }
    const double all = m.dispatch.moves.total() + m.combine.moves.total() +
                       m.expert_tensor.moves.total() + m.output.moves.total();
    double hidden = all + parts.experts + parts.beside - seconds_together(parts);
    if (all <= 0 || hidden <= 0) return;
    // Half of the block's compute at most runs beside each exchange.
    const double most = block / s_.compute_efficiency / 2;
    for (CollectiveCost* exchange : {&m.dispatch, &m.combine}) {
      exchange->hidden = std::min({hidden, exchange->moves.total(), most});
      hidden -= exchange->hidden;
    }
    for (CollectiveCost* of : {&m.output, &m.expert_tensor, &m.combine, &m.dispatch}) {
      const double less = std::min(hidden, of->moves.total() - of->hidden);
      hidden -= less;
      const double of_transfer = std::min(less, of->moves.transfer);
      of->moves.transfer -= of_transfer;
      of->moves.latency = std::max(0.0, of->moves.latency - (less - of_transfer));
    }
  }

  // Two norms, two residual additions; with old profiles dropout in each.
  void residuals() {
    LayerPass pass(rates_, precision_);
    const double drop = trainer_.dropout ? 2 : 0;
    pass.elements(local_tokens_ * hidden_ * (10 + drop), local_tokens_ * hidden_ * (12 + drop), 6);
    add(p_.attention, pass, 0.5);
    add(p_.feed_forward, pass, 0.5);
  }

  // Blocks whose products are divided: attention always, the feed-forward unless its experts are
  // not.
  void tensor_collectives() {
    if (s_.tp == 1) return;
    const double bytes = kElement * s_.tokens * hidden_;
    const bool moe = layer_.feed_forward.is_moe();
    const bool shared = layer_.feed_forward.shared_ffn > 0 && !trainer_.schedules_mixtures;
    const double blocks = moe ? (shared ? 1.5 : 1) : 2;
    const double backward = s_.sequence_parallel && trainer_.gathers_twice ? 3 : 2;
    const CommTime one = rates_.all_gather(s_.tp, 1, bytes);  // an all-reduce is two of them
    const auto travel = [&](double times) {
      const CommTime moves{times * one.latency, times * one.transfer};
      return hidden_behind(moves, trainer_.hidden_tensor * moves.total());
    };
    p_.tensor_forward = travel(2 * blocks);
    p_.tensor_backward = travel(backward * blocks);
    if (s_.sequence_parallel) {
      p_.arrives_forward = 0.5;
      p_.arrives_backward = (backward - 1) / backward;
    }
    p_.forward.tensor += p_.tensor_forward.exposed();
    p_.backward.tensor += p_.tensor_backward.exposed();
  }

  void host() {
    p_.host_seconds = layer_.feed_forward.is_moe() && trainer_.host_seconds_per_mixture_layer > 0
                          ? trainer_.host_seconds_per_mixture_layer
                          : trainer_.host_seconds_per_layer;
  }

  void parameters() {
    const model::LayerParameters n = model::count_layer(model_, layer_);
    const double divided = static_cast<double>(n.attention + n.dense_mlp) / tp_ +
                           static_cast<double>(n.shared_experts) / shared_ranks();
    const int64_t whole = n.dense() - n.attention - n.dense_mlp - n.shared_experts;
    p_.dense_parameters = divided + static_cast<double>(whole);
    p_.expert_parameters =
        static_cast<double>(n.routed_experts) / static_cast<double>(s_.ep * s_.etp);
    if (!trainer_.keeps_weight_placeholders) return;
    p_.placeholder_bytes = kElement * divided;
    if (layer_.feed_forward.is_moe())
      p_.placeholder_bytes += kElement * static_cast<double>(n.routed_experts) /
                              static_cast<double>(layer_.feed_forward.num_experts * s_.etp);
  }

  const model::Model& model_;
  const model::Layer& layer_;
  const LayerShape& s_;
  const TrainerProfile& trainer_;
  const Rates& rates_;
  Precision precision_;
  double hidden_, tp_, local_tokens_;
  LayerPrice p_;
};

}  // namespace

double LayerPrice::kept_bytes(Recompute recompute, const TrainerProfile& trainer) const {
  if (recompute == Recompute::kFull) return input_bytes;
  if (recompute == Recompute::kAttention && trainer.selective_kept_part > 0)
    return input_bytes + other_bytes +
           trainer.selective_kept_part * (attention_bytes + experts_bytes);
  double bytes = input_bytes + other_bytes;
  if (!drops_attention(recompute)) bytes += attention_bytes;
  if (!drops_experts(recompute)) bytes += experts_bytes;
  return bytes;
}

PassPrice LayerPrice::again(Recompute recompute, const TrainerProfile& trainer) const {
  if (recompute == Recompute::kFull) return forward;
  PassPrice pass;
  if (recompute == Recompute::kAttention && trainer.selective_kept_part > 0) {
    pass.compute = (1 - trainer.selective_kept_part) * forward.compute;
    return pass;
  }
  if (drops_attention(recompute))
    pass.compute += trainer.recomputes_scores_only ? scores_forward : attention_forward;
  if (drops_experts(recompute)) pass.compute += experts_forward;
  return pass;
}

LayerPrice price_layer(const model::Model& model, const model::Layer& layer,
                       const LayerShape& shape, const TrainerProfile& trainer, const Rates& rates,
                       Precision precision) {
  return LayerPricer(model, layer, shape, trainer, rates, precision).price();
}

}  // namespace piper::cost
