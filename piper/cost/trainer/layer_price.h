// What one layer costs one rank for one micro-batch under a trainer: seconds by what they are spent
// on, bytes kept for the backward, parameters held. Everything is divided as the axes divide it:
//
//   tp    columns of the first product of a block, rows of the second; heads; with sequence
//         parallelism norms and residuals too. One gather and one scatter a block and direction
//         (Korthikanti et al. 2022), all-reduces without it (Shoeybi et al. 2019)
//   cp    tokens; keys and values travel in a ring behind the attention that they feed (Liu et al.
//         2023)
//   ep    routed experts; rows travel there and back. Under tp the tokens of a block are dealt to
//         its ranks first
//   etp   each expert's matrices; rows are gathered and scattered among its ranks
//
// Where the trainer schedules its mixtures (TrainerProfile::schedules_mixtures), these are priced
// as this Piper's programs run them (schedule/moe_layer/): without sequence parallelism every rank
// of tp routes all tokens, unless their schedule divides tokens (Parm's S1) or rows (MoNTA, Parm's
// S2) among them; shared experts are whole; exchanges travel beside what mixture_order.h says.
//
// Bytes follow what trainers with flash attention keep: input, normalised input, queries, keys,
// values, attention's output; the same for the feed-forward; routed rows before each product
// (Korthikanti et al. 2022, table 2, without dropout masks).
#pragma once

#include <piper/cost/trainer/rates.h>
#include <piper/cost/trainer/trainer_profile.h>
#include <piper/model/model.h>
#include <piper/strategy/strategy.h>

#include <cstdint>

namespace piper::cost {

// What a layer's price depends on.
struct LayerShape {
  double tokens = 0;    // of a micro-batch on one rank: sequences x sequence / cp
  double sequence = 0;  // whole
  int64_t tp = 1, cp = 1, ep = 1, etp = 1;
  bool sequence_parallel = false;
  strategy::MoeSchedule moe_schedule = strategy::MoeSchedule::kPlain;
  int64_t moe_chunks = 1;
  // The efficiency of the compute that overlaps with exchanges; and whether gradients of weights
  // are made in a part of their own.
  double compute_efficiency = 1;
  bool splits_backward = false;
  double rows_of_copy = 1;  // made of it, when the load is balanced (Capacity::balanced_part)
  double imbalance = 1;     // rows of the busiest rank / mean
  AllToAllConfig exchange;
};

// Compute and exposed communication apart, because the first is calibrated and the second is not.
struct PassPrice {
  double compute = 0;
  double tensor = 0;    // collectives of tp and etp
  double exchange = 0;  // to the experts and back
  double context = 0;   // keys and values that attention does not hide
  double total() const { return compute + tensor + exchange + context; }
};

// One collective of a layer as it runs, and how much of it the trainer hides behind compute: the
// rest is exposed.
struct CollectiveCost {
  CommTime moves;
  double hidden = 0;
  LevelUtilization needs = {};  // of exchanges; other collectives' follow from their group alone
  double exposed() const { return moves.total() - hidden; }
};

// What a mixture layer moves in a pass: the tokens that ranks which share an expert gather in front
// of it (Parm's baseline), rows to the experts and back, what those ranks gather and sum, and what
// tensor-parallel ranks that have divided tokens or rows among them for this layer alone gather
// behind it.
struct MixtureCollectives {
  CollectiveCost tokens, dispatch, combine, expert_tensor, output;
  // The part of expert_tensor that is gathered before the experts; the rest is summed after them.
  double gathered_first = 0;
  double exposed() const { return dispatch.exposed() + combine.exposed(); }
};

// Compute of one of a layer's two blocks, with its norm and its residual addition.
struct BlockCompute {
  double forward = 0, backward = 0;
  double backward_weights = 0;  // the part of `backward` that makes gradients of weights
};

struct LayerPrice {
  PassPrice forward;
  PassPrice backward;           // both parts
  double backward_weights = 0;  // the part of backward.compute that makes gradients of weights
  BlockCompute attention, feed_forward;  // add up to the compute above
  // What the exposed communication above is made of. `tensor`, `expert_tensor`: all gathers and
  // scatters of a pass. In the backward a combine's gradients go the way of the dispatch.
  CollectiveCost tensor_forward, tensor_backward, context_forward, context_backward;
  MixtureCollectives mixture_forward, mixture_backward;
  // Whether shared experts compute beside the exchanges: rows are summed before they begin.
  bool has_shared_beside = false;
  // The part of tensor_forward (backward) that arrives before the block computes; the rest leaves
  // after it.
  double arrives_forward = 0, arrives_backward = 0;
  double host_seconds = 0;  // forward and backward take no less
  // What is run again: core attention, all of attention, the feed-forward's products.
  double scores_forward = 0, attention_forward = 0, experts_forward = 0;
  // Bytes kept of one micro-batch, by what recomputation can drop.
  double input_bytes = 0;        // the layer's input: all that full recomputation keeps
  double attention_bytes = 0;    // what recomputed attention drops
  double experts_bytes = 0;      // what recomputed feed-forwards drop
  double other_bytes = 0;        // what neither drops
  double backward_bytes = 0;     // of the moment, while its backward runs
  double placeholder_bytes = 0;  // one buffer of each distinct shape of weight
  double exchange_bytes = 0;     // scratch of one exchange that is not flat
  // Parameters of one rank.
  double dense_parameters = 0, expert_parameters = 0;

  double kept_bytes(strategy::Recompute recompute, const TrainerProfile& trainer) const;
  // Forward work that the backward repeats; kFull: everything, communication included.
  PassPrice again(strategy::Recompute recompute, const TrainerProfile& trainer) const;
};

LayerPrice price_layer(const model::Model& model, const model::Layer& layer,
                       const LayerShape& shape, const TrainerProfile& trainer, const Rates& rates,
                       strategy::Precision precision);

}  // namespace piper::cost
