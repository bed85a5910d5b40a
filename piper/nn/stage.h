// One rank's share of the model as segments: parameters, and functions that never communicate.
//
// Legend of tensor names: T tokens of the micro-batch (B sequences x S), D hidden, V vocabulary, R
// received rows, E experts, L local experts, F expert ffn, K top-k, N rows sent (T*K, less what a
// capacity drops), P peers of the expert group. The N rows are in dispatch order: sorted by the
// place of their expert (balance/expert_placement.h; a plain placement's places are the experts'
// ids), then by token; so rows for one peer are contiguous.
//
// Backward accumulates parameter gradients into Parameter::gradient directly (no temporary of the
// weight's size) and returns input gradients. A Tape holds what the backward needs besides the
// tensors passed in again by the caller. A null tape means: nothing will be differentiated, keep
// nothing. A backward consumes its tape: some of what it holds turns into gradients in place.
//
// Thread safety: one Stage belongs to one thread.
#pragma once

#include <piper/balance/expert_placement.h>
#include <piper/base/strong_id.h>
#include <piper/model/model.h>
#include <piper/nn/aten.h>
#include <piper/nn/tensor_part.h>
#include <piper/strategy/rank_layout.h>
#include <piper/strategy/strategy.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace piper::nn {

// How the ranks of a stage hold a parameter: in equal parts over some axes, and each part on as
// many ranks as there are in a group of `replicas`.
struct Sharding {
  // The ranks that hold the same part, members of this axis: its gradient is summed over them, its
  // optimizer states may be divided among them, one of them writes it into a checkpoint.
  strategy::Axis replicas = strategy::Axis::kData;
  int64_t index = 0, count = 1;  // which part
  bool operator==(const Sharding&) const = default;
};

struct Parameter {
  // Hugging Face name, e.g. "model.layers.3.self_attn.q_proj.weight"; fused storage: see pieces
  std::string name;
  at::Tensor value;     // in the compute precision
  at::Tensor gradient;  // same shape, fp32 for bf16; zero_gradients() at the start of a step
  Sharding sharding;
  int32_t layer = -1;  // global; -1 embedding, -2 head and final norm
  // Its first element has this index in the buffer of its layer and sharding.replicas
  // (Stage::gradients).
  int64_t offset = 0;
  bool decays = true;  // weight decay applies (matrices yes, norms no)
};

// A view of a parameter under its Hugging Face name: fused or stacked storage is exported and
// imported piecewise.
struct NamedPiece {
  std::string name;
  at::Tensor value;      // a view, strided where ranks divide columns
  at::Tensor gradient;   // the same
  size_t parameter = 0;  // index in parameters() of what it is a part of
  // What of the named tensor it is; none: all of it.
  std::optional<TensorPart> part;
};

// What a segment keeps for its backward.
//
// A backward may run in two parts: the input's makes the gradient that others wait for, and leaves
// the products that add to the weights' gradients to the weights' part, Stage::weights_backward().
// Norms and biases' gradients of what a product reads are the input part's. The segments have one
// backward for both ways: they hand such products to weights_part().
struct Tape {
  std::vector<at::Tensor> saved;
  bool defers_weights = false;                  // set before the backward: it is the input's part
  std::vector<std::function<void()>> deferred;  // in order; what they hold is cost's `deferred`

  // Runs `work` now, or in the weights' part. It evaluates Weight::beta() itself, and holds what it
  // reads until then; what the caller passes to the backward must live as long.
  template <class Work>
  void weights_part(Work&& work) {
    if (defers_weights)
      deferred.emplace_back(std::forward<Work>(work));
    else
      work();
  }
};

