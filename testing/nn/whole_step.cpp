#include <piper/base/error.h>
#include <piper/nn/mtp.h>
#include <piper/nn/tensor_ops.h>
#include <piper/nn/token_routes.h>
#include <testing/nn/whole_step.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <functional>
#include <limits>

namespace piper::nn::testing {
namespace {

using Tensors = std::vector<at::Tensor>;

// What the backward of one layer needs again, for every rank.
struct LayerState {
  Tensors x, x1, received, returned;
  std::vector<Routing> routing;
  std::vector<collective::KnownRoutes> known;  // where tokens travel
  std::deque<Tape> attention, feed_forward, shared, experts;
  explicit LayerState(size_t ranks)
      : x(ranks),
        x1(ranks),
        received(ranks),
        returned(ranks),
        routing(ranks),
        attention(ranks),
        feed_forward(ranks),
        shared(ranks),
        experts(ranks) {}
};

int64_t sum(const std::vector<int64_t>& counts, size_t first, size_t count) {
  int64_t total = 0;
  for (size_t i = first; i < first + count; ++i) total += counts[i];
  return total;
}

// rows[i] holds, for every member j, a stretch of sizes(i, j) rows; member j receives them in the
// order of i.
template <class Sizes>
Tensors exchange_rows(const Tensors& rows, Sizes sizes) {
  const size_t ranks = rows.size();
  if (ranks == 1) return rows;
  std::vector<Tensors> arriving(ranks);
  for (size_t i = 0; i < ranks; ++i) {
    int64_t start = 0;
    for (size_t j = 0; j < ranks; ++j) {
      arriving[j].push_back(rows[i].narrow(0, start, sizes(i, j)));
      start += sizes(i, j);
    }
  }
  Tensors received;
  for (const Tensors& parts : arriving) received.push_back(at::cat(parts));
  return received;
}

// Routes among ranks of which each is a node of its own.
std::vector<collective::KnownRoutes> exchange_routes(const std::vector<Routing>& routing) {
  const auto ranks = std::ssize(routing);
  const collective::Units units(collective::apart(ranks), 0);
  std::vector<collective::TokenRoutes> experts;
  for (const Routing& of : routing) experts.push_back(chosen_experts(of));
  std::vector<collective::KnownRoutes> known;
  for (int64_t to = 0; to < ranks; ++to) {
    // Batches may differ in size here, so each message has its sender's shape.
    const auto shape_of = [&](int64_t r) {
      return collective::RoutesShape{.num_tokens = experts[static_cast<size_t>(r)].num_tokens(),
                                     .experts_a_member = std::ssize(routing[0].counts) / ranks};
    };
    collective::RoutesShape largest = shape_of(0);
    for (int64_t r = 1; r < ranks; ++r)
      largest.num_tokens = std::max(largest.num_tokens, shape_of(r).num_tokens);
    known.emplace_back(to, units, largest, experts[static_cast<size_t>(to)]);
    for (int64_t from = 0; from < ranks; ++from) {
      collective::TokenRoutes padded = experts[static_cast<size_t>(from)];
      while (padded.num_tokens() < largest.num_tokens) padded.add({});
      std::vector<std::byte> message(
          static_cast<size_t>(collective::told_bytes(from, to, units, largest)));
      collective::tell(padded, collective::members_of_experts(padded, largest.experts_a_member),
                       from, to, units, largest, message);
      known.back().hear(from, message);
    }
  }
  return known;
}

// Each rank's token rows to every rank that wants them, by source, then token.
Tensors spread_tokens(const Tensors& tokens, const std::vector<collective::KnownRoutes>& known) {
  Tensors received;
  for (size_t to = 0; to < tokens.size(); ++to) {
    Tensors parts;
    for (size_t from = 0; from < tokens.size(); ++from) {
      const collective::TokenRoutes& own = known[from].own();
      const auto rows = rows_for(own, {0, own.num_tokens()}, static_cast<int32_t>(to));
      parts.push_back(tokens[from].index_select(0, at::tensor(rows, at::kInt)));
    }
    received.push_back(at::cat(parts));
  }
  return received;
}

// The way back: what all ranks have for a token is added.
Tensors sum_tokens(const Tensors& rows, const std::vector<collective::KnownRoutes>& known) {
  Tensors tokens;
  for (const collective::KnownRoutes& of : known)
    tokens.push_back(at::zeros({of.own().num_tokens(), rows[0].size(1)}, rows[0].options()));
  for (size_t from = 0; from < rows.size(); ++from) {
    int64_t begin = 0;
    for (size_t to = 0; to < rows.size(); ++to) {
      const collective::TokenRoutes& own = known[to].own();
      const auto mine = rows_for(own, {0, own.num_tokens()}, static_cast<int32_t>(from));
      tokens[to].index_add_(0, at::tensor(mine, at::kInt),
                            rows[from].narrow(0, begin, std::ssize(mine)));
      begin += std::ssize(mine);
    }
  }
  return tokens;
}

// The least difference between the n-th largest of a row and the next.
double selection_gap(const at::Tensor& rows, int64_t n) {
  if (n >= rows.size(1)) return std::numeric_limits<double>::infinity();
  const at::Tensor sorted = std::get<0>(at::sort(rows, 1, /*descending=*/true));
  return (sorted.select(1, n - 1) - sorted.select(1, n)).min().item<double>();
}

// scores [T, E], without the selection bias.
double selection_margin(const model::FeedForward& f, const at::Tensor& scores_TE,
                        const at::Tensor& bias_E) {
  const at::Tensor choice_TE = bias_E.defined() ? scores_TE + bias_E : scores_TE.clone();
  if (f.num_groups <= 1 || f.top_groups >= f.num_groups) return selection_gap(choice_TE, f.top_k);
  const at::Tensor grouped = choice_TE.view({choice_TE.size(0), f.num_groups, -1});
  const bool two_best = f.score == model::Score::kSigmoid && grouped.size(2) > 1;
  const at::Tensor rank = std::get<0>(at::topk(grouped, two_best ? 2 : 1, -1)).sum(-1);
  limit_groups_(choice_TE, f.num_groups, f.top_groups, f.score == model::Score::kSigmoid);
  return std::min(selection_gap(rank, f.top_groups), selection_gap(choice_TE, f.top_k));
}

// Returns how near one expert's weights of one sequence, of which `rows` stay, come to the edge of
// a tie.
double capacity_margin(std::vector<double> weights, int64_t rows) {
  double least = std::numeric_limits<double>::infinity();
  if (std::ssize(weights) <= rows) return least;
  std::sort(weights.begin(), weights.end(), std::greater<>());
  const double cut = weights[static_cast<size_t>(rows - 1)];
  const double band = std::log1p(capacity_tie(at::kFloat));
  for (const double weight : weights)
    least = std::min(least, std::abs(std::abs(std::log(weight / cut)) - band));
  return least;
}

// `trained`: of every sequence's positions, those before its padding.
double capacity_margin(const model::FeedForward& f, const at::Tensor& scores_TE,
                       const at::Tensor& expert_TK, int64_t sequence, int64_t trained,
                       const strategy::Capacity& capacity) {
  double least = std::numeric_limits<double>::infinity();
  if (!capacity.is_limited() || capacity.drop != strategy::Drop::kProbability) return least;
  const int64_t rows = strategy::expert_capacity(capacity.factor, trained, f.top_k, f.num_experts);
  at::Tensor weights_TK = scores_TE.gather(1, expert_TK.to(at::kLong));
  if (f.normalise_top_k) weights_TK = weights_TK / weights_TK.sum(1, true);
  for (int64_t first = 0; first < scores_TE.size(0); first += sequence)
    for (int64_t e = 0; e < f.num_experts; ++e) {
      const at::Tensor of_expert = weights_TK.narrow(0, first, trained)
                                       .masked_select(expert_TK.narrow(0, first, trained).eq(e))
                                       .to(at::kDouble);
      const double* begin = of_expert.const_data_ptr<double>();
      least = std::min(least, capacity_margin({begin, begin + of_expert.numel()}, rows));
    }
  return least;
}

class Step {
 public:
  Step(const model::Model& model, const std::vector<Stage*>& group,
       const std::vector<Batch>& batches, const strategy::Capacity& capacity)
      : model_(model),
        group_(group),
        batches_(batches),
        capacity_(capacity),
        ranks_(group.size()),
        sequence_(batches.at(0).tokens_BS.size(1)) {}

