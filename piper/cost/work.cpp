#include <piper/base/error.h>
#include <piper/cost/work.h>
#include <piper/model/count.h>
#include <piper/model/shared_layer.h>
#include <piper/strategy/state_bytes.h>

#include <algorithm>

namespace piper::cost {
namespace {

using model::AttentionKind;
using schedule::SegmentKind;

// Collects the work of one segment. A linear layer adds one GEMM forward, two backward. A backward
// in two parts has the weights' GEMMs and the norms that they read in one, and everything else in
// the other.
class List {
 public:
  // `counted`: the part of the rows whose gradients of weights this rank takes.
  List(graph::Phase phase, double element_bytes, double counted = 1)
      : backward_(graph::is_backward(phase)),
        wants_input_(phase != graph::Phase::kBackwardWeights),
        wants_weights_(phase != graph::Phase::kBackwardInput),
        element_bytes_(element_bytes),
        counted_(counted) {
    list_.reserve(24);
  }

  void linear(double m, double n, double k, double repetitions = 1) {
    if (m <= 0 || n <= 0 || k <= 0 || repetitions <= 0) return;
    if (!backward_) return gemm(m, n, k, repetitions);
    if (wants_input_) gemm(m, k, n, repetitions);
    if (wants_weights_) gemm(n, k, counted_ * m, repetitions);
  }
  // `forward` and `backward` passes over `elements`, reading or writing each once.
  void pass(double elements, double forward, double backward) {
    const double bytes = elements * (backward_ ? backward : forward) * element_bytes_;
    if (bytes > 0) add({.kind = WorkKind::kElementWise, .amount = bytes});
  }
  // What the weights' GEMMs read and no forward has kept.
  void again(double elements, double passes) {
    if (backward_ && wants_weights_ && elements > 0)
      list_.push_back({.kind = WorkKind::kElementWise,
                       .amount = counted_ * elements * passes * element_bytes_});
  }
  // Rows that are brought together by expert, and back; the weights' part brings both of its
  // operands together.
  void row_copies(double elements, double count) {
    const double each = backward_ && wants_input_ && wants_weights_ ? 3 : 2;
    if (elements > 0)
      list_.push_back({.kind = WorkKind::kCopy,
                       .amount = elements * element_bytes_,
                       .repetitions = each * count});
  }
  void exponential(double elements) {
    if (elements > 0) add({.kind = WorkKind::kExponential, .amount = elements, .launches = 0});
  }
  // Rows moved between places: payload once in, once out.
  void copy(double elements) {
    if (elements > 0) add({.kind = WorkKind::kCopy, .amount = elements * element_bytes_});
  }
  void launches(double count) { add({.kind = WorkKind::kElementWise, .launches = count}); }
  void add(Work work) {
    if (wants_input_) list_.push_back(work);
  }
  void gemm(double m, double n, double k, double repetitions) {
    list_.push_back({.kind = WorkKind::kGemm,
                     .amount = 2 * m * n * k,
                     .m = m,
                     .n = n,
                     .k = k,
                     .repetitions = repetitions});
  }
  bool backward() const { return backward_; }
  std::vector<Work> take() { return std::move(list_); }