// What the gate decided for one micro-batch, or for one of its chunks (Stage::gate_forward).
//
// Where ranks divide the rows of the tokens that all of them route (strategy::divides_rows), N is
// that of all: the rows of the first rank in dispatch order, then those of the second, ...; merge
// and the gate's backward read rows in this order. A rank sends its own alone: token, counts, what
// gate_forward returns and merge_backward leaves are of those.
struct Routing {
  at::Tensor weights;   // [N], dispatch order; fp32 for bf16
  at::Tensor token;     // [N] int64 (or int32): source token of each row, in the chunk
  at::Tensor position;  // [T, K]: row of token t's j-th copy; -1 = dropped
  std::vector<int64_t>
      counts;  // rows for each place of an expert from this rank, [E] without copies
  // Filled by the caller after the counts exchange; for ep = 1 by gate_forward: rows received from
  // each peer for each local expert, [P * L], peer-major. Received rows are ordered by peer, then
  // local expert.
  std::vector<int64_t> received_counts;
  // [E] int64: both of these where the device has them alone (for ep = 1, and experts that are one
  // product), which are then empty. N is then as many as can be kept: where a capacity drops, the
  // last rows are of no expert.
  at::Tensor counts_E;

  // By rank of those that divide the rows: how many each has; this rank's follow `first_own_row`
  // others. Empty where they are not divided.
  std::vector<int64_t> divided_rows;
  int64_t first_own_row = 0;

  // Whether the chunk is a group of peers (strategy::grouped_peers): copies that go to others are
  // as if dropped.
  bool of_all_tokens = false;

  // Whether some rows are of no copy: those that a capacity is padded with (strategy::Capacity), of
  // weight 0, whose gradient is 0.
  bool is_padded = false;

  // Where ranks share the experts' matrices (expert-tensor parallelism; schedule/step.h): the
  // received_counts of all of them, by rank, [etp * P * L], filled by the caller. The experts then
  // compute with the rows of all, in this order.
  std::vector<int64_t> shared_counts;
  const std::vector<int64_t>& computed_counts() const {
    return shared_counts.empty() ? received_counts : shared_counts;
  }

  // Tokens of a sequence that are here or on ranks which share matrices; 0: all of it. Choices by
  // sequence, [B, E] int64, where ranks share the tokens of a sequence: gate_forward
  // counts this rank's, the caller sums them over the ranks before gate_backward. Undefined
  // elsewhere.
  int64_t sequence = 0;
  at::Tensor sequence_counts;

  // Where tokens travel in place of their copies (strategy::deduplicates): gate_forward then
  // returns norm(x1), a row for each of the T tokens, and its backward takes theirs; the experts
  // receive U rows, one for each token of a member, and return as many sums of weighted results;
  // merge adds one row to each token, and its backward leaves no weights' gradient. The caller
  // fills these after the exchange of routes: R copies by peer, local expert, token.
  bool deduplicated = false;
  at::Tensor received_row;        // [R] int32: among the U rows
  at::Tensor received_position;   // [U, up to L] int32: copies of each row; -1 = none
  at::Tensor received_weights;    // [R], as `weights`
  at::Tensor g_received_weights;  // [R], which experts_backward fills
};

using Routings = std::vector<const Routing*>;  // by chunk

struct StageOptions {
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;
  uint64_t seed = 0;
  // Number of sequences in the global batch: the per-sequence auxiliary loss is summed over
  // sequences and divided by it. Number of target tokens in the global batch: the divisor of the
  // loss.
  int64_t global_sequences = 1;
  int64_t global_target_tokens = 1;
  // Multi-token prediction: the losses of the modules count mtp_weight / depth each (eq. 25), their
  // auxiliary losses with them. Target tokens in the global batch, by module: the divisors of their
  // losses.
  double mtp_weight = 0;
  std::vector<int64_t> mtp_target_tokens;
  // Where the experts of each layer begin; those that are not here have the plain placement, with
  // the strategy's redundant slots. Each is even and has as many.
  balance::Placements placements;
};

// Sums of one step on this rank, until take_statistics().
struct StageStatistics {
  double loss_sum = 0;  // sum of token losses (not divided)
  int64_t target_tokens = 0;
  double auxiliary_loss = 0;  // already scaled by coefficient and divided by global_sequences
  double z_loss = 0;          // the same
  double mtp_loss = 0;  // mean over the modules, already divided by their targets; not weighted
  // By layer, of this rank: how often each global expert was chosen; the rows routed to it, which
  // without a capacity are as many.
  std::map<int32_t, std::vector<int64_t>> expert_counts, expert_rows;
};

class Stage {
 public:
  virtual ~Stage() = default;

