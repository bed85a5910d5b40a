// The element-wise work of the segments on tensors: on the CPU kernels.h (one pass, no scratch), on
// CUDA devices those of cuda/kernels.h where a CUDA compiler has built them, else, and on any other
// device, the compositions of at:: calls in namespace any_device, which are also the
// oracle of the kernels' tests.
//
// All tensors of a call share dtype (fp32, fp64 or bf16) and device, but that gradients of weights,
// the angles of rotations and what belongs to the router (scores, weights of rows) are main_type()
// of it; indices are int32 (tokens and targets int64). Matrices are contiguous unless a comment
// says "rows": then only the last dimension must be. Legend: stage.h.
#pragma once

#include <piper/nn/aten.h>
#include <piper/nn/host_read.h>
#include <piper/nn/rope.h>
#include <piper/strategy/capacity.h>

#include <cstdint>
#include <span>
#include <vector>

namespace piper::nn {

// fp32 for bf16, else the type itself.
inline at::ScalarType main_type(at::ScalarType dtype) {
  return dtype == at::kBFloat16 ? at::kFloat : dtype;
}

// Whether the CPU's own kernels compute with the tensor: on any other device, and in a test that
// lets the CPU compute as those do, compositions of at:: calls take their place.
bool has_kernels(const at::Tensor& tensor);
// Whether those of a CUDA device do. Routing and order of rows have none: they are small.
bool has_cuda_kernels(const at::Tensor& tensor);
// For tests, between two computations.
void compute_by_compositions(bool everywhere);

// What the router's backward needs; `auxiliary` and `g_log_sum` are undefined without an auxiliary
// loss and a z-loss.
struct RouterGradients {
  at::Tensor expert, position;    // [T, K]
  at::Tensor weights, g_weights;  // [N], dispatch order
  at::Tensor auxiliary;           // [B, E]: gradient of every probability of that sequence
  at::Tensor g_log_sum;           // [T]: gradient of the logits' log-sum-exp
  int64_t sequence = 0;
  int64_t first_token = 0;  // the place of token 0 among those of the B sequences
  bool normalised = false;
  bool sigmoid = false;  // scores are sigmoids of the logits, not their softmax
  double scaling = 1;    // the weights are scaled by it
};

// The N rows that were not dropped, in dispatch order.
struct DispatchOrder {
  at::Tensor token;                      // [N]
  at::Tensor position;                   // [T, K]; -1 = dropped
  at::Tensor weights;                    // [N]
  std::vector<int64_t> counts;           // by place
  std::vector<int64_t> kept;             // by place; fewer than counts where capacities are padded
  std::vector<int64_t> sequence_counts;  // [B * E]: choices by sequence, those dropped among them
  // `kept` and `sequence_counts` where an order was made on a device, and nowhere else until
  // read_counts(); else undefined. `counts` are then known if capacities are padded.
  at::Tensor kept_P, sequence_counts_BE;
  // Behind divide_order(), of one rank's share of the rows: how many each has, and how many are
  // before this one's. `position` and `weights` are of all, by rank; `token` and `counts` its own.
  std::vector<int64_t> divided_rows;
  int64_t first_own_row = 0;
};

// y := weight * x / rms(x), over the last dimension; x and y are rows (2 or 3 dimensions); y may be
// x.
void rms_norm_out(at::Tensor y, const at::Tensor& x, const at::Tensor& weight, double epsilon);
// The same in new storage.
at::Tensor rms_norm(const at::Tensor& x_TD, const at::Tensor& weight, double epsilon);
// g (rows): dL/dy becomes dL/dx (+ residual). weight_gradient := beta * weight_gradient + its
// gradient, where it is defined; beta 0 or 1.
void rms_norm_backward_(at::Tensor g, const at::Tensor& x, const at::Tensor& weight, double epsilon,
                        at::Tensor weight_gradient, double beta, const at::Tensor& residual = {});
// x (rows, [T, heads, head_dim], T = B * sequence) turns by the angles of its position, or back.
void rotate_(at::Tensor x, const RopeTable& table, int64_t sequence, bool back);

// h = (gate | up) [n, 2F] -> act [n, F].
void swiglu_out(at::Tensor act, const at::Tensor& h);
// h becomes its gradient; g_act becomes act.
void swiglu_backward_(at::Tensor h, at::Tensor g_act);

void gather_rows_out(at::Tensor out, const at::Tensor& x, const at::Tensor& index);
// Here and in the merge: a position of -1 is a dropped copy, which adds nothing.
void sum_rows_out(at::Tensor out, const at::Tensor& rows, const at::Tensor& position);
void add_rows_(at::Tensor table, const at::Tensor& index, const at::Tensor& rows);  // index int64

// `x1` may be `out` itself, to which the weighted rows are then added.
void merge_out(at::Tensor out, const at::Tensor& returned, const at::Tensor& weights,
               const at::Tensor& position, const at::Tensor& x1);
// g_returned has the rows from `first_row` on, as many as it holds; g_weights has all.
void merge_backward_out(at::Tensor g_returned, at::Tensor g_weights, const at::Tensor& gx,
                        const at::Tensor& returned, const at::Tensor& weights,
                        const at::Tensor& position, int64_t first_row = 0);

// log_sum [T], when defined: log(sum(exp(x))) of every row.
void softmax_(at::Tensor x, at::Tensor log_sum = {});
// The k largest of each row of [T, E]; the lower index first among equals. expert: int32 [T, k].
void choose_experts_out(at::Tensor expert, const at::Tensor& probabilities);
// How far apart, relative to each other, two weights may be and still count as equal to a capacity:
// well above what rounding makes of equal weights in a model of that type. fp32 and fp64 have the
// same, so that they drop the same copies.
constexpr double capacity_tie(at::ScalarType dtype) {
  return dtype == at::kBFloat16 ? 0x1p-5 : 0x1p-12;
}
// Where a rank sends the rows of each expert (balance/expert_placement.h): to its place, or to
// those of its copies in turn. Empty: to the place that is its id.
struct ExpertPlaces {
  std::vector<int32_t> place;  // by expert, then as ExpertPlacement::places_from() has them
  std::vector<int32_t> first;  // [E + 1]: where those of an expert begin
  int64_t num_places = 0;      // of all ranks
  bool empty() const { return place.empty(); }
};
// Sorts the T*K copies of tokens by place of their expert, then token, without those that exceed
// the experts' capacity. Rows and counts are by place, counts of sequences by expert. Weights are
// the chosen scores, divided by their sum when normalised, times `scaling`; they are normalised
// before anything is dropped, and what is dropped by probability is what has the smaller weight (as
// in Megatron-LM). Where weights lie within `tie` of the last one that finds room, the lower
// tokens' stay (docs/numerics.md). Where capacities are padded, rows of token 0 with weight 0
// follow those of an expert.
//
// `sequences`: the tokens are whole sequences, or a part of some; sequence_counts then has all of
// them, and counts the tokens that are here. A capacity drops every copy of padding, and counts
// none. For a part of sequences `dropped` says by copy what it drops (PIPER_CHECK).
struct SequenceSpan {
  int64_t sequence = 0;       // S
  int64_t first_token = 0;    // of those of all the sequences
  int64_t num_sequences = 0;  // B; 0: the tokens are whole sequences, and all of them
  int64_t padding = 0;        // the last of every sequence, which count in none of sequence_counts
};
//
// A device finds the order itself, and has the counts; its rows are as many as can be kept, until
// read_counts() takes those of dropped copies away, which come last. Only where `dropped` says what
// goes, the host waits for scores and choices.
DispatchOrder order_rows(const at::Tensor& scores, const at::Tensor& expert,
                         const SequenceSpan& sequences, bool normalised, double scaling = 1,
                         const strategy::Capacity& capacity = {},
                         double tie = capacity_tie(at::kFloat), const ExpertPlaces& places = {},
                         std::span<const char> dropped = {});
// Counts that a device has alone come to the host, which waits once; no other rows stay. Nothing is
// left to read where capacities are padded.
void read_counts(DispatchOrder& order);
// The same choice of what a capacity drops, by copy, from experts and weights side by side,
// [B, S, 2k] of the main type. The last `padding` positions of a sequence count in nothing.
std::vector<char> beyond_capacity(const at::Tensor& choices_BSC, int64_t num_experts,
                                  int64_t padding, const strategy::Capacity& capacity, double tie);
// The same rows by chunks of the tokens (strategy::token_chunk): `token` counts from the chunk's
// first, and the counts of sequences stay behind. On a device the host waits once more.
std::vector<DispatchOrder> split_order(DispatchOrder order, int64_t num_chunks);
// The same rows by groups of the `peers` ranks that hold their places, seen from rank `index`
// (strategy::grouped_peers): each has all tokens, of which the others' copies are as if dropped.
// On a device the host waits once more.
std::vector<DispatchOrder> split_order_by_peers(const DispatchOrder& order, int64_t num_chunks,
                                                int64_t peers, int64_t index);
// Positions, weights and the weights' gradients of all chunks of such a split as those of one
// order, in which rows follow each other by chunk.
struct JoinedCopies {
  at::Tensor position, weights, g_weights;
};
JoinedCopies join_chunks(const std::vector<at::Tensor>& position,
                         const std::vector<at::Tensor>& weights,
                         const std::vector<at::Tensor>& g_weights);
// The same rows divided among `ranks` ranks: of every expert's, rank `index` has the part
// (index + place of the expert) % ranks of nearly equal ones (strategy::token_chunk), so that
// experts with few rows do not all fall to one rank. On a device the host waits once more.
DispatchOrder divide_order(const DispatchOrder& order, int64_t ranks, int64_t index);
// The scores of the experts outside the `top_groups` best of `num_groups` become -inf. A group's
// rank is the sum of its two best scores (DeepSeek-V3) or its best (DeepSeek-V2); the lower group
// first among equals.
void limit_groups_(at::Tensor scores, int64_t num_groups, int64_t top_groups, bool two_best);
// scores become the gradient of the logits. With sigmoid scores the auxiliary gradient is that of
// scores divided by their row's sum; with sigmoid scores and g_log_sum the first argument holds the
// logits, not the scores.
void router_backward_(at::Tensor probabilities, const RouterGradients& in);

// Sum of -log softmax(logits)[target] where target != -100; with `gradient` the logits become scale
// * dloss/dlogits.
Amount cross_entropy_(at::Tensor logits, const at::Tensor& targets, bool gradient, double scale);

namespace any_device {
// What an expert keeps, by what order; unlimited by default.
struct CapacityLimit {
  strategy::Capacity capacity;
  double tie = capacity_tie(at::kFloat);
};
void rms_norm_out(at::Tensor y, const at::Tensor& x, const at::Tensor& weight, double epsilon);
void rms_norm_backward_(at::Tensor g, const at::Tensor& x, const at::Tensor& weight, double epsilon,
                        at::Tensor weight_gradient, double beta, const at::Tensor& residual);
void rotate_(at::Tensor x, const RopeTable& table, int64_t sequence, bool back);
void swiglu_out(at::Tensor act, const at::Tensor& h);
void swiglu_backward_(at::Tensor h, at::Tensor g_act);
void gather_rows_out(at::Tensor out, const at::Tensor& x, const at::Tensor& index);
void sum_rows_out(at::Tensor out, const at::Tensor& rows, const at::Tensor& position);
void add_rows_(at::Tensor table, const at::Tensor& index, const at::Tensor& rows);
void merge_out(at::Tensor out, const at::Tensor& returned, const at::Tensor& weights,
               const at::Tensor& position, const at::Tensor& x1);
void merge_backward_out(at::Tensor g_returned, at::Tensor g_weights, const at::Tensor& gx,
                        const at::Tensor& returned, const at::Tensor& weights,
                        const at::Tensor& position, int64_t first_row);
void softmax_(at::Tensor x, at::Tensor log_sum = {});
void choose_experts_out(at::Tensor expert, const at::Tensor& probabilities);
void router_backward_(at::Tensor probabilities, const RouterGradients& in);
DispatchOrder order_rows(const at::Tensor& scores, const at::Tensor& expert,
                         const SequenceSpan& span, bool normalised, double scaling,
                         const ExpertPlaces& places, const CapacityLimit& limit = {});
Amount cross_entropy_(at::Tensor logits, const at::Tensor& targets, bool gradient, double scale);
}  // namespace any_device

}  // namespace piper::nn
