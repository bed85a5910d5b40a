// Read these formulas beside the segments of nn/ (attention.cpp, dense_mlp.cpp, gate.cpp,
// experts.cpp, head.cpp): each term is one tensor there. nn/memory_test.cpp holds them to the
// counting allocator.
//
// T tokens, D hidden, F ffn, R received rows, N rows of the largest local expert; e bytes an
// element.
#include <piper/base/error.h>
#include <piper/cost/activation.h>
#include <piper/cost/grouped_choice.h>
#include <piper/model/shared_layer.h>
#include <piper/strategy/token_chunk.h>

#include <algorithm>

namespace piper::cost {
namespace {

using schedule::SegmentKind;
using schedule::SlotKind;

constexpr int64_t kIndexBytes = 4;         // routing indices are int32
constexpr int64_t kIndexOfTokenBytes = 8;  // tokens are int64

// Bytes of an element that is kept of the router: fp32 where the others are bf16.
int64_t main_element_bytes(int64_t element_bytes) { return std::max<int64_t>(element_bytes, 4); }

const model::Layer& layer_of(const model::Model& model, const schedule::Segment& segment) {
  PIPER_CHECK(segment.layer >= 0 && segment.layer < std::ssize(model.layers),
              "a segment without a layer");
  return model.layers[static_cast<size_t>(segment.layer)];
}

// Bytes of a product on its way into a main gradient of rows x columns (nn/product.cpp): none in
// fp32 and fp64. What a library takes for itself during a product is not predicted.
int64_t product_bytes(int64_t element_bytes, int64_t rows, int64_t columns) {
  if (main_element_bytes(element_bytes) == element_bytes) return 0;
  return element_bytes * std::min(rows, kGradientRowsAtOnce) * columns;
}

// Bytes of scratch of libtorch's CPU flash kernel (FlashAttentionKernel.cpp, one thread): a block
// of scores, its row maxima and sums, and a block of the output; backward: two blocks of scores and
// one row of sums. All in fp32 beside bf16, which has blocks of its own besides.
struct FlashScratch {
  int64_t forward, backward;
};

FlashScratch flash_scratch(int64_t num_queries, int64_t num_keys, int64_t head_dim,
                           int64_t element_bytes) {
  const int64_t split = num_queries >= 768 ? 256 : num_queries >= 192 ? 64 : 32;
  const int64_t queries = std::min(split, num_queries), keys = std::min<int64_t>(512, num_keys);
  const int64_t main = main_element_bytes(element_bytes);
  const int64_t narrow = main == element_bytes ? 0 : element_bytes * queries * keys;
  return {.forward = main * (queries * keys + 2 * queries + queries * head_dim) + narrow,
          .backward = main * (2 * queries * keys + queries) + 2 * narrow};
}

// Beside latent_attention.cpp. Values narrower than queries are padded for the kernel.
SegmentBytes latent_bytes(const model::Model& model, const model::Attention& a,
                          const SegmentWork& work) {
  const model::LatentAttention& l = a.latent;
  const int64_t tokens = work.all_tokens(), e = work.element_bytes;
  const int64_t x = tokens * model.hidden;
  const int64_t head = l.nope_head_dim + l.rope_head_dim;
  const int64_t q = tokens * a.num_heads * head, q_a = tokens * l.query_rank;
  const int64_t kv_a = tokens * (l.key_value_rank + l.rope_head_dim);
  const int64_t latent = tokens * l.key_value_rank;
  const int64_t kv = tokens * a.num_heads * (l.nope_head_dim + l.value_head_dim);
  const int64_t out = tokens * a.num_heads * l.value_head_dim;
  const bool pads = l.value_head_dim != head;
  const FlashScratch flash = flash_scratch(work.sequence, work.sequence, head, e);
  // Sums are fp32 beside bf16; counted as so many elements.
  const int64_t sums = tokens * a.num_heads * (main_element_bytes(e) / e);
  const int64_t tape = q_a + kv_a + q + kv + out + sums;
  const int64_t first = l.query_rank > 0 ? q_a : q;
  const int64_t expanded = q + (pads ? q : 0);  // keys, padded values
  const int64_t forward =
      std::max({x + first + kv_a, 2 * q_a + kv_a + q, q_a + kv_a + q + latent + kv,
                q_a + kv_a + q + kv + expanded + q + sums + flash.forward / e,
                tape + (pads ? q : 0), tape + x});
  // Gradient of the output, wide; keys and values again; the output, wide; three gradients.
  const int64_t wide = pads ? q : 0;
  const int64_t kernel = (pads ? q : out) + expanded + wide + 3 * q + flash.backward / e;
  const int64_t later = 3 * q + kv_a + kv + latent;
  const int64_t backward = std::max({kernel, later, q + 2 * q_a + kv_a, first + kv_a + 2 * x});
  const int64_t products =
      product_bytes(e, model.hidden + tokens, a.num_heads * std::max(head, l.value_head_dim));
  // Left in the place of q, kv and the output are the gradients of the first two and the output
  // itself; the latents stay beside their gradients.
  const int64_t deferred = kv_a + q_a;
  // Product by product in the order of the backward, each one's operands freed behind it.
  const int64_t without_kv = out + kv + kv_a,
                without_q = without_kv + (l.query_rank > 0 ? q + q_a : 0);
  const int64_t weights = std::max({int64_t{0}, latent - out, q_a - without_kv, x - without_q});
  return {.tape = e * tape,
          .forward_transient = e * std::max<int64_t>(0, forward - tape - x),
          .backward_transient = e * std::max<int64_t>(0, backward - x) + products,
          .deferred = e * deferred,
          .input_transient = e * std::max<int64_t>(0, backward - x - deferred),
          .weights_transient = e * weights + products};
}

// Sizes, in elements, of attention whose ranks share a sequence (context parallelism), as
// attention.cpp and latent_attention.cpp have them. What "all" ranks have is one rank's on a ring.
struct ContextSizes {
  int64_t x, queries, keys, sums;  // of own tokens
  int64_t normed;                  // keys before their norm, and what latent queries are made from
  int64_t out;                     // of attention, as it is kept
  int64_t all_keys;                // as they are gathered
  int64_t latent = 0, made = 0;    // of all tokens: norms of latents, keys and values out of them
  int64_t expanded;                // what the kernel reads of those, beside what is made
  int64_t gradients;               // of keys and values as the kernel reads them
  bool is_latent = false;
  FlashScratch flash;
};

ContextSizes context_sizes(const model::Model& model, const model::Attention& a,
                           const SegmentWork& work) {
  const int64_t tokens = work.all_tokens(), e = work.element_bytes,
                all = work.by.is_ring ? tokens : tokens * work.by.context;
  const model::LatentAttention& l = a.latent;
  const bool is_latent = a.kind == model::AttentionKind::kLatent;
  const int64_t head = is_latent ? l.nope_head_dim + l.rope_head_dim : a.head_dim;
  const int64_t width = key_value_width(a, 1), part = work.sequence / (2 * work.by.context);
  ContextSizes s{.x = tokens * model.hidden,
                 .queries = tokens * a.num_heads * head,
                 .keys = tokens * width,
                 .sums = tokens * a.num_heads * main_element_bytes(e) / e,
                 .normed = a.qk_norm == model::QkNorm::kNone ? 0 : tokens * width / 2,
                 .out = tokens * a.num_heads * head,
                 .all_keys = all * width,
                 .expanded = all * width,
                 .gradients = all * width,
                 .flash = work.by.is_ring ? flash_scratch(2 * part, 2 * part, head, e)
                                          : flash_scratch(part, work.sequence - part, head, e)};
  if (!is_latent) return s;
  s.is_latent = true;
  s.normed = tokens * l.query_rank;
  s.out = tokens * a.num_heads * l.value_head_dim;
  s.latent = all * l.key_value_rank;
  s.made = all * a.num_heads * (l.nope_head_dim + l.value_head_dim);
  const int64_t keys = all * a.num_heads * head;
  s.expanded = l.value_head_dim == head ? s.made + keys : 2 * keys;  // padded, or a part of `made`
  s.gradients = 2 * keys;
  return s;
}

SegmentBytes projection_bytes(const model::Model& model, const model::Attention& a,
                              const SegmentWork& work) {
  const ContextSizes s = context_sizes(model, a, work);
  const int64_t e = work.element_bytes;
  const int64_t products = product_bytes(e, model.hidden, std::max(model.hidden, a.query_width()));
  if (!s.is_latent) {
    const int64_t backward = e * std::max<int64_t>(0, s.normed - s.x);
    return {.tape = e * (s.normed > 0 ? s.queries + s.normed : 0),
            .forward_transient = e * (s.x + s.normed),
            .backward_transient = backward + products,
            .input_transient = backward,
            .weights_transient = e * s.x + products};
  }
  const bool is_low_rank = s.normed > 0;
  return {.tape = e * s.normed,
          .forward_transient = e * (is_low_rank ? std::max(s.x - s.queries, s.normed) : s.x),
          .backward_transient = e * s.normed + products,
          .deferred = e * s.normed,
          .weights_transient = e * std::max(s.normed, s.x - s.normed) + products};
}

SegmentBytes context_attention_bytes(const model::Model& model, const model::Attention& a,
                                     const SegmentWork& work) {
  const ContextSizes s = context_sizes(model, a, work);
  const int64_t e = work.element_bytes, q = s.queries;
  const bool pads = s.out != q, is_narrow = main_element_bytes(e) != e;
  const int64_t products = product_bytes(e, model.hidden, std::max(model.hidden, a.output_width()));
  // Keys and values in order, then both parts of the queries with what they are put together from
  // (in bf16 by way of fp32).
  const int64_t making =
      s.is_latent ? s.all_keys + s.made + std::max(s.latent, s.expanded - (pads ? 0 : s.made)) : 0;
  const int64_t forward =
      std::max({e * making, e * (s.expanded + 2 * q + 2 * s.sums),
                e * (s.expanded + (is_narrow ? 7 : 3) * q / 2 + 3 * s.sums),
                e * (s.expanded + 3 * (q + s.sums) / 2) + s.flash.forward,
                e * (s.out + s.sums + (pads ? q : 0)), e * (s.out + s.sums + s.x)});
  // The gradient of the output, and the output as wide; gradients, and those of the largest block.
  const int64_t largest = s.gradients - s.gradients / (2 * work.by.context);
  // The kernel wants a part of several sequences in one piece.
  const int64_t wide = q + (pads ? q : 0) + (work.sequences > 1 ? q / 2 : 0);
  const int64_t read = s.expanded + (s.is_latent ? s.all_keys : 0);
  const int64_t later = s.is_latent ? q + s.gradients + 2 * s.all_keys + s.made + s.latent
                                    : q + s.gradients + 2 * s.all_keys;
  const int64_t kernel = e * (wide + read + q + s.gradients + q / 2 + largest) + s.flash.backward;
  const int64_t backward =
      std::max({kernel, e * later, e * (wide + making)}) - e * (q + s.all_keys);
  const int64_t deferred = s.is_latent ? e * (s.made + s.all_keys) : 0;
  return {.tape = e * (s.out + s.sums),
          .forward_transient = std::max<int64_t>(0, forward - e * (s.out + s.sums + s.x)),
          .backward_transient = std::max<int64_t>(0, backward),
          .deferred = deferred,
          .input_transient = std::max<int64_t>(0, backward - deferred),
          .weights_transient = e * std::max<int64_t>(0, s.latent - s.out) + products};
}

// What follows the steps of a ring: the outputs' projection alone.
SegmentBytes ring_attention_bytes(const model::Model& model, const model::Attention& a,
                                  const SegmentWork& work) {
  const int64_t products =
      product_bytes(work.element_bytes, model.hidden, std::max(model.hidden, a.output_width()));
  return {.backward_transient = products, .weights_transient = products};
}

// A step with another rank's keys: half of the queries meet all of them, or all half of them.
SegmentBytes ring_step_bytes(const model::Model& model, const model::Attention& a,
                             const SegmentWork& work) {
  const ContextSizes s = context_sizes(model, a, work);
  const int64_t e = work.element_bytes, main = main_element_bytes(e), q = s.queries;
  const bool pads = s.out != q, is_narrow = main != e;
  const int64_t products =
      s.is_latent ? product_bytes(e, a.latent.key_value_rank, a.output_width()) : 0;
  // Keys and values out of latents, and what the kernel reads of them.
  const int64_t making =
      s.is_latent ? s.made + std::max(s.latent, s.expanded - (pads ? 0 : s.made)) : 0;
  const int64_t read = s.is_latent ? s.expanded : 0;
  // Outputs of the kernel (as wide as queries) beside those put together; of half of the queries a
  // copy of these in the main type, too.
  const int64_t outputs = main * s.out + e * s.sums;
  const int64_t beside = pads ? e * q : is_narrow ? std::max(e * q, (e + main) * q / 2) : e * q / 2;
  const int64_t forward = std::max({e * making, e * (read + q + s.sums) + s.flash.forward,
                                    outputs + beside + 5 * e * s.sums / 2});
  // Gradient of the output and the output, wide; gradients of all keys, and of half of the queries
  // beside the sum.
  const int64_t wide = pads ? 2 * q : 0;
  const int64_t kernel = e * (wide + read + q + s.gradients) + s.flash.backward;
  const int64_t later =
      s.is_latent ? e * (q + s.gradients + s.made + s.latent + 2 * s.keys) + products : 0;
  const int64_t sum = e * (q / 2 + q + s.gradients + (s.is_latent ? 2 : 1) * s.keys);
  const int64_t backward = std::max({kernel, later, sum, e * (wide + making) + products});
  return {.forward_transient = std::max<int64_t>(0, forward - outputs),
          .backward_transient = std::max<int64_t>(0, backward - e * (q + s.keys)),
          .input_transient = std::max<int64_t>(0, backward - e * (q + s.keys))};
}

SegmentBytes attention_bytes(const model::Model& model, const model::Attention& a,
                             const SegmentWork& work) {
  if (work.by.is_ring) return ring_attention_bytes(model, a, work);
  if (work.by.context > 1) return context_attention_bytes(model, a, work);
  if (a.kind == model::AttentionKind::kLatent) return latent_bytes(model, a, work);
  const int64_t tokens = work.all_tokens(), e = work.element_bytes;
  const int64_t x = tokens * model.hidden;
  const int64_t queries = tokens * a.query_width(), outputs = tokens * a.output_width(),
                keys = tokens * a.projected_key_width();
  const int64_t widths = a.query_width() + a.projected_key_width() + a.projected_value_width();
  const int64_t qkv = tokens * widths;
  // Normalised queries and keys stand beside the raw ones, which the backward needs.
  const int64_t prepared = a.qk_norm == model::QkNorm::kNone ? 0 : queries + keys;
  const FlashScratch flash = flash_scratch(work.sequence, work.sequence, a.head_dim, e);
  // Projections, output, log-sum-exp.
  const int64_t tape = e * (qkv + outputs) + main_element_bytes(e) * tokens * a.num_heads;
  const int64_t products = product_bytes(e, model.hidden, std::max(model.hidden, widths));
  const int64_t forward =
      std::max({e * (x + qkv), tape + e * prepared + flash.forward, tape + e * x});
  const int64_t backward =
      std::max(e * (outputs + prepared + qkv) + flash.backward, e * (qkv + x) + products);
  // The sum of a bias's gradient reads fp32: of the queries', the widest.
  const int64_t biases =
      a.query_bias && main_element_bytes(e) != e ? main_element_bytes(e) * queries : 0;
  // The gradients of the projections come in their place.
  const int64_t input = std::max(e * (outputs + prepared + qkv) + flash.backward, e * (qkv + x));
  return {.tape = tape,
          .forward_transient = std::max<int64_t>(0, forward - tape - e * x),
          .backward_transient = std::max<int64_t>(0, backward - e * x),
          .input_transient = std::max<int64_t>(0, input - e * x),
          .weights_transient =
              std::max({int64_t{0}, e * (x - outputs) + products, biases - e * outputs, products})};
}

SegmentBytes dense_bytes(const model::Model& model, const model::FeedForward& f,
                         const SegmentWork& work) {
  const int64_t tokens = work.all_tokens(), ffn = f.ffn / work.by.tensor;
  const int64_t x = tokens * model.hidden, act = tokens * ffn, e = work.element_bytes;
  return {.tape = e * 2 * act,
          .forward_transient = e * act,
          .backward_transient =
              std::max({int64_t{0}, e * (act - x) + product_bytes(e, model.hidden, ffn),
                        product_bytes(e, 2 * ffn, model.hidden)}),
          .deferred = e * act,
          .weights_transient =
              e * std::max<int64_t>(0, x - act) + product_bytes(e, 2 * ffn, model.hidden)};
}

int64_t sequence_choices_bytes(const model::FeedForward& f, const SegmentWork& work) {
  return work.counted_sequences() * f.num_experts * kIndexOfTokenBytes;
}

// Experts and weights of tokens' choices: of own ones, then of all ranks that share sequences, then
// of all that share matrices, too.
int64_t token_choices_bytes(const model::FeedForward& f, SegmentKind writer,
                            const SegmentWork& work) {
  int64_t ranks = 1;
  if (writer != SegmentKind::kRouteOnly) ranks *= work.by.context;
  if (writer == SegmentKind::kTensorChoices) ranks *= work.by.tensor;
  return work.routed_tokens() * ranks * 2 * f.top_k * main_element_bytes(work.element_bytes);
}

// Choices by sequence, in the routing where ranks share the tokens of a sequence.
int64_t shared_choices_bytes(const model::FeedForward& f, const SegmentWork& work) {
  return work.cuts_sequences() ? sequence_choices_bytes(f, work) : 0;
}

// Weight of every row, token of every row that is sent, position of every choice.
int64_t sent_routing_bytes(const model::FeedForward& f, const SegmentWork& work) {
  return work.merged_rows() * main_element_bytes(work.element_bytes) + work.rows * kIndexBytes +
         work.tokens_of_rows() * f.top_k * kIndexBytes;
}

// Where tokens travel, the same and the weights' gradients on the experts' side.
int64_t routing_bytes(const model::FeedForward& f, const SegmentWork& work) {
  const int64_t main = main_element_bytes(work.element_bytes);
  const int64_t sent = sent_routing_bytes(f, work);
  if (!work.deduplicated()) return sent;
  return sent + work.received_rows * (2 * main + kIndexBytes) +
         work.received_tokens * std::min(f.top_k, work.local_experts) * kIndexBytes;
}

// Where tokens travel no rows are made, and what goes before them shows: choosing groups (the ranks
// of all and the best of them), while there is no routing yet; then the sums of the losses in fp64,
// of sigmoid scores beside their probabilities.
int64_t token_gate_transient(const model::FeedForward& f, const SegmentWork& work, int64_t choice,
                             int64_t scores, int64_t auxiliary, int64_t log_sums) {
  const int64_t main = main_element_bytes(work.element_bytes);
  const int64_t pair = main + kIndexOfTokenBytes;  // a value and where it stood
  const bool sigmoid = f.score == model::Score::kSigmoid;
  const bool limited = f.num_groups > 1 && f.top_groups < f.num_groups;
  const bool two_best = sigmoid && f.num_experts > f.num_groups;
  const int64_t ranks = two_best ? f.num_groups * (2 * pair + main) : f.num_groups * pair;
  const int64_t best =
      f.num_groups * main +
      std::max(f.top_groups * (kIndexBytes + kIndexOfTokenBytes),  // as chosen, and widened
               f.top_groups * kIndexOfTokenBytes + f.num_groups);
  const int64_t groups = limited ? work.routed_tokens() * std::max(ranks, best) : 0;
  constexpr int64_t kDouble = 8;
  const int64_t probabilities =
      3 * kDouble * auxiliary +
      (sigmoid && auxiliary > 0 ? main * work.routed_tokens() * (f.num_experts + 1) : 0);
  const int64_t squares = (main == kDouble ? 1 : 2) * kDouble * log_sums;
  return std::max(choice + groups - sent_routing_bytes(f, work) - shared_choices_bytes(f, work) -
                      main * auxiliary,
                  scores + std::max(probabilities, squares));
}

// The peak is at the scores of all experts, with the bias or without the groups left out while some
// are chosen; then at the choices alone; or before both at the norm.
SegmentBytes choose_bytes(const model::Model& model, const model::FeedForward& f,
                          const SegmentWork& work) {
  const int64_t e = work.element_bytes, main = main_element_bytes(e), tokens = work.routed_tokens();
  const int64_t scores = tokens * f.num_experts,
                choices = token_choices_bytes(f, SegmentKind::kRouteOnly, work);
  const bool chooses = f.selection_bias || (f.num_groups > 1 && f.top_groups < f.num_groups);
  const int64_t chosen = tokens * f.top_k * kIndexBytes;
  const int64_t weights = tokens * f.top_k * (kIndexOfTokenBytes + main);
  return {.forward_transient = std::max(
              {e * tokens * model.hidden + e * scores + (main > e ? main * scores : 0) - choices,
               main * scores + chosen + (chooses ? main * scores : 0) - choices,
               main * scores + chosen + weights})};
}

SegmentBytes gate_bytes(const model::Model& model, const model::FeedForward& f,
                        const SegmentWork& work) {
  const int64_t e = work.element_bytes, main = main_element_bytes(e);
  // Where ranks share sequences only the backward makes it, from the choices of all of them.
  const int64_t auxiliary = model.router_aux_coefficient != 0 && !work.cuts_sequences()
                                ? work.sequences / work.by.routed * f.num_experts
                                : 0;
  // Scores with the bias or without the groups left out, while experts are chosen.
  const bool chooses = f.selection_bias || (f.num_groups > 1 && f.top_groups < f.num_groups);
  const int64_t choice = chooses ? work.gated_tokens() * f.num_experts : 0;
  // Scores and choices of gathered tokens, besides those of own ones that the tape keeps.
  const int64_t gathered =
      work.by.gated > 1 ? work.gated_tokens() * (main * f.num_experts + kIndexBytes * f.top_k) : 0;
  // The z-loss: a gradient of each token's log-sum-exp; sigmoid scores stand beside their logits
  // for a moment.
  const bool z_loss = model.router_z_coefficient != 0;
  const int64_t log_sums = z_loss ? work.routed_tokens() : 0;
  const bool keeps_logits = z_loss && f.score == model::Score::kSigmoid;
  const int64_t scores = keeps_logits ? work.gated_tokens() * f.num_experts : 0;
  const int64_t before_rows = main * (choice + scores) + gathered;
  const int64_t forward =
      work.deduplicated()
          ? token_gate_transient(f, work, before_rows, main * scores, auxiliary, log_sums)
          : e * work.gated_tokens() * model.hidden +  // norm(x1)
                std::max<int64_t>(0, before_rows - e * work.rows * model.hidden);
  return {.tape = main * (work.routed_tokens() * f.num_experts + auxiliary + log_sums) +
                  kIndexBytes * work.routed_tokens() * f.top_k,
          .forward_transient = forward,
          // The gradient of the logits, narrow.
          .backward_transient = main == e ? 0
                                          : e * work.routed_tokens() * f.num_experts +
                                                product_bytes(e, f.num_experts, model.hidden),
          .deferred = main == e ? 0 : e * work.routed_tokens() * f.num_experts,
          .weights_transient =
              e * work.own_tokens() * model.hidden + product_bytes(e, f.num_experts, model.hidden)};
}

// As a dense MLP; a gate keeps one value a token and, backward, a second gradient of the
// activation.
SegmentBytes shared_bytes(const model::Model& model, const model::FeedForward& f,
                          const SegmentWork& work) {
  const int64_t x = work.routed_tokens() * model.hidden,
                act = work.routed_tokens() * (f.shared_ffn + f.parallel_dense_ffn),
                e = work.element_bytes;
  const int64_t gate = f.shared_gate ? work.routed_tokens() : 0;
  const int64_t own_x = work.own_tokens() * model.hidden;
  return {.tape = e * (2 * act + gate),
          .forward_transient = e * std::max(act, gate),
          .backward_transient =
              e * std::max<int64_t>(
                      0, std::max((f.shared_gate ? 2 : 1) * act + 3 * gate, x + gate) - x) +
              product_bytes(e, 2 * f.shared_ffn, model.hidden),
          .deferred = e * (act + gate),
          .input_transient = e * std::max<int64_t>(0, (f.shared_gate ? act : 0) + 2 * gate - x),
          .weights_transient = e * std::max<int64_t>(0, own_x - act) +
                               product_bytes(e, 2 * f.shared_ffn, model.hidden)};
}

// As nn/experts_grouped.h asks, whose products want rows of whole 16 bytes.
bool are_grouped(const model::Model& model, const model::FeedForward& f, const SegmentWork& work) {
  constexpr int64_t kAligned = 16;
  const int64_t e = work.element_bytes, rows = work.computed_rows(), ffn = f.ffn / work.by.experts;
  if (work.grouped == nullptr || rows == 0 || work.by.copied_experts > 0 ||
      model.hidden * e % kAligned != 0 || ffn * e % kAligned != 0)
    return false;
  const auto experts = static_cast<double>(work.local_experts);
  return work.grouped->of({.rows = static_cast<double>(rows) / experts,
                           .hidden = static_cast<double>(model.hidden),
                           .ffn = static_cast<double>(ffn),
                           .experts = experts});
}

// One product for all experts: activations and gathered rows are of all of them at a time, and so
// are the gradients of their matrices before they are added. Two indices of a row from a peer.
SegmentBytes grouped_bytes(int64_t hidden, int64_t ffn, bool has_peers, const SegmentWork& work) {
  const int64_t e = work.element_bytes, rows = work.computed_rows();
  const int64_t scratch = has_peers ? e * rows * hidden : 0;
  const int64_t index = 4 * (work.local_experts + (has_peers ? 2 * rows : 0));
  const int64_t activations = e * rows * ffn, gradients = e * work.local_experts * 2 * ffn * hidden;
  return {.tape = 2 * activations + index,
          .forward_transient = activations + scratch,
          .backward_transient = activations + scratch + gradients,
          .deferred = activations,
          .input_transient = scratch,
          .weights_transient = scratch + gradients};
}

// One expert after the other.
SegmentBytes one_by_one_bytes(int64_t hidden, int64_t ffn, bool has_peers,
                              const SegmentWork& work) {
  const int64_t e = work.element_bytes, largest = work.largest_expert_rows;
  const int64_t scratch = has_peers ? largest * hidden : 0;
  const int64_t transient = e * (largest * ffn + scratch);
  return {.tape = e * 2 * work.computed_rows() * ffn,
          .forward_transient = transient,
          .backward_transient = transient + std::max(product_bytes(e, hidden, ffn),
                                                     product_bytes(e, 2 * ffn, hidden)),
          // All activations, where a whole backward holds those of one expert at a time.
          .deferred = e * work.computed_rows() * ffn,
          .input_transient = e * scratch,
          .weights_transient = e * scratch + product_bytes(e, 2 * ffn, hidden)};
}

SegmentBytes experts_bytes(const model::Model& model, const model::FeedForward& f,
                           const SegmentWork& work) {
  const int64_t e = work.element_bytes, ffn = f.ffn / work.by.experts;
  // Rows from several peers are copied together.
  const bool has_peers = work.local_experts - work.by.copied_experts < f.num_experts ||
                         work.by.gathers_rows || work.by.fuses_exchange;
  const SegmentBytes rows = are_grouped(model, f, work)
                                ? grouped_bytes(model.hidden, ffn, has_peers, work)
                                : one_by_one_bytes(model.hidden, ffn, has_peers, work);
  if (!work.deduplicated()) return rows;
  // Beside experts_tokens.cpp: a row for each copy, made from tokens; forward, what the experts put
  // out is kept; backward, its gradient, its input again and that one's gradient.
  const int64_t copies = e * work.received_rows * model.hidden;
  const int64_t tokens = e * work.received_tokens * model.hidden;
  return {.tape = rows.tape + copies,
          .forward_transient = std::max(copies - tokens + rows.forward_transient, tokens),
          .backward_transient = 2 * copies - tokens + rows.backward_transient,
          // The gradient of what the experts put out comes in the place of that.
          .deferred = rows.deferred,
          .input_transient = std::max(copies - tokens + rows.input_transient, copies),
          .weights_transient = copies + rows.weights_transient};
}

SegmentBytes head_bytes(const model::Model& model, const SegmentWork& work) {
  const int64_t e = work.element_bytes;
  return {.tape = e * work.own_tokens() * model.hidden,
          .forward_transient =
              e * head_chunk_rows(model.vocabulary, work.own_tokens()) * model.vocabulary +
              product_bytes(e, model.vocabulary, model.hidden),
          .backward_transient = 0};
}

// Beside mtp.cpp: state and embedding side by side, one of the two before its norm, the tokens'
// indices.
SegmentBytes join_bytes(const model::Model& model, const SegmentWork& work) {
  const int64_t e = work.element_bytes, x = work.tokens() * model.hidden;
  const int64_t index = kIndexOfTokenBytes * work.tokens();
  const int64_t transient = e * 2 * x + index;
  const int64_t products = product_bytes(e, model.hidden, 2 * model.hidden);
  const int64_t backward = std::max(transient, transient + products - e * x);
  return {.tape = 0,
          .forward_transient = transient,
          .backward_transient = backward,
          .deferred = index,
          .input_transient = backward - index,
          .weights_transient = e * 3 * x * work.own_tokens() / work.tokens() + products};
}

// Tokens of a slot of hidden states or of their gradients, by the segment that writes it.
int64_t hidden_tokens(const schedule::SlotMeaning& slot, const SegmentWork& work) {
  const bool is_gradient = slot.kind == SlotKind::kHiddenGradient;
  switch (slot.segment.kind) {
    case SegmentKind::kGate:
    case SegmentKind::kSharedExperts:
    case SegmentKind::kUnpermute:
      return work.routed_tokens();
    case SegmentKind::kHead:
      return is_gradient ? work.own_tokens() : work.tokens();
    default:
      return work.tokens();
  }
}

}  // namespace

SegmentWork work_of_chunk(const SegmentWork& all, int64_t chunk, int64_t num_chunks) {
  if (chunk == 0) return all;
  const bool is_of_peers = all.by.peers > 0;
  const int64_t cut = is_of_peers ? all.by.peers : all.routed_tokens();
  const int64_t whole = std::max<int64_t>(1, cut);
  const strategy::TokenChunk own = strategy::token_chunk(cut, num_chunks, chunk - 1);
  const auto part = [&](int64_t rows) {
    return rows * (own.first + own.count) / whole - rows * own.first / whole;
  };
  SegmentWork work = all;
  if (!is_of_peers) work.chunk_tokens = own.count;
  work.rows = part(all.rows);
  work.others_rows = part(all.others_rows);
  work.received_rows = part(all.received_rows);
  work.gathered_rows = part(all.gathered_rows);
  // Not less than an even share of the chunk's rows.
  work.largest_expert_rows = (all.largest_expert_rows * own.count + whole - 1) / whole;
  for (ExpertsOfSize& alike : work.other_experts) {
    alike.rows = part(alike.rows);
    if (alike.rows == 0) alike.num_experts = 0;
  }
  return work;
}

int64_t key_value_width(const model::Attention& attention, int64_t tensor_ranks) {
  const model::Attention a = model::share_of(attention, tensor_ranks);
  if (a.kind == model::AttentionKind::kLatent)
    return a.latent.key_value_rank + a.latent.rope_head_dim;
  return a.projected_key_width() + a.projected_value_width();
}

WorkDivision work_division(const strategy::Strategy& s) {
  return {.context = s.mesh.cp,
          .is_ring = strategy::has_ring(s),
          .tensor = s.mesh.tp,
          .tokens = strategy::ranks_per_token_set(s),
          .routed = strategy::ranks_per_routed_token_set(s),
          .experts = s.mesh.etp,
          .gathers_rows = strategy::gathers_expert_rows(s),
          .gated = strategy::ranks_per_gated_token_set(s),
          .fuses_exchange = strategy::fuses_exchange(s),
          .rows = strategy::divides_rows(s) ? s.mesh.tp : 1,
          .copies = strategy::copies_of_rows(s),
          .copied_experts = s.redundant_experts / s.mesh.ep,
          .peers = strategy::grouped_peers(s),
          .groups = strategy::grouped_peers(s) > 0 ? strategy::num_moe_chunks(s) : 1};
}

SegmentBytes segment_bytes(const model::Model& model, const schedule::Segment& segment,
                           const SegmentWork& work) {
  switch (segment.kind) {
    case SegmentKind::kAttention:
      return attention_bytes(
          model, model::share_of(layer_of(model, segment).attention, work.by.tensor), work);
    case SegmentKind::kProjection:
      return projection_bytes(
          model, model::share_of(layer_of(model, segment).attention, work.by.tensor), work);
    case SegmentKind::kRingStep:
      return ring_step_bytes(
          model, model::share_of(layer_of(model, segment).attention, work.by.tensor), work);
    case SegmentKind::kDenseMlp:
      return dense_bytes(model, layer_of(model, segment).feed_forward, work);
    case SegmentKind::kGate:
      return gate_bytes(model, layer_of(model, segment).feed_forward, work);
    case SegmentKind::kRouteOnly:
      return choose_bytes(model, layer_of(model, segment).feed_forward, work);
    case SegmentKind::kSharedExperts:
      return shared_bytes(model, layer_of(model, segment).feed_forward, work);
    case SegmentKind::kExperts:
      return experts_bytes(model, layer_of(model, segment).feed_forward, work);
    case SegmentKind::kHead:
      return head_bytes(model, work);
    case SegmentKind::kMtpProjection:
      return join_bytes(model, work);
    case SegmentKind::kUnpermute:  // weights, less what the rows' copies count too often
      return {.backward_transient =
                  work.by.copies > 1 ? work.rows * main_element_bytes(work.element_bytes) : 0};
    case SegmentKind::kEmbedding:
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
      return {};
  }
  PIPER_CHECK(false, "an unknown segment");
  return {};
}

int64_t rows_of_all(SegmentKind collective, const SegmentWork& work) {
  if (collective == SegmentKind::kExpertTensor) return work.computed_rows();
  if (collective == SegmentKind::kExpertTokens) return work.gated_tokens();
  if (collective == SegmentKind::kDividedRows) return work.merged_rows();
  return work.all_tokens();
}

int64_t sum_scratch(const model::Model& model, const schedule::Segment& segment,
                    const SegmentWork& work) {
  constexpr int64_t kPieces = int64_t{2} * 32 * 1024;  // elements
  const bool is_of_experts = segment.kind == SegmentKind::kExpertTensor;
  const bool is_of_keys = segment.kind == SegmentKind::kContext;
  const int64_t ranks = is_of_experts ? work.by.experts
                        : is_of_keys  ? work.by.context
                                      : work.by.tensor;
  // Where all ranks have the same rows, each sums up an equal share of their elements.
  const int64_t share =
      is_of_keys
          ? work.all_tokens() * key_value_width(layer_of(model, segment).attention, work.by.tensor)
      : !is_of_experts       ? work.own_tokens() * model.hidden
      : work.by.gathers_rows ? work.received_rows * model.hidden
                             : (work.computed_rows() * model.hidden + ranks - 1) / ranks;
  return (ranks - 1) * std::min(share, kPieces) * work.element_bytes;
}

int64_t fused_exchange_scratch(const model::Model& model, const SegmentWork& work) {
  return work.by.fuses_exchange ? work.receivers() * work.rows * model.hidden * work.element_bytes
                                : 0;
}

int64_t slot_bytes(const model::Model& model, const schedule::SlotMeaning& slot,
                   const SegmentWork& work) {
  const int64_t row = work.element_bytes * model.hidden;
  switch (slot.kind) {
    case SlotKind::kHidden:
    case SlotKind::kHiddenGradient:
      return hidden_tokens(slot, work) * row;
    case SlotKind::kTape:
      return segment_bytes(model, slot.segment, work).tape;
    case SlotKind::kDeferred:
      return segment_bytes(model, slot.segment, work).deferred;
    case SlotKind::kReturnedGradient:
      if (work.deduplicated()) return 0;  // it is gradient(x)
      [[fallthrough]];
    case SlotKind::kRows:
    case SlotKind::kReturned:
    case SlotKind::kRowsGradient:
      if (slot.segment.kind == SegmentKind::kDividedRows) return work.merged_rows() * row;
      return (work.deduplicated() ? work.routed_tokens() : work.rows) * row;
    case SlotKind::kReceived:
    case SlotKind::kExpertRows:
    case SlotKind::kReceivedGradient:
    case SlotKind::kExpertRowsGradient:
      return (work.deduplicated() ? work.received_tokens : work.received_rows) * row;
    case SlotKind::kRouting:
      return routing_bytes(layer_of(model, slot.segment).feed_forward, work) +
             (slot.segment.chunk <= 1  // in the first chunk's
                  ? shared_choices_bytes(layer_of(model, slot.segment).feed_forward, work)
                  : 0);
    case SlotKind::kRoutingGradient:
      return work.merged_rows() * main_element_bytes(work.element_bytes);
    case SlotKind::kTokenChoices:
      return token_choices_bytes(layer_of(model, slot.segment).feed_forward, slot.segment.kind,
                                 work);
    case SlotKind::kSequenceChoices:
      return sequence_choices_bytes(layer_of(model, slot.segment).feed_forward, work);
    case SlotKind::kQueries:
    case SlotKind::kQueriesGradient: {
      const model::Attention a =
          model::share_of(layer_of(model, slot.segment).attention, work.by.tensor);
      const int64_t width = a.kind == model::AttentionKind::kLatent
                                ? a.num_heads * (a.latent.nope_head_dim + a.latent.rope_head_dim)
                                : a.query_width();
      return work.all_tokens() * width * work.element_bytes;
    }
    case SlotKind::kKeysAndValues:
    case SlotKind::kKeysAndValuesGradient: {
      const bool is_gradient = slot.kind == SlotKind::kKeysAndValuesGradient;
      const bool is_of_all =
          !work.by.is_ring &&
          slot.segment.kind == (is_gradient ? SegmentKind::kAttention : SegmentKind::kContext);
      return work.all_tokens() * (is_of_all ? work.by.context : 1) * work.element_bytes *
             key_value_width(layer_of(model, slot.segment).attention, work.by.tensor);
    }
    case SlotKind::kHeadOutputs:
    case SlotKind::kHeadOutputsGradient: {
      const model::Attention a =
          model::share_of(layer_of(model, slot.segment).attention, work.by.tensor);
      const int64_t main = main_element_bytes(work.element_bytes),
                    width = a.kind == model::AttentionKind::kLatent
                                ? a.num_heads * a.latent.value_head_dim
                                : a.output_width();
      const bool has_sums = slot.kind == SlotKind::kHeadOutputs;
      return work.all_tokens() * (width * (has_sums && slot.segment.kind == SegmentKind::kRingStep
                                               ? main
                                               : work.element_bytes) +
                                  (has_sums ? a.num_heads * main : 0));
    }
    case SlotKind::kGathered:
    case SlotKind::kPartial:
      PIPER_CHECK(schedule::moves_rows(slot.segment.kind),
                  "no exact bytes of an axis that this Piper does not execute");
      return rows_of_all(slot.segment.kind, work) * row;
    case SlotKind::kExpertState:
    case SlotKind::kGradients:
    case SlotKind::kWeights:
    case SlotKind::kOptimizerStates:
    case SlotKind::kKept:
      PIPER_CHECK(false, "no activation of a layer that this Piper executes");
  }
  PIPER_CHECK(false, "an unknown slot");
  return 0;
}

}  // namespace piper::cost