  // --- forward and backward of the segments; `layer` is global ---
  // Where ranks share a layer's matrices (tensor parallelism; schedule/step.h), x_TD and gradients
  // of attention and dense MLP are those of all tokens, and results are parts of a sum. Everything
  // else is of the rank's own tokens with sequence parallelism, and of all without; a head's
  // gradient is of its own tokens, and so is what a mixture layer makes of all under Parm's S1.
  // tokens_BS and targets_T are whole.
  virtual at::Tensor embedding_forward(const at::Tensor& tokens_BS) = 0;  // -> x_TD
  virtual void embedding_backward(const at::Tensor& tokens_BS, const at::Tensor& gx_TD) = 0;

  virtual at::Tensor attention_forward(int32_t layer, const at::Tensor& x_TD, int64_t sequence,
                                       Tape* tape) = 0;
  virtual at::Tensor attention_backward(int32_t layer, const at::Tensor& gx1_TD,
                                        const at::Tensor& x_TD, const at::Tensor& x1_TD,
                                        int64_t sequence, Tape& tape) = 0;

  // Where ranks share sequences (context parallelism), attention is two segments with a gather
  // between them: projection_forward() before it, and this rank's tokens against the keys and
  // values of all. Whoever shares none has no such segments (PIPER_CHECK).
  struct Projection {
    at::Tensor queries, keys_and_values;  // [T, C]; keys, then values of a token
  };
  virtual Projection projection_forward(int32_t layer, const at::Tensor& x_TD, int64_t sequence,
                                        Tape* tape);
  virtual at::Tensor projection_backward(int32_t layer, const Projection& gradients,
                                         const at::Tensor& gx1_TD, const at::Tensor& x_TD,
                                         int64_t sequence, Tape& tape);
  virtual at::Tensor context_attention_forward(int32_t layer, const at::Tensor& x_TD,
                                               const Projection& of_all, int64_t sequence,
                                               Tape* tape);
  virtual Projection context_attention_backward(int32_t layer, const at::Tensor& gx1_TD,
                                                const Projection& of_all, int64_t sequence,
                                                Tape& tape);

  // The same on a ring: a step for the keys and values of each rank, and what follows. `hop`: of
  // whose (schedule::Segment::hop).
  struct HeadOutputs {
    at::Tensor out, log_sum_exp;  // [T, C]; [B, H, S / n]
  };
  virtual HeadOutputs ring_step_forward(int32_t layer, int64_t hop, const Projection& p,
                                        const HeadOutputs& before, int64_t sequence);
  virtual at::Tensor ring_attention_forward(int32_t layer, const at::Tensor& x_TD,
                                            const HeadOutputs& outputs, HeadOutputs& kept);
  virtual at::Tensor ring_attention_backward(int32_t layer, const at::Tensor& gx1_TD,
                                             const HeadOutputs& kept, Tape& tape);
  virtual Projection ring_step_backward(int32_t layer, int64_t hop, const at::Tensor& g_out,
                                        const Projection& p, const HeadOutputs& kept,
                                        const at::Tensor& g_queries, int64_t sequence);

  virtual at::Tensor dense_mlp_forward(int32_t layer, const at::Tensor& x1_TD, Tape* tape) = 0;
  virtual at::Tensor dense_mlp_backward(int32_t layer, const at::Tensor& gx_TD,
                                        const at::Tensor& x1_TD, Tape& tape) = 0;

  // Experts and weights of own tokens' choices, [T, 2k] (nn/gate.h).
  virtual at::Tensor choose_forward(int32_t layer, const at::Tensor& x1_TD) = 0;
  // With a tape it adds auxiliary loss, z-loss and the experts' counts to the statistics (so a
  // first pass whose tape is recomputed later counts once).
  //
  // Gate and merge work on chunks of the tokens (schedule/step.h): as many nearly equal ranges
  // (strategy::token_chunk) as there are routings, each with rows and a routing of its own; or on
  // groups of peers (strategy::grouped_peers), each with all tokens.
  // sequence_counts are in the first one.
  // `choices`: what choose_forward() made of all ranks that share the sequences, by rank, where a
  // capacity is theirs; else undefined.
  virtual std::vector<at::Tensor> gate_forward(int32_t layer, const at::Tensor& x1_TD,
                                               const at::Tensor& choices, int64_t sequence,
                                               std::span<Routing> chunks,
                                               Tape* tape) = 0;  // -> rows
  // gradient of rows and weights, and gx_TD (the residual's gradient), to the gradient of x1.
  // `g_rows` may be consumed.
  virtual at::Tensor gate_backward(int32_t layer, const std::vector<at::Tensor>& g_rows,
                                   const std::vector<at::Tensor>& g_weights,
                                   const at::Tensor& gx_TD, const at::Tensor& x1_TD,
                                   const Routings& chunks, Tape& tape) = 0;