  RoutingMargin run() {
    Tensors x(ranks_);
    for (size_t r = 0; r < ranks_; ++r) x[r] = group_[r]->embedding_forward(batches_[r].tokens_BS);
    const auto num_layers = static_cast<int32_t>(model_.num_layers());
    for (int32_t layer = 0; layer < num_layers; ++layer) forward(layer, x);
    heads(num_layers, x);
    for (int32_t layer = num_layers - 1; layer >= 0; --layer) backward(layer, x);
    for (size_t r = 0; r < ranks_; ++r) group_[r]->embedding_backward(batches_[r].tokens_BS, x[r]);
    return margin_;
  }

 private:
  // From the input of a head (layer: that of the module behind it) to its gradient, through all
  // modules behind it.
  void heads(int32_t layer, Tensors& x) {
    const Tensors h = x;
    const bool is_module = layer > model_.num_layers();
    const bool is_joined = layer < std::ssize(model_.layers);
    Tensors g(ranks_);
    for (size_t r = 0; r < ranks_; ++r) {
      Tape tape;
      const at::Tensor& targets_T = batches_[r].targets_T;
      if (is_module)
        group_[r]->mtp_head_forward(layer - 1, h[r], targets_T, &tape);
      else
        group_[r]->head_forward(h[r], targets_T, &tape);
      g[r] = is_module ? group_[r]->mtp_head_backward(layer - 1, h[r], tape)
                       : group_[r]->head_backward(h[r], targets_T, tape);
      if (is_joined) x[r] = group_[r]->mtp_join_forward(layer, h[r], batches_[r].tokens_BS);
    }
    if (!is_joined) {
      x = g;
      return;
    }
    forward(layer, x);
    heads(layer + 1, x);
    backward(layer, x);
    for (size_t r = 0; r < ranks_; ++r) {
      Tape tape;
      x[r] = group_[r]->mtp_join_backward(layer, x[r], g[r], h[r], batches_[r].tokens_BS, tape);
    }
  }