 private:
  bool backward_, wants_input_, wants_weights_;
  double element_bytes_, counted_;
  std::vector<Work> list_;
};

// Norm of the residual stream: y := norm(x). Backward: once more, and the gradient in place from x
// and the residual's gradient.
void norm(List& list, double tokens, double hidden) {
  list.pass(tokens * hidden, 2, 0);
  list.again(tokens * hidden, 2);
  list.pass(tokens * hidden, 0, 4);
}

// On a ring: of a step, which are all alike (nn::RingStep).
void scores(List& list, const model::Model& model, const model::Layer& layer, double head_dim,
            const SegmentWork& work) {
  const double forward = model::layer_token_flops(model, layer, work.sequence).attention_scores *
                         static_cast<double>(work.all_tokens()) /
                         static_cast<double>(work.by.is_ring ? work.by.context : 1);
  if (forward <= 0) return;
  list.add(
      {.kind = list.backward() ? WorkKind::kAttentionBackward : WorkKind::kAttention,
       .amount = list.backward() ? 2 * forward : forward,
       .sequence = static_cast<double>(work.sequence / (work.by.is_ring ? work.by.context : 1)),
       .head_dim = head_dim});
}

// `from`: width of what its queries are projected from.
void indexer(List& list, const model::Attention& a, double from, double hidden, double tokens) {
  const model::Indexer& i = a.indexer;
  if (!i.has_weights()) return;
  const int64_t head_weights = a.kind == AttentionKind::kLatent ? i.heads : 0;
  list.linear(tokens, static_cast<double>(i.heads * i.head_dim), from);
  list.linear(tokens, static_cast<double>(i.head_dim + head_weights), hidden);
}

// Attention of ranks that share a sequence is two segments: the projections of own tokens, and
// what follows when the keys and values of all are there; on a ring these are scores with the keys
// and values of each rank, and then the outputs' projection.
enum class AttentionPart : uint8_t { kWhole, kProjection, kScoresAndOutput, kRingStep, kOutput };
constexpr bool projects(AttentionPart part) {
  return part == AttentionPart::kWhole || part == AttentionPart::kProjection;
}
constexpr bool scores_keys(AttentionPart part) {
  return part != AttentionPart::kProjection && part != AttentionPart::kOutput;
}
constexpr bool puts_out(AttentionPart part) {
  return part != AttentionPart::kProjection && part != AttentionPart::kRingStep;
}
AttentionPart part_behind_projection(const SegmentWork& work) {
  if (work.by.is_ring) return AttentionPart::kOutput;
  return work.by.context > 1 ? AttentionPart::kScoresAndOutput : AttentionPart::kWhole;
}

// As nn/ computes it: one projection forward; backward recomputes the norm (and the norms of q and
// k) and takes the three parts of the projection one by one.
void grouped_attention(List& list, const model::Model& model, const model::Layer& layer,
                       const SegmentWork& work, AttentionPart part) {
  const model::Attention& a = layer.attention;
  const auto tokens = static_cast<double>(work.all_tokens());
  const auto q = static_cast<double>(a.query_width() * (a.output_gate ? 2 : 1) +
                                     (a.head_gate ? a.num_heads : 0));
  const auto k = static_cast<double>(a.projected_key_width()),
             v = static_cast<double>(a.projected_value_width());
  const auto out = static_cast<double>(a.output_width());
  const auto kv = static_cast<double>(a.key_width());
  const auto d = static_cast<double>(model.hidden);
  if (!projects(part)) {
  } else if (!list.backward()) {
    list.linear(tokens, q + k + v, d);
  } else {
    list.linear(tokens, q, d);
    if (k == v) {
      if (k > 0) list.linear(tokens, k, d, 2);
    } else {
      if (k > 0) list.linear(tokens, k, d);
      if (v > 0) list.linear(tokens, v, d);
    }
  }
  if (projects(part) && a.qk_norm != model::QkNorm::kNone) list.pass(tokens * (q + kv), 2, 2 + 3);
  if (projects(part) && a.rotary)
    list.pass(tokens * (q + kv), 2, a.qk_norm == model::QkNorm::kNone ? 2 : 4);
  if (scores_keys(part)) scores(list, model, layer, static_cast<double>(a.head_dim), work);
  // What a step puts together; its gradients of queries, keys and values.
  if (part == AttentionPart::kRingStep) list.pass(tokens * (q + k + v), 2, 3);
  if (!puts_out(part)) return;
  if (a.output_gate || a.head_gate) list.pass(tokens * out, 3, 5);
  list.linear(tokens, d, out);
  indexer(list, a, d, d, tokens);
}

void latent_attention(List& list, const model::Model& model, const model::Layer& layer,
                      const SegmentWork& work, AttentionPart part) {
  const model::LatentAttention& a = layer.attention.latent;
  const auto tokens = static_cast<double>(work.all_tokens());
  const auto heads = static_cast<double>(layer.attention.num_heads);
  const auto d = static_cast<double>(model.hidden);
  const auto rope = static_cast<double>(a.rope_head_dim);
  const auto nope = static_cast<double>(a.nope_head_dim);
  const auto value = static_cast<double>(a.value_head_dim);
  const double head = nope + rope;
  if (!projects(part)) {
  } else if (a.query_rank > 0) {
    list.linear(tokens, static_cast<double>(a.query_rank), d);
    norm(list, tokens, static_cast<double>(a.query_rank));
    list.linear(tokens, heads * head, static_cast<double>(a.query_rank));
  } else {
    list.linear(tokens, heads * head, d);
  }
  const auto rank = static_cast<double>(a.key_value_rank);
  if (projects(part)) {
    list.linear(tokens, rank + rope, d);
    list.pass(tokens * (heads + 1) * rope, 2, 2);
  }
  if (scores_keys(part)) {
    // The keys and values of all tokens of the sequences; of one rank's on a ring.
    const double all = tokens * static_cast<double>(work.by.is_ring ? 1 : work.by.context);
    norm(list, all, rank);
    list.linear(all, heads * (nope + value), rank);
    list.copy(all * heads * 2 * head);  // rotary and plain parts put side by side
    scores(list, model, layer, head, work);
  }
  if (part == AttentionPart::kRingStep) list.pass(tokens * heads * (head + value), 2, 3);
  if (!puts_out(part)) return;
  list.linear(tokens, d, heads * value);
  indexer(list, layer.attention, static_cast<double>(std::max<int64_t>(a.query_rank, 1)), d,
          tokens);
}

void delta_attention(List& list, const model::Model& model, const model::Layer& layer,
                     const SegmentWork& work) {
  const model::GatedDeltaAttention& a = layer.attention.delta;
  const auto tokens = static_cast<double>(work.all_tokens());
  const auto key = static_cast<double>(a.key_heads * a.key_head_dim);
  const auto value = static_cast<double>(a.value_heads * a.value_head_dim);
  const auto d = static_cast<double>(model.hidden);
  list.linear(tokens, 2 * key + 2 * value + 2 * static_cast<double>(a.value_heads), d);
  list.pass(tokens * (2 * key + value) * static_cast<double>(a.conv_kernel), 2, 4);
  scores(list, model, layer, static_cast<double>(a.key_head_dim), work);
  list.pass(tokens * value, 4, 8);  // gated norm
  list.linear(tokens, d, value);
}

void attention(List& list, const model::Model& model, const model::Layer& layer,
               const SegmentWork& work, AttentionPart part) {
  const auto tokens = static_cast<double>(work.all_tokens());
  const auto d = static_cast<double>(model.hidden);
  if (projects(part)) norm(list, tokens, d);
  if (layer.input_width > 0 &&
      part != AttentionPart::kRingStep) {  // its projection and gate, its way out
    const auto width = static_cast<double>(layer.input_width);
    list.linear(tokens, 2 * width, d);
    list.linear(tokens, d, width);
  }
  switch (layer.attention.kind) {
    case AttentionKind::kGrouped:
      grouped_attention(list, model, layer, work, part);
      break;
    case AttentionKind::kLatent:
      latent_attention(list, model, layer, work, part);
      break;
    case AttentionKind::kGatedDelta:
      delta_attention(list, model, layer, work);
      break;
  }
  if (scores_keys(part)) list.pass(tokens * d, 2, 0);  // residual
}

// num_matrices 3: gate and up in one GEMM, SwiGLU, down; 2: up, activation, down.
void mlp(List& list, double rows, double ffn, double d, int64_t num_matrices,
         double repetitions = 1) {
  const double up = num_matrices == 3 ? 2 * ffn : ffn;
  list.linear(rows, up, d, repetitions);
  list.pass(rows * repetitions * ffn, num_matrices == 3 ? 3 : 2, num_matrices == 3 ? 6 : 4);
  list.exponential(rows * repetitions * ffn);
  list.linear(rows, d, ffn, repetitions);
}

void choose(List& list, const model::Model& model, const model::FeedForward& ff, double tokens) {
  const auto d = static_cast<double>(model.hidden);
  const auto experts = static_cast<double>(ff.num_experts);
  norm(list, tokens, d);
  list.linear(tokens, experts, d);
  list.pass(tokens * experts, 4, 4);  // softmax in place, selection
  list.exponential(tokens * experts);
  list.launches(4);
}

// Every group of peers adds its copies to all tokens, the first one to nothing.
double further_sums(const SegmentWork& work) { return static_cast<double>(work.by.groups - 1); }

void gate(List& list, const model::Model& model, const model::FeedForward& ff,
          const SegmentWork& work) {
  const auto tokens = static_cast<double>(work.routed_tokens());
  const auto d = static_cast<double>(model.hidden);
  choose(list, model, ff, list.backward() ? tokens : static_cast<double>(work.gated_tokens()));
  if (list.backward()) {
    list.pass(static_cast<double>(work.merged_rows() / work.by.gated) * d, 0,
              1);  // each token adds up its copies' gradients
    list.pass(tokens * d, 0, work.by.copies > 1 ? 3 : 1);  // and takes each of them whole
    list.pass(further_sums(work) * tokens * d, 0, 2);
  } else {
    list.copy(static_cast<double>(work.rows) * d);
  }
}

// Routed experts. The largest has rows of its own; the others are taken by classes of size, those
// without rows do no work. Rows that come from several peers are brought together for each expert
// and back (two copies forward, three backward).
void experts(List& list, const model::Model& model, const model::FeedForward& ff,
             const SegmentWork& work) {
  if (work.computed_rows() <= 0 || work.local_experts <= 0) return;
  const auto d = static_cast<double>(model.hidden);
  const auto ffn = static_cast<double>(ff.ffn / work.by.experts);
  const auto rows = static_cast<double>(work.computed_rows());
  const auto count = static_cast<double>(work.local_experts);
  const auto largest = std::min(static_cast<double>(work.largest_expert_rows), rows);
  const double sources =
      static_cast<double>(work.by.gathers_rows ? work.by.experts : work.receivers());
  const double peers = static_cast<double>(ff.num_experts) * sources / count;
  if (peers > 1) list.row_copies(rows / (count * peers) * d, count * peers);
  if (largest * count <= rows * 1.001 || work.local_experts == 1)
    return mlp(list, rows / count, ffn, d, ff.num_matrices, count);
  mlp(list, largest, ffn, d, ff.num_matrices);
  bool known = false;
  for (const ExpertsOfSize& alike : work.other_experts) {
    if (alike.num_experts == 0) continue;
    known = true;
    const auto num = static_cast<double>(alike.num_experts);
    mlp(list, static_cast<double>(alike.rows) / num, ffn, d, ff.num_matrices, num);
  }
  if (known) return;
  const double others = std::min(count - 1, rows - largest);  // at least a row each
  if (others >= 1) mlp(list, (rows - largest) / others, ffn, d, ff.num_matrices, others);
}

void merge(List& list, const model::Model& model, const SegmentWork& work) {
  const auto d = static_cast<double>(model.hidden);
  // The backward reads all rows and writes those that are sent; the forward adds up own tokens'.
  const int64_t others = list.backward() ? 1 : work.by.gated;
  const auto tokens = static_cast<double>(work.gated_tokens() / others);
  const auto rows = static_cast<double>(work.merged_rows() / others);
  if (rows > 0) list.pass(rows * d, 1, 1 + static_cast<double>(work.rows) / rows);
  list.pass(tokens * d, 2, 1);
  list.pass(further_sums(work) * tokens * d, 2, 0);
}

void shared_experts(List& list, const model::Model& model, const model::FeedForward& ff,
                    const SegmentWork& work) {
  const auto tokens = static_cast<double>(work.routed_tokens());
  const auto d = static_cast<double>(model.hidden);
  norm(list, tokens, d);
  const auto shared = static_cast<double>(ff.shared_ffn);
  const auto dense = static_cast<double>(ff.parallel_dense_ffn);
  if (shared > 0) mlp(list, tokens, shared, d, ff.num_dense_matrices);
  if (dense > 0) mlp(list, tokens, dense, d, ff.num_dense_matrices);
  if (ff.shared_gate) {
    list.linear(tokens, 1, d);
    list.pass(tokens * shared, 2, 6);
  }
  list.pass(tokens * d, 3, 0);
}

// The forward of the head does the products of its backward too, chunk by chunk, so that the logits
// of a micro-batch never exist at once (activation.h). Chunks are large enough to be priced as one.
void head(List& list, const model::Model& model, const SegmentWork& work) {
  const auto tokens = static_cast<double>(work.own_tokens());
  const auto d = static_cast<double>(model.hidden);
  const auto vocabulary = static_cast<double>(model.vocabulary);
  if (list.backward()) return list.pass(tokens * d, 0, 2 + 3);
  norm(list, tokens, d);
  list.gemm(tokens, vocabulary, d, 1);
  list.gemm(vocabulary, d, tokens, 1);
  list.gemm(tokens, d, vocabulary, 1);
  list.pass(tokens * vocabulary, 4, 0);  // maximum and sum of a row, then the gradient in place
  list.exponential(2 * tokens * vocabulary);
}

// Norms of the state (that of its head, then its own) and of the embedding; one projection of both.
// The backward takes the norms again.
void mtp_join(List& list, const model::Model& model, const SegmentWork& work) {
  const auto tokens = static_cast<double>(work.tokens());
  const auto d = static_cast<double>(model.hidden);
  list.copy(tokens * d);  // rows of the table
  for (int i = 0; i < 3; ++i) norm(list, tokens, d);
  list.linear(tokens, d, 2 * d);
  list.pass(tokens * d, 0,
            3 + 2 + 2);  // into the table; the embedding's gradient apart; the head's added
}

}  // namespace

std::vector<Work> segment_work(const model::Model& model, const schedule::Segment& segment,
                               graph::Phase phase, const SegmentWork& work) {
  if (work.by.tensor > 1 &&
      (segment.kind == SegmentKind::kAttention || segment.kind == SegmentKind::kProjection ||
       segment.kind == SegmentKind::kRingStep || segment.kind == SegmentKind::kDenseMlp)) {
    // With this rank's part of the matrices on all tokens.
    model::Model part = model;
    model::Layer& layer = part.layers.at(static_cast<size_t>(segment.layer));
    layer.attention = model::share_of(layer.attention, work.by.tensor);
    if (!layer.feed_forward.is_moe()) layer.feed_forward.ffn /= work.by.tensor;
    SegmentWork undivided = work;
    undivided.by = {
        .context = work.by.context, .is_ring = work.by.is_ring, .tokens = work.by.context};
    return segment_work(part, segment, phase, undivided);
  }
  // What it adds to weights, it adds at once (schedule/step.h).
  if (segment.kind == SegmentKind::kRingStep && graph::is_backward(phase)) {
    if (phase == graph::Phase::kBackwardWeights) return {};
    phase = graph::Phase::kBackward;
  }
  // Nothing but a weight: its backward is the weights' part.
  if (segment.kind == SegmentKind::kEmbedding && graph::is_backward(phase)) {
    if (phase == graph::Phase::kBackwardInput) return {};
    phase = graph::Phase::kBackward;
  }
  const bool is_whole =
      segment.kind == SegmentKind::kGate || segment.kind == SegmentKind::kSharedExperts;
  const int64_t computed = is_whole                                      ? work.routed_tokens()
                           : segment.kind == SegmentKind::kMtpProjection ? work.tokens()
                                                                         : work.own_tokens();
  List list(phase, static_cast<double>(work.element_bytes),
            static_cast<double>(work.own_tokens()) / static_cast<double>(computed));
  const auto layer = [&]() -> const model::Layer& {
    PIPER_CHECK(segment.layer >= 0 && segment.layer < std::ssize(model.layers), "no such layer");
    return model.layers[static_cast<size_t>(segment.layer)];
  };
  const double elements = static_cast<double>(work.tokens()) * static_cast<double>(model.hidden);
  switch (segment.kind) {
    case SegmentKind::kEmbedding:  // backward: of own tokens
      list.pass(elements, 2,
                3.0 * static_cast<double>(work.own_tokens()) / static_cast<double>(work.tokens()));
      break;
    case SegmentKind::kAttention:
      attention(list, model, layer(), work, part_behind_projection(work));
      break;
    case SegmentKind::kRingStep:
      attention(list, model, layer(), work, AttentionPart::kRingStep);
      break;
    case SegmentKind::kProjection:
      attention(list, model, layer(), work, AttentionPart::kProjection);
      break;
    case SegmentKind::kDenseMlp:
      norm(list, static_cast<double>(work.all_tokens()), static_cast<double>(model.hidden));
      mlp(list, static_cast<double>(work.all_tokens()),
          static_cast<double>(layer().feed_forward.ffn), static_cast<double>(model.hidden),
          layer().feed_forward.num_matrices);
      list.pass(elements, 3, 0);
      break;
    case SegmentKind::kRouteOnly:
      choose(list, model, layer().feed_forward, static_cast<double>(work.routed_tokens()));
      break;
    case SegmentKind::kGate:
      gate(list, model, layer().feed_forward, work);
      break;
    case SegmentKind::kSharedExperts:
      shared_experts(list, model, layer().feed_forward, work);
      break;
    case SegmentKind::kExperts:
      experts(list, model, layer().feed_forward, work);
      break;
    case SegmentKind::kUnpermute:
      merge(list, model, work);
      break;
    case SegmentKind::kHead:
      head(list, model, work);
      break;
    case SegmentKind::kMtpProjection:
      mtp_join(list, model, work);
      break;
    case SegmentKind::kDenseGradients:
    case SegmentKind::kExpertGradients:
    case SegmentKind::kStageGradients:
    case SegmentKind::kTiedEmbedding:
    case SegmentKind::kGradientNorm:
    case SegmentKind::kStatistics:
    case SegmentKind::kOptimizer:
    case SegmentKind::kTensor:
    case SegmentKind::kSequenceCounts:
    case SegmentKind::kTensorChoices:
    case SegmentKind::kContextChoices:
    case SegmentKind::kContext:
    case SegmentKind::kExpertTensor:
    case SegmentKind::kExpertTokens:
    case SegmentKind::kDividedRows:
    case SegmentKind::kDenseWeights:
    case SegmentKind::kExpertWeights:
    case SegmentKind::kStageWeights:
    case SegmentKind::kCopiedWeights:
    case SegmentKind::kCopiedGradients:
    case SegmentKind::kHostCopy:
    case SegmentKind::kUpdateLayer:
    case SegmentKind::kTakeExpert:
    case SegmentKind::kPutExpert:
    case SegmentKind::kKeepGradients:
    case SegmentKind::kDropWeights:
    case SegmentKind::kWait:
      PIPER_CHECK(false, "no work of a layer or an end of the model");
  }
  return list.take();
}

std::vector<Work> update_work(schedule::SegmentKind kind, double num_parameters,
                              strategy::Precision precision) {
  const strategy::StateBytes bytes = state_bytes(precision);
  const auto gradient = static_cast<double>(bytes.gradient);
  if (kind == SegmentKind::kGradientNorm)
    return {{.kind = WorkKind::kFromMemory, .amount = num_parameters * gradient}};
  // The share and its sum are read, the sum is written.
  if (kind == SegmentKind::kKeepGradients)
    return {{.kind = WorkKind::kOptimizer, .amount = num_parameters * 3 * gradient}};
  // A copy of the state, read and written; a put rounds the weights besides.
  if (kind == SegmentKind::kTakeExpert || kind == SegmentKind::kPutExpert) {
    const bool rounds = kind == SegmentKind::kPutExpert && bytes.moved() == bytes.optimizer;
    const auto moved = static_cast<double>(bytes.moved());
    return {{.kind = WorkKind::kOptimizer,
             .amount = num_parameters *
                       (2 * moved + (rounds ? static_cast<double>(bytes.weight) : 0.0))}};
  }
  PIPER_CHECK(kind == SegmentKind::kOptimizer || kind == SegmentKind::kUpdateLayer,
              "no work of its own");
  // Gradient read; moments (and the master copy) read and written; the weight written, and read
  // where no master copy stands in for it. The first backward of a step overwrites gradients:
  // nothing to zero.
  const bool master = strategy::priced_as(precision) == strategy::Precision::kBf16;
  const double touched = gradient + 2 * static_cast<double>(bytes.optimizer) +
                         (master ? 1.0 : 2.0) * static_cast<double>(bytes.weight);
  return {{.kind = WorkKind::kOptimizer, .amount = num_parameters * touched}};
}

}  // namespace piper::cost