  // Shared experts of a mixture layer: x1 -> x1 + shared(norm(x1)), the residual that merge adds
  // to. Their backward takes and returns what the dense MLP's does; its result is the gate's gx_TD.
  virtual at::Tensor shared_forward(int32_t layer, const at::Tensor& x1_TD, Tape* tape) = 0;
  virtual at::Tensor shared_backward(int32_t layer, const at::Tensor& gx_TD,
                                     const at::Tensor& x1_TD, Tape& tape) = 0;

  virtual at::Tensor experts_forward(int32_t layer, const at::Tensor& received_RD,
                                     const Routing& routing, Tape* tape) = 0;
  virtual at::Tensor experts_backward(int32_t layer, const at::Tensor& g_out_RD,
                                      const at::Tensor& received_RD, const Routing& routing,
                                      Tape& tape) = 0;

  virtual at::Tensor merge_forward(int32_t layer, const std::vector<at::Tensor>& returned,
                                   const Routings& chunks, const at::Tensor& x1_TD) = 0;
  struct MergeGradients {
    at::Tensor returned, weights;
  };
  virtual std::vector<MergeGradients> merge_backward(int32_t layer, const at::Tensor& gx_TD,
                                                     const std::vector<at::Tensor>& returned,
                                                     const Routings& chunks) = 0;

  // The same of all tokens at once.
  at::Tensor gate_forward(int32_t layer, const at::Tensor& x1_TD, int64_t sequence,
                          Routing& routing, Tape* tape) {
    return gate_forward(layer, x1_TD, {}, sequence, std::span(&routing, 1), tape).front();
  }
  at::Tensor gate_backward(int32_t layer, const at::Tensor& g_rows, const at::Tensor& g_weights,
                           const at::Tensor& gx_TD, const at::Tensor& x1_TD, const Routing& routing,
                           Tape& tape) {
    return gate_backward(layer, std::vector{g_rows}, std::vector{g_weights}, gx_TD, x1_TD,
                         Routings{&routing}, tape);
  }
  at::Tensor merge_forward(int32_t layer, const at::Tensor& returned, const Routing& routing,
                           const at::Tensor& x1_TD) {
    return merge_forward(layer, std::vector{returned}, Routings{&routing}, x1_TD);
  }
  MergeGradients merge_backward(int32_t layer, const at::Tensor& gx_TD, const at::Tensor& returned,
                                const Routing& routing) {
    return merge_backward(layer, gx_TD, std::vector{returned}, Routings{&routing}).front();
  }

  // Adds the micro-batch's loss to the statistics. Targets of -100 are ignored. With a tape it also
  // adds the gradient of the head's table and leaves the gradient of norm(x) in the tape (the
  // logits live for one chunk of tokens only): all products of the head are in its forward, so run
  // it once a micro-batch, not again for recomputation.
  virtual void head_forward(const at::Tensor& x_TD, const at::Tensor& targets_T, Tape* tape) = 0;
  virtual at::Tensor head_backward(const at::Tensor& x_TD, const at::Tensor& targets_T,
                                   Tape& tape) = 0;
  virtual at::Tensor logits(const at::Tensor& x_TD) = 0;  // for evaluation and parity tests, [T, V]