  // Rows from rank i to rank j, and back.
  auto sent(const LayerState& s) const {
    const size_t local = s.routing[0].counts.size() / ranks_;
    return [&s, local](size_t i, size_t j) { return sum(s.routing[i].counts, j * local, local); };
  }
  auto came(const LayerState& s) const {
    return [forth = sent(s)](size_t i, size_t j) { return forth(j, i); };
  }

  bool has_shared(int32_t layer) const {
    return model_.layers[static_cast<size_t>(layer)].feed_forward.has_shared();
  }
  bool is_moe(int32_t layer) const {
    return model_.layers[static_cast<size_t>(layer)].feed_forward.is_moe();
  }

  void forward(int32_t layer, Tensors& x) {
    LayerState& s = layers_.emplace_back(ranks_);
    for (size_t r = 0; r < ranks_; ++r) {
      s.x[r] = x[r];
      s.x1[r] = group_[r]->attention_forward(layer, x[r], sequence_, &s.attention[r]);
    }
    if (!is_moe(layer)) {
      for (size_t r = 0; r < ranks_; ++r)
        x[r] = group_[r]->dense_mlp_forward(layer, s.x1[r], &s.feed_forward[r]);
      return;
    }
    for (size_t r = 0; r < ranks_; ++r)
      x[r] = group_[r]->gate_forward(layer, s.x1[r], sequence_, s.routing[r], &s.feed_forward[r]);
    for (size_t r = 0; r < ranks_; ++r) note_margin(layer, r, s.feed_forward[r]);
    dispatch(s, x);
    for (size_t r = 0; r < ranks_; ++r)
      x[r] = group_[r]->experts_forward(layer, s.received[r], s.routing[r], &s.experts[r]);
    s.returned = s.known.empty() ? exchange_rows(x, came(s)) : sum_tokens(x, s.known);
    for (size_t r = 0; r < ranks_; ++r)
      x[r] = group_[r]->merge_forward(
          layer, s.returned[r], s.routing[r],
          has_shared(layer) ? group_[r]->shared_forward(layer, s.x1[r], &s.shared[r]) : s.x1[r]);
  }

