// The gate segment: x1 -> rows in dispatch order, and the routing.
//
//   xn = norm(x1);  p = softmax(W_router xn), or sigmoid
//   e_1..e_k = the k largest of p (+ selection bias), within the best groups where routing is
//   limited to groups;  w_j = s p_ej (/ sum_j p_ej when normalised)
//
// DeepSeek-V2 (softmax, groups by their best expert), DeepSeek-V3 section 2.1.2 (sigmoid, a bias
// that only chooses, groups by the sum of their two best).
//
// Saved for the backward: p [T, E] and e [T, k] (int32); the backward turns p into the gradient of
// the logits in place.
//
// Where tokens travel in place of their copies, the rows are xn [T, D] themselves, and the backward
// takes their gradient in place.
//
// Experts are chosen by exact scores, as transformers does: the choice among experts is as stable
// as rounding, no more.
//
// Capacity (strategy/capacity.h): of every sequence an expert keeps C rows, the others are dropped
// after the weights were normalised: they have no row and position -1, and the gradient of their
// weight is zero. Weights within capacity_tie() of the cut count as equal, and position decides
// among them. The auxiliary loss counts choices, dropped or not (Fedus et al. 2021, section 2.2;
// Megatron-LM, routing() in router.py).
//
// Auxiliary loss, by sequence so that it does not depend on the mesh (the Switch form, Fedus et al.
// 2021, eq. 4-6, with the fraction taken over all k choices):
//   a * E * sum_i f_i P_i / global_sequences,  f_i = count_i / (S k),
//   P_i = mean over the sequence of p_i
// f is a constant to the gradient, so dL/dp_ti = a * E * f_i / (S * global_sequences). With sigmoid
// scores P_i is the mean of p_i / sum_j p_j (DeepSeek-V3, eq. 17-20).
//
// Where ranks share a sequence's tokens (GateBlock::share, context), f needs the choices of all of
// them: the forward leaves its own counts in Routing::sequence_counts, the caller sums them over
// the ranks, and the backward finds the loss. A capacity is that of whole sequences: each rank
// makes its choices (choose_forward), reads those of all ranks, and drops what all would drop.
//
// Padding (nn/mtp.h) has rows like other tokens, which a capacity drops, and counts in nothing: not
// among the choices, not in the losses. Its gradients are zero.
//
// Where ranks gather tokens in front of it, the forward routes those of all, as whole sequences,
// and keeps, counts and differentiates what is of its own.
//
// Where ranks route the same tokens each, and experts are sent several copies of a row, g_rows is
// that of a copy's part (GateBlock::copies): their weights' gradients then count every row once.
//
// z-loss of the logits z, with either score function (Zoph et al. 2022, "ST-MoE", eq. 5), a mean
// over each sequence's tokens, then over the sequences of the global batch, so that it does not
// depend on the mesh either:
//   c / S * sum_t (log sum_e exp z_te)^2 / global_sequences,
//   dL/dz_te = 2 c lse_t softmax(z_t)_e / (S * global_sequences)
// Saved besides: dL/dlse [T]; and with sigmoid scores the logits instead of p, which would have
// lost them where p is near 1.
#pragma once

#include <piper/nn/context_share.h>
#include <piper/nn/host_read.h>
#include <piper/nn/parameters.h>
#include <piper/nn/stage.h>
#include <piper/nn/tensor_ops.h>
#include <piper/nn/tensor_share.h>

#include <cstdint>
#include <span>
#include <vector>

namespace piper::nn {

struct GateBlock {
  double epsilon = 1e-6;
  TensorShare share;     // whose tokens x1 holds
  ContextShare context;  // the part that x1 has of every sequence
  TensorShare counted;   // of these, whose count in the weights' gradients
  // Who brings an equal part of the tokens that the forward reads, whose rows are sent from here
  // (Parm's baseline): everything else is of own tokens alone.
  TensorShare gathered;
  TensorShare divided;  // of these tokens' rows, which are sent from here
  int64_t copies = 1;   // of every row that experts are sent (strategy::copies_of_rows)
  // Where chunks are groups of peers (strategy::grouped_peers): of how many, and which of them this
  // rank is.
  int64_t peers = 0, peer = 0;
  int64_t top_k = 0;
  bool normalised = false;
  bool sigmoid = false;
  double scaling = 1;                      // s
  int64_t num_groups = 1, top_groups = 1;  // 1: no limit
  double auxiliary = 0;                    // coefficient / global_sequences
  double z_loss = 0;                       // c / global_sequences
  strategy::Capacity capacity;             // of every expert
  int64_t padding = 0;      // the last positions of a sequence, from which a module does not learn
  int64_t own_padding = 0;  // of a sequence's tokens on this rank, the last so many are padding
  bool deduplicated = false;  // rows are tokens (Routing::deduplicated)
  ExpertPlaces places;        // where rows are sent to; empty: plain
  Weight* norm = nullptr;
  Weight* router = nullptr;  // [E, D]
  Weight* bias = nullptr;    // [E], chooses only; null without one
};

struct GateOutput {
  std::vector<at::Tensor> rows;  // by chunk
  Amount auxiliary_loss;
  Amount z_loss;
  std::vector<int64_t> rows_of_expert;  // by place, that were kept, of all ranks that divide them
  std::vector<int64_t>
      chosen;  // [E] how often each expert was chosen, by id; the routing's counts, by place, are
               // what was kept
  at::Tensor
      counts_there;  // `chosen`, then `rows_of_expert`, [2, E], where they stay on the device
};

// Experts and their weights as a capacity compares them, side by side: [T, 2k] of the main type.
at::Tensor choose_forward(const GateBlock& block, const at::Tensor& x1_TD);

// Fills weights, token, position and counts of the routings, one for each chunk
// (Stage::gate_forward). x1: [B * sequence, D], or of that this rank's share. `choices`: of all
// ranks that share the sequences, by rank, where a capacity is theirs; else undefined.
// `counts_stay`: nobody on the host asks how many rows an expert has (Routing::counts_E); for one
// chunk whose rows lie in places by id, without `choices` (PIPER_CHECK). Rows are then as many as a
// capacity can keep; the last of them nothing reads.
GateOutput gate_forward(GateBlock& block, const at::Tensor& x1_TD, const at::Tensor& choices,
                        int64_t sequence, std::span<Routing> chunks, Tape* tape,
                        bool counts_stay = false);
// Consumes the tape.
struct GateGradient {
  at::Tensor x1;
  Amount auxiliary_loss;  // of shared sequences; else the forward has it
};
GateGradient gate_backward(GateBlock& block, const std::vector<at::Tensor>& g_rows,
                           const std::vector<at::Tensor>& g_weights, const at::Tensor& gx_TD,
                           const at::Tensor& x1_TD, const Routings& chunks, Tape& tape);

// visit(c, first, position): of each chunk the positions of its tokens' copies, [T, K], and the
// first of them; where tokens are gathered, of own ones alone. Where chunks are groups of peers
// each of them has all tokens.
template <class Visit>
void for_each_chunk(const Routings& chunks, const TensorShare& gathered, Visit visit) {
  int64_t first = 0;
  for (size_t c = 0; c < chunks.size(); ++c) {
    const at::Tensor position = gathered.own(chunks[c]->position);
    visit(c, first, position);
    if (!chunks[c]->of_all_tokens) first += position.size(0);
  }
}

}  // namespace piper::nn