  // Modules of multi-token prediction (mtp.h), on the last stage; `layer` is that of the module.
  // The join: from what the head before it reads to the input of the module's layer, and back (g_x:
  // the gradient of the former from that head). tokens and targets are those of the whole
  // sequences, as for embedding and head.
  virtual at::Tensor mtp_join_forward(int32_t layer, const at::Tensor& x_TD,
                                      const at::Tensor& tokens_BS) = 0;
  virtual at::Tensor mtp_join_backward(int32_t layer, const at::Tensor& g_input_TD,
                                       const at::Tensor& g_x_TD, const at::Tensor& x_TD,
                                       const at::Tensor& tokens_BS, Tape& tape) = 0;
  // As head_forward and head_backward, for the module's targets.
  virtual void mtp_head_forward(int32_t layer, const at::Tensor& x_TD, const at::Tensor& targets_T,
                                Tape* tape) = 0;
  virtual at::Tensor mtp_head_backward(int32_t layer, const at::Tensor& x_TD, Tape& tape) = 0;

  // The weights' part of a backward whose input's part left its products in the tape
  // (Tape::defers_weights). Run those of a segment in the order of its micro-batches: then the
  // gradients are the same bits as those of whole backwards.
  virtual void weights_backward(Tape& tape) = 0;

  // --- parameters ---
  virtual std::vector<Parameter>& parameters() = 0;
  virtual std::vector<NamedPiece> named_pieces() = 0;
  // Marks the gradients as zero without touching them: the first backward of a step overwrites.
  // Read them through gradients(), or call parameters() or named_pieces() after the last backward,
  // which zero what no backward has reached.
  virtual void zero_gradients() = 0;
  // One contiguous buffer per reduction: the gradients of a layer (-1 embedding, -2 head) that are
  // summed over this axis (Sharding::replicas). Undefined when there is none. Axis::kExpert has
  // those of the copies of experts, which are no parameters: both stored parameters, one after the
  // other, as the homes' are under Axis::kExpertData.
  virtual at::Tensor gradients(int32_t layer, strategy::Axis replicas) = 0;
  // If a strategy divides such a buffer (ZeRO 2 and more, over at least two ranks), it has memory
  // only from hold to release. Hold marks the gradients of a buffer to which it gives memory as
  // zero, and returns the buffer. A buffer that has memory already, or none, is left as it is.
  virtual at::Tensor hold_gradients(int32_t layer, strategy::Axis replicas);
  virtual void release_gradients(int32_t layer, strategy::Axis replicas);
  // The same of a buffer of weights (zero 3): it has memory when the stage is made, and none
  // between release and hold, after which it holds anything.
  virtual at::Tensor hold_weights(int32_t layer, strategy::Axis replicas);
  virtual void release_weights(int32_t layer, strategy::Axis replicas);
  // The weights of the same buffer, element by element (but for those that are kept in another
  // precision than the layers compute in: they lie elsewhere).
  virtual at::Tensor weights(int32_t layer, strategy::Axis replicas) = 0;
  // A table that the first and the last of several stages hold (Model::shares_embedding): its
  // gradient on either (contiguous, equal shapes), which the graph sums. Undefined elsewhere.
  virtual at::Tensor tied_embedding_gradient() = 0;
  virtual StageStatistics take_statistics() = 0;
  // The bias that only chooses experts, [E], to be moved from outside (it has no gradient);
  // undefined where the layer is elsewhere or has none.
  virtual at::Tensor selection_bias(int32_t layer) = 0;

  // --- where experts are ---
  // From the next forward on, the rank's experts of the layer are placement.held(ep index), under
  // their names. The caller has moved what the parameters hold. Between steps only; layers of other
  // stages are passed over.
  virtual void place_experts(int32_t layer, const balance::ExpertPlacement& placement) = 0;
  // The routed experts' stored parameters of a layer, [L, ...] in the order of the rank's experts:
  // indices in parameters(). Empty where the layer is elsewhere or dense.
  virtual std::vector<size_t> expert_parameters(int32_t layer) = 0;
};

// Stage of `rank`: the layers of its chunks (schedule/rank_chunks.h), experts of its ep index;
// embedding with the first of all chunks, final norm and head with the last, and the modules of
// multi-token prediction (with those or tied embeddings both ends hold the table; in a V, where one
// rank has both ends, once). Initial values are a counter-based function of (seed,
// Hugging Face name, element index): every mesh starts equal. Throws InvalidInput when the model
// needs a layer that this Piper cannot train, naming it.
std::unique_ptr<Stage> make_stage(const model::Model& model, const strategy::Strategy& strategy,
                                  Rank rank, const StageOptions& options);

}  // namespace piper::nn