  // A gate's tape holds its scores, or with a z-loss of sigmoid scores their logits, and its
  // choices.
  void note_margin(int32_t layer, size_t rank, const Tape& tape) {
    const model::FeedForward& f = model_.layers[static_cast<size_t>(layer)].feed_forward;
    const bool logits = f.score == model::Score::kSigmoid && tape.saved.at(3).defined();
    const at::Tensor scores_TE = logits ? at::sigmoid(tape.saved.at(0)) : tape.saved.at(0);
    margin_.selection = std::min(
        margin_.selection, selection_margin(f, scores_TE, group_[rank]->selection_bias(layer)));
    margin_.capacity = std::min(
        margin_.capacity, capacity_margin(f, scores_TE, tape.saved.at(1), sequence_,
                                          model_.trained_positions(layer, sequence_), capacity_));
  }

  void backward(int32_t layer, Tensors& g) {
    LayerState& s = layers_[static_cast<size_t>(layer)];
    if (is_moe(layer)) {
      mixture_backward(layer, s, g);
    } else {
      for (size_t r = 0; r < ranks_; ++r)
        g[r] = group_[r]->dense_mlp_backward(layer, g[r], s.x1[r], s.feed_forward[r]);
    }
    for (size_t r = 0; r < ranks_; ++r)
      g[r] = group_[r]->attention_backward(layer, g[r], s.x[r], s.x1[r], sequence_, s.attention[r]);
  }

  void mixture_backward(int32_t layer, LayerState& s, Tensors& g) {
    Tensors rows(ranks_), weights(ranks_);
    for (size_t r = 0; r < ranks_; ++r) {
      auto merged = group_[r]->merge_backward(layer, g[r], s.returned[r], s.routing[r]);
      rows[r] = merged.returned;
      weights[r] = merged.weights;
    }
    rows = s.known.empty() ? exchange_rows(rows, sent(s)) : spread_tokens(rows, s.known);
    for (size_t r = 0; r < ranks_ && has_shared(layer); ++r)
      g[r] = group_[r]->shared_backward(layer, g[r], s.x1[r], s.shared[r]);
    for (size_t r = 0; r < ranks_; ++r)
      rows[r] =
          group_[r]->experts_backward(layer, rows[r], s.received[r], s.routing[r], s.experts[r]);
    if (s.known.empty()) {
      rows = exchange_rows(rows, came(s));
    } else {
      rows = sum_tokens(rows, s.known);
      Tensors g_received;
      for (const Routing& routing : s.routing) g_received.push_back(routing.g_received_weights);
      weights = exchange_rows(g_received, came(s));
    }
    for (size_t r = 0; r < ranks_; ++r)
      g[r] = group_[r]->gate_backward(layer, rows[r], weights[r], g[r], s.x1[r], s.routing[r],
                                      s.feed_forward[r]);
  }

  void dispatch(LayerState& s, const Tensors& rows) const {
    if (!s.routing[0].deduplicated) {
      exchange_counts(s);
      s.received = exchange_rows(rows, sent(s));
      return;
    }
    s.known = exchange_routes(s.routing);
    s.received = spread_tokens(rows, s.known);
    Tensors weights;
    for (const Routing& routing : s.routing) weights.push_back(routing.weights);
    weights = exchange_rows(weights, sent(s));
    for (size_t r = 0; r < ranks_; ++r) {
      set_received(s.routing[r], s.known[r]);
      s.routing[r].received_weights = weights[r];
    }
  }

  void exchange_counts(LayerState& s) const {
    const size_t local = s.routing[0].counts.size() / ranks_;
    for (size_t r = 0; r < ranks_ && ranks_ > 1; ++r)
      for (size_t peer = 0; peer < ranks_; ++peer)
        for (size_t e = 0; e < local; ++e)
          s.routing[r].received_counts.push_back(s.routing[peer].counts[r * local + e]);
  }
  const model::Model& model_;
  const std::vector<Stage*>& group_;
  const std::vector<Batch>& batches_;
  strategy::Capacity capacity_;
  RoutingMargin margin_;
  size_t ranks_;
  int64_t sequence_;
  std::deque<LayerState> layers_;
};

}  // namespace

model::Model tiny_model(const std::string& family) {
  model::Model m;
  m.name = "tiny " + family;
  m.family = family;
  m.hidden = 24;
  m.vocabulary = 40;
  m.initializer_range = 0.2;
  m.router_aux_coefficient = 0.05;
  model::Layer layer;
  layer.attention = {.num_heads = 4, .num_kv_heads = 2, .head_dim = 6};
  layer.feed_forward = {.ffn = 10, .num_experts = 6, .top_k = 2};
  layer.feed_forward.normalise_top_k = family != "olmoe";
  if (family == "qwen3_moe") layer.attention.qk_norm = model::QkNorm::kPerHead;
  if (family == "olmoe") {
    layer.attention.qk_norm = model::QkNorm::kFull;
    layer.attention.num_kv_heads = 4;
  }
  if (family == "llama") layer.feed_forward = {.ffn = 20};
  if (family == "qwen2_moe") {
    layer.attention.query_bias = layer.attention.key_bias = layer.attention.value_bias = true;
    layer.feed_forward.shared_ffn = 14;
    layer.feed_forward.shared_gate = true;
  }
  if (family.starts_with("deepseek")) {
    const bool third = family == "deepseek_v3";
    layer.attention.kind = model::AttentionKind::kLatent;
    layer.attention.num_kv_heads = 4;
    layer.attention.latent = {.query_rank = third ? 12 : 0,
                              .key_value_rank = 8,
                              .nope_head_dim = 6,
                              .rope_head_dim = 4,
                              .value_head_dim = third ? 10 : 7};
    layer.attention.head_dim = 10;
    layer.feed_forward.shared_ffn = 14;
    layer.feed_forward.score = third ? model::Score::kSigmoid : model::Score::kSoftmax;
    layer.feed_forward.selection_bias = layer.feed_forward.normalise_top_k = third;
    layer.feed_forward.routed_scaling = 1.5;
    layer.feed_forward.num_groups = 3;
    layer.feed_forward.top_groups = 2;
    m.rope = {.interleaved = true,
              .scaling = "yarn",
              .factor = 4,
              .original_positions = 16,
              .mscale = 1,
              .mscale_all_dim = 1};
  }
  m.layers = {layer, layer};
  return m;
}

strategy::Strategy tiny_strategy(const model::Model& model, int64_t pp, int64_t ep,
                                 int64_t sequence) {
  strategy::Strategy s;
  s.mesh = {.pp = pp, .ep = ep, .dp = ep};
  s.layers_per_stage.assign(static_cast<size_t>(pp), model.num_layers() / pp);
  s.sequence = sequence;
  return s;
}

Batch random_batch(const model::Model& model, int64_t sequences, int64_t sequence, uint64_t seed) {
  at::Tensor state = at::empty({sequences, sequence}, at::kLong);
  uint64_t x = seed * 2654435761u + 1;
  for (int64_t i = 0; i < state.numel(); ++i) {
    x = x * 6364136223846793005u + 1442695040888963407u;
    state.data_ptr<int64_t>()[i] =
        static_cast<int64_t>((x >> 33) % static_cast<uint64_t>(model.vocabulary));
  }
  at::Tensor targets = at::full_like(state, -100);
  targets.narrow(1, 0, sequence - 1).copy_(state.narrow(1, 1, sequence - 1));
  targets.select(1, 1).fill_(-100);
  return {state, targets.view({-1})};
}

int64_t num_targets(const Batch& batch, int64_t depth) {
  return mtp_targets(batch.targets_T, batch.tokens_BS.size(0), depth)
      .ne(-100)
      .sum()
      .item<int64_t>();
}

std::vector<int64_t> num_mtp_targets(const model::Model& model, const Batch& batch) {
  std::vector<int64_t> counts;
  for (int64_t depth = 1; depth <= model.mtp_depth; ++depth)
    counts.push_back(num_targets(batch, depth));
  return counts;
}

RoutingMargin run_step(const model::Model& model, const std::vector<Stage*>& group,
                       const std::vector<Batch>& batches, const strategy::Capacity& capacity) {
  return Step(model, group, batches, capacity).run();
}

NamedTensors values(Stage& stage) {
  NamedTensors out;
  for (const NamedPiece& piece : stage.named_pieces()) out[piece.name] = piece.value.clone();
  return out;
}

NamedTensors gradients(Stage& stage) {
  NamedTensors out;
  for (const NamedPiece& piece : stage.named_pieces()) out[piece.name] = piece.gradient.clone();
  return out;
}

double largest_difference(const NamedTensors& a, const NamedTensors& b) {
  double largest = 0;
  for (const auto& [name, tensor] : b) {
    const at::Tensor difference = (a.at(name) - tensor).abs().max(),
                     scale = tensor.abs().max() + 1e-30;
    largest = std::max(largest, (difference / scale).item<double>());
  }
  return largest;
}

}  // namespace piper::nn::testing
