// One whole training step as a graph: what `cost` prices, `sim` simulates in virtual time and
// `executor` in real time.
//
// A pipeline schedule (gpipe.h, one_f_one_b.h, ...) is a list of compute-only actions per rank
// (action.h). write_step() lowers it: every action becomes the segments of the stage's layers, with
// the exchanges between them; passes then insert the sends and receives between stages, the
// gradient reductions and the update.
//
// A mixture layer's forward, for one micro-batch on one rank (T tokens, k copies each, d hidden):
//
//   x --attention--> x1 --gate--> rows --dispatch--> received --experts--> expert rows
//                     |       \--> routing (weights, permutation, counts)          |
//                     |                |                                        combine
//                     |                |                                           |
//                     +----------------+------------------> merge <-- returned <---+
//                                                             \--> x of the next layer
//
// With ep = 1 the two exchanges vanish and experts read the gate's rows. A dense layer is
// attention, then dense_mlp.
#pragma once

#include <piper/graph/graph.h>
#include <piper/model/model.h>
#include <piper/schedule/action.h>
#include <piper/schedule/execution_style.h>
#include <piper/strategy/rank_layout.h>
#include <piper/strategy/strategy.h>

#include <cstdint>
#include <string>
#include <vector>

namespace piper::schedule {

enum class SegmentKind : uint8_t {
  kEmbedding,  // tokens -> x
  kAttention,  // x -> x1 (norm, projections, attention, residual)
  // x -> queries, keys and values (norm, projections, rotation), where ranks share a sequence;
  // kAttention is then what follows
  kProjection,
  // queries attend to the keys and values of one rank (Segment::hop), where those pass round a ring
  // (strategy::ContextExchange)
  kRingStep,
  kDenseMlp,  // x1 -> x (norm, MLP, residual)
  // x1 -> choices of experts and their weights (norm, router, top-k), which the gate makes once
  // more: where a capacity is that of sequences whose tokens several ranks route
  kRouteOnly,
  kGate,           // x1 -> rows, routing (norm, router, top-k, permutation)
  kSharedExperts,  // x1 -> x1 + shared experts (norm, MLP, residual), while the rows travel
  kExperts,        // received rows -> rows
  kUnpermute,      // returned rows, routing, x1 -> x (weighted sum, residual)
  // x -> loss (norm, projection, cross-entropy); its backward makes the first gradient. Layer -1:
  // the model's own; else that of a module of multi-token prediction
  kHead,
  // x and the embeddings of later tokens -> input of a module's layer (norms, projection)
  kMtpProjection,
  // Phase::kUpdate:
  // all-reduce (ZeRO: reduce-scatter) over the data group: the layer's attention, router, norms,
  // dense MLP, shared expert (layer -1: embedding, -2: head and final norm)
  kDenseGradients,
  kExpertGradients,  // all-reduce over the expert-data group: the layer's routed experts
  // all-reduce over all ranks of a stage: what ranks that share a layer's matrices hold whole, with
  // a gradient of their own tokens or heads each (ExecutionStyle::divides_ends_by_tokens)
  kStageGradients,
  kTiedEmbedding,  // all-reduce between first and last stage, of a table that both hold
  // compute: this rank's share of the sum of squares (every parameter counted once over the mesh)
  kGradientNorm,
  kStatistics,  // all-reduce over the world: squared norm, loss sum, token count, ...
  kOptimizer,   // compute: clip and AdamW
  // Communication, of the layer whose matrices, sequences or weights are divided:
  kTensor,          // gathers and sums of ranks that share a layer's matrices
  kSequenceCounts,  // experts' choices by sequence, summed over ranks that share its tokens
  // gathers of what kRouteOnly makes, over ranks that share a sequence, then over those that share
  // matrices
  kContextChoices,
  kTensorChoices,
  kExpertTensor,  // gathers and sums of ranks that share an expert's matrices
  kExpertTokens,  // gathers of their tokens, of which each then sends the rows (parm_baseline.h)
  // gathers of rows that ranks which route the same tokens divide (moe_layer/divided_rows.h)
  kDividedRows,
  kContext,        // keys and values, of ranks that share a sequence
  kDenseWeights,   // weights that are gathered over the data group (ZeRO)
  kExpertWeights,  // the same over the expert-data group
  kStageWeights,   // the same over all ranks of a stage
  // Experts with several copies (expert_copies.h): an all-gather, from each home to its copies, and
  // a reduce-scatter, from the copies to their home
  kCopiedWeights,
  kCopiedGradients,
  kHostCopy,     // activations or optimizer states, to the host or back
  kUpdateLayer,  // compute: AdamW of a layer whose optimizer states came from the host
  kTakeExpert,   // compute: an expert's state into a slot; what is sent of it (migration.h)
  kPutExpert,    // compute: an expert's state out of a slot
  // compute: adds this rank's share of a layer's reduced gradients to its sums, and gives their
  // buffers back (ZeRO 2)
  kKeepGradients,
  kDropWeights,  // compute: gives back the memory of weights that were gathered (ZeRO 3)
  kWait,         // compute: waits for communication, a part of which nothing hides
};

// Which part of a segment's compute a task is, or of weights and gradients that travel
// (execution_style.h).
enum class ComputePart : uint8_t {
  kWhole,
  kBefore,  // computes while what the segment reads arrives
  kBeside,  // computes beside a ring; of weights and gradients: travels beside compute
  kRest,    // computes when all has arrived; of weights and gradients: is waited for
  kBehind,  // computes while what the segment made leaves
};

struct Segment {
  SegmentKind kind = SegmentKind::kAttention;
  // Global layer index; -1 where the kind has none. Module k of multi-token prediction:
  // num_layers() + k - 1
  int32_t layer = -1;
  ComputePart share = ComputePart::kWhole;
  int32_t expert = -1;  // its id; kTakeExpert and kPutExpert alone
  int16_t chunk = 0;    // 0: of all rows of a mixture layer, else of its chunk 1, 2, ...
  // A step of a ring has the keys and values of the rank so many places before this one; 0 its own
  int16_t hop = 0;
  bool operator==(const Segment&) const = default;
};

// What a slot holds. Token ids and targets are host data that every rank of the two end stages
// already has: they are no slots, the executor knows the task's micro-batch.
enum class SlotKind : uint8_t {
  kHidden,          // x or x1: [T, d]
  kTape,            // what a segment keeps for its backward, besides the slots it reads and writes
  kRows,            // dispatch rows on the sender, [T*k, d]
  kRouting,         // weights [T*k], permutation, counts
  kReceived,        // rows after dispatch, [R, d]
  kExpertRows,      // rows out of the experts, [R, d]
  kReturned,        // rows after combine, [T*k, d]
  kHiddenGradient,  // [T, d]
  kRowsGradient,    // gradient of kRows (after the backward exchange), [T*k, d]
  kReceivedGradient,    // gradient of kReceived (leaves the experts' backward), [R, d]
  kExpertRowsGradient,  // gradient of kExpertRows (arrives at the experts' backward), [R, d]
  kReturnedGradient,    // gradient of kReturned (leaves merge's backward), [T*k, d]
  kRoutingGradient,     // gradient of the weights, [T*k]
  kGathered,            // hidden states, rows or gradients of all ranks that share matrices
  kDeferred,         // of a backward in two parts: what the weights' needs beside the tape's bytes
  kPartial,          // what this rank's part of the matrices gives: the ranks' sum is what is meant
  kSequenceChoices,  // of all ranks that share the tokens of a sequence, [B, E] of 8 bytes
  // Experts and weights, [T, 2k] of the main type: of kRouteOnly of own tokens, of kContextChoices
  // and then kTensorChoices of all that have been gathered, by rank.
  kTokenChoices,
  kQueries,          // of own tokens, [T, query width] (of kProjection)
  kQueriesGradient,  // the same
  // kProjection writes those of own tokens, [T, width of keys and values]; kContext gathers those
  // of all ranks that share a sequence, by rank, or on a ring those of one of them (Segment::hop).
  kKeysAndValues,
  // kAttention writes this rank's part of that of all ranks' tokens, kContext that of own tokens,
  // kRingStep this rank's part of that of one rank's tokens.
  kKeysAndValuesGradient,
  // Heads' outputs and their log-sum-exps: of kRingStep over the keys seen so far, of the main
  // type; of kAttention over all, [T, width of the outputs].
  kHeadOutputs,
  kHeadOutputsGradient,  // of the outputs, [T, width of the outputs]
  kExpertState,  // master weights and both moments of (a part of) an expert, of the main type
  // ZeRO 2: a buffer of gradients (segment: kDenseGradients, ...) that lives for a part of a
  // micro-batch, of the main type
  kGradients,
  // ZeRO 3: a buffer of weights (segment: kDenseWeights, ...) that lives from its gather to the end
  // of what computes with it
  kWeights,
  // A layer's optimizer states (segment: kUpdateLayer) on their visit from the host, of the main
  // type
  kOptimizerStates,
  kKept,  // ExecutionStyle::keeps_by_layer
};

struct SlotMeaning {
  SlotKind kind = SlotKind::kHidden;
  // Whose forward or backward task writes it; the exchange's segment if one does.
  Segment segment;
  int64_t parameters = 0;  // of kExpertState: whose states it holds
  bool operator==(const SlotMeaning&) const = default;
};

// What the tasks read and write, in this order (ep = 1 in brackets):
//   task       phase  reads                                        writes
//   embedding    F                                                 x
//                B    gradient(x)
//   attention    F    x                                            x1, tape
//                B    gradient(x1), x, x1, tape                    gradient(x)
//   dense_mlp    F    x1                                           x, tape
//                B    gradient(x), x1, tape                        gradient(x1)
//   choose       F    x1                                           choices
//   gathers      F    choices                                      choices of more ranks
//   gate         F    x1 [, choices of all]                        rows, routing, tape
//                B    rows gradient, routing gradient, gradient(x),
//                     x1, routing, tape                            gradient(x1)
//   counts       F    routing                                      (they join the routing slot)
//   dispatch     F    rows, routing                                received
//                B    received gradient, routing                   rows gradient
//   shared       F    x1                                           x1 + shared, tape
//                B    gradient(x), x1, tape                        gradient(x1 + shared)
//   experts      F    received [rows], routing                     expert rows, tape
//                B    expert rows gradient [returned gradient],    received gradient
//                     received [rows], routing, tape               [rows gradient]
//   combine      F    expert rows, routing                         returned
//                B    returned gradient, routing                   expert rows gradient
//   merge        F    returned [expert rows], routing, x1          x
//                B    gradient(x), returned [expert rows], routing returned gradient,
//                                                                  routing gradient
//   head         F    x                                            tape
//                B    x, tape                                      gradient(x)
//   mtp join     F    x                                            input of the module's layer
//                B    gradient(input), gradient(x) of the head,    gradient(x)
//                     x
//
// An exchange's segment is the one whose rows move: kGate for counts and dispatch, kExperts for
// combine, forward and backward alike. The embedding's and the model's head's layer is -1.
// Reductions and update tasks read and write no slots but those of divided gradients and of
// offloaded states (below). A layer with shared experts adds its routed experts' output to (x1 +
// shared), and its gate's backward reads gradient(x1 + shared). The backward of unpermute leaves
// gradient(x) to the gate's backward, which adds it as the residual's gradient. A slot is freed by
// its last reader; one that is sent to another stage, by the send.
//
// Where tokens travel in place of their copies (strategy::deduplicates; T tokens, U rows received,
// one for each token of a member): rows, returned and their gradients are [T, d], received, expert
// rows and theirs [U, d]; the experts weigh and add. So merge's backward reads and leaves no more
// than gradient(x), which is returned's; the dispatch's backward also brings the routing gradient;
// and a recomputation ends with the experts, no combine.
//
// With recompute kFull, the layers' forward tasks write no tape and their outputs are freed by
// their last forward reader; only x stays. Phase::kRecompute tasks (same segments, no merge; the
// executor keeps the counts from the forward, as host data, and exchanges none) write fresh slots
// right before the layer's backward; a dense_mlp then frees the x that it writes. With a part
// of it (kAttention, kExperts), the part's segments write no tape in the forward and once more,
// alone, before their backward; they then free what else they write. The head is no layer: it keeps
// its tape and is never recomputed. Nor is a join, whose output its module's layer keeps.
//
// Modules of multi-token prediction (heads.h) run on the last stage, forward behind the head and
// backward before it. With several stages the last one has an embedding of its own for them: its
// gradient is reduced as layer -1, then summed with the first stage's (kTiedEmbedding).
//
// In a backward of two parts the input's part does all but the products that add to the weights'
// gradients, and leaves those, with what they need, to the weights' part:
//   attention    W    gradient(x1), x, tape, deferred
//   dense_mlp    W    gradient(x), x1, tape, deferred
//   shared       W    gradient(x), x1, tape, deferred
//   gate         W    x1, tape, deferred
//   experts      W    expert rows gradient [returned gradient],
//                     received [rows], routing, tape, deferred
//   mtp join     W    gradient(input), x, deferred
//   embedding    W    gradient(x), all of its backward
// Gradients within a segment replace its tape, whose bytes stay; the input's part writes what goes
// beyond them (the activation between two products) to kDeferred. It frees what no weights' part
// still reads; the rest is freed by the weights' part of the segment that would have freed it.
// Where a layer has one slot for all that it keeps (kKept), that stays, and attention's kDeferred
// is what was computed again; where a segment reads gathered slots (below), those stay, their
// source not.
//
// Tensor parallelism (kTensor), with sequence parallelism: of a micro-batch's T tokens (its
// sequences one after the other) rank i of tp owns those from i T / tp to (i + 1) T / tp; hidden
// states, rows and their gradients are those of its own tokens, but for [T, d] that a block gathers
// and what its part of the matrices gives:
//   gather       F    x                                            gathered x
//                B    gradient(x1), x                              gathered gradient, gathered x
//   attention    F    gathered x                                   part, tape
//                B    gathered gradient, gathered x, x1, tape, x   part of gradient(x)
//   dense_mlp    F    gathered x1                                  part, tape
//                B    gathered gradient, gathered x1, tape         part of gradient(x1)
//   sum          F    part                                         x1
//                B    part of gradient(x)                          gradient(x)
//   gate         F    x1                                           rows, routing, tape
//   seq. counts  F    routing                                      sequence counts
//   gate         B    what it reads else, sequence counts          gradient(x1)
//   merge        F    what it reads else, sequence counts          x
// Sequence counts are there where a micro-batch's sequences cannot be dealt whole to the ranks.
// A gather is an all-gather by rank; a sum is a reduce-scatter, added by ascending rank. A part
// holds the residual (forward x, backward gradient(x1)) on the rank's own tokens alone. Everything
// else (embedding, gate, shared experts, merge, head) computes on own tokens with whole matrices.
// Gradients of what a rank holds whole are sums over the stage (kStageGradients), those of what it
// holds a part of are sums over the data group (kDenseGradients).
//
// Without sequence parallelism every rank of tp holds all tokens, and sums are all-reduces; nothing
// is gathered in front of a block. Embedding, gate, shared experts and merge compute on all tokens;
// of the gradients of what they hold whole a rank adds those of its own tokens alone, which are the
// same share as above. The head takes its own tokens in both passes, and then:
//   gather       B    gradient(x) of own tokens                    gradient(x)
// Under Parm's schedule S1 (moe_layer/parm_s1.h) gate, shared experts and merge take their own
// tokens of what they read, and write those, as under sequence parallelism. Behind merge and behind
// the gate's backward stands
//   gather       F    x of own tokens                              x
//                B    gradient(x1) of own tokens                   gradient(x1)
// Where they divide the rows of the tokens that all of them route (strategy::divides_rows), rows,
// returned and their gradients are those of a rank's own share, and a routing has the weights and
// positions of all. What merge reads, and what the gate's backward reads, is gathered
// (kDividedRows; moe_layer/divided_rows.h):
//   gather       F    returned [expert rows], routing              returned of all
//   merge        B    gradient(x), returned of all, routing        returned gradient, routing
//                                                                  gradient of all
//   gather       B    rows gradient, routing                       rows gradient of all
//
// Context parallelism (kContext): rank i of cp holds the parts i and 2 cp - 1 - i of the 2 cp equal
// parts of every sequence (of causal scores that is as much work for each), and computes everything
// of these tokens alone, at their true positions. Attention needs the keys and values of all:
//   projection   F    x                                            queries, keys and values, tape
//   gather       F    keys and values                              keys and values of all
//                B    keys and values                              keys and values of all
//   attention    F    x, queries, keys and values of all           x1, tape
//                B    gradient(x1), queries, keys and values of    queries gradient, part of keys
//                     all, tape                                    and values gradient of all
//   sum          B    part of keys and values gradient of all      keys and values gradient
//   projection   B    queries gradient, keys and values gradient,  gradient(x)
//                     gradient(x1), x, tape
//   attention    W    gradient(x1), tape, deferred
//   projection   W    queries gradient, keys and values gradient,
//                     x, tape, deferred
// x and x1 stand for what tensor parallelism gathers or sums in their place. Latent attention
// gathers its latents and the rotated keys that all heads share. The backward gathers no second
// time what a recomputation has just gathered. Sequence counts are summed over cp as well.
//
// On a ring of n ranks (strategy::ContextExchange::kRing) attention is a step for each rank's keys
// and values. Hop i brings those of the rank i places before this one; its own are keys 0. A return
// moves their gradients, to which every rank adds its part:
//   projection   F    x                                            queries, keys 0, tape
//   hop i        F    keys i - 1                                   keys i
//   ring step 0  F    queries, keys 0                              outputs 0
//   ring step i  F    queries, keys i, outputs i - 1, keys i - 1   outputs i
//   attention    F    x, outputs n - 1                             x1, outputs
//   attention    B    gradient(x1), outputs                        outputs gradient
//   hop i        B    keys i - 1                                   keys i
//   ring step i  B    outputs gradient, queries, keys i, outputs,  queries gradient i, part of keys
//                     queries gradient i - 1, keys i - 1           gradient i
//   return i     B    part of keys gradient i [, keys gradient     keys gradient i
//                     i - 1]
//   ring step 0  B    outputs gradient, queries, keys 0, outputs,  queries gradient, part of keys
//                     queries gradient n - 1                       gradient 0
//   projection   B    queries gradient, keys gradient n - 1,       gradient(x)
//                     gradient(x1), x, tape, part of keys
//                     gradient 0
//   attention    W    gradient(x1), outputs, deferred
//   projection   W    queries gradient, keys gradient n - 1, x,
//                     tape, deferred
// Hops and returns send a slot to the next rank. Hop i + 1 begins when step i - 1 has ended, and
// travels beside step i. Step i frees keys i - 1, since hop i has then read them. A rank's keys
// gradient is back after n - 1 returns; the projection adds the rank's own part. Step 0 is the last
// of the backward, beside the last return. A ring step's backward leaves nothing to a weights'
// part: where latent attention makes keys and values of latents, it adds to those weights at once.
//
// Other trainers' rings are one operation each (ExecutionStyle::follows_context_exchange).
//
// Expert-tensor parallelism (kExpertTensor): etp ranks hold a part of the width of the same
// experts. Each has its own received rows, and computes its part with those of all, by rank:
//   counts       F    routing                                      (they join the routing slot)
//   gather       F    received [rows], routing                     gathered rows
//                B    expert rows gradient [returned gradient],
//                     received [rows], routing                     gathered gradient, gathered rows
//   experts      F    gathered rows, routing                       part, tape
//                B    gathered gradient, gathered rows, routing,
//                     tape, received [rows]                        part of received gradient
//   sum          F    part, routing                                expert rows
//                B    part of received gradient, routing           received gradient
// Under sequence parallelism every token is sent once, as under Parm's schedule S1 (Pan et al.
// 2024). Ranks of one tp group that route the same tokens (strategy::repeats_rows) receive the same
// rows where etp divides tp, unless they divide them: nothing is counted or gathered, and the sums
// are all-reduces.
//
// Under Parm's baseline (strategy::ranks_per_gated_token_set) they gather their tokens, so that
// each sends the rows of all, receives the same ones, and nothing is counted. A routing is that of
// all; merge's forward and the gate's backward take their own tokens of it, and the gate's tape is
// of these:
//   gather       F    x1                                           x1 of all
//   gate         F    x1 of all                                    rows, routing, tape
//   gather       B    gradient(x)                                  gradient(x) of all
//   merge        B    gradient(x) of all, returned, routing        returned gradient, routing
//                                                                  gradient
// Gathers are of kExpertTokens. Shared experts, residual and statistics are of own tokens.
//
// Where exchanges are fused (strategy::fuses_exchange), counts, dispatch and combine are over the
// ep x etp ranks of a layer's experts (Axis::kTensorExpert), without gathers and sums among etp:
// received has the rows of all these ranks, and expert rows are this rank's part of the results.
// A part comes back from each of etp ranks; the exchange adds them up by ascending rank.
//
// Divided gradients (ZeRO 2): the first task of a micro-batch that adds to a buffer of gradients
// writes it as well, behind everything else; later ones read it. A reduce-scatter, and the task
// that keeps the rank's own share of what it brought:
//   gradients           B  gradients                               [gradients]
//   keep gradients      B  gradients of the layer's axes
// The latter frees them. It stands behind the next layer that the rank computes, so that no more
// than two layers' gradients have memory, or in front of what adds to the same layer's before
// that. A module of multi-token prediction adds to the buffers of the embedding, of the head and of
// the norm before it as well: none of these is being reduced when a module's backward or its head's
// forward begins. A reduce-scatter to which nothing was added (a weights' part whose micro-batch
// has left its norms' with another's) writes the buffer itself.
//
// Divided weights (ZeRO 3): a gather writes a buffer of a layer's weights, on the stream of states;
// it starts when what was computed before the layer last come to is done, so that it travels beside
// that layer, and two layers' weights have memory at once.
//   weights             F, B, W                                    [weights]
//   drop weights        F, B, W  weights of the layer's axes
// The latter frees them, behind the layer. A head's stay from its forward to its backward; the
// embedding's backward and the weights' part of experts need none. A module's layer and head hold
// those of the embedding, of the head and of the norm before it, too.
//
// What is kept in host memory (Strategy::offload) is brought by copies (kHostCopy) on a stream of
// their own, one after the other. If it is activations (host_copies.h), a copy out frees the slots
// that a chunk keeps of a micro-batch, and a copy back writes others in their place. Optimizer
// states come layer by layer, two layers' at once; the step's kOptimizer, which decides what is
// updated and by how much, then updates nothing itself:
//   host copy           U                                          optimizer states
//   update layer        U  optimizer states
//   host copy           U  optimizer states
//
// Copies of experts (Strategy::redundant_experts): the copies' weights come before a layer's first
// forward (kCopiedWeights, F), after the gather of its updated weights; their gradients go home
// after its last backward, before the sum over replicas (kCopiedGradients: U, or the phase of that
// backward where gradients are divided). The copies' buffers live as long as the run. Where ZeRO
// divides the homes' gradients (from 2 on) or weights (in 3), both read the slot; gradients that
// nothing was added to are written.
//
// Chunks (strategy::has_chunks): a rank's tokens, or the peers its rows go to, are cut into N;
// everything between gate and merge is there once for each of them, with rows and a routing of its
// own (Segment::chunk 1 to N). Tasks of all tokens read and write the chunks' slots in this order:
//   gate         F    x1                                           rows, routing of chunk 1, ...,
//                                                                  rows, routing of chunk N, tape
//                B    rows gradient, routing gradient of chunk 1,  gradient(x1)
//                     ..., of chunk N, gradient(x), x1, routing of
//                     chunk 1, ..., N, tape
//   counts       F    routing of chunk 1, ..., N                   (they join the routing slots)
//   merge        F    returned, routing of chunk 1, ..., N, x1     x
//                B    gradient(x), returned, routing of chunk 1,   returned gradient, routing
//                     ..., N                                       gradient of chunk 1, ..., N
// and sequence counts as above, from the routing of chunk 1.
//
// A receive is posted one action ahead of the one that needs it (transfers.h). A layer's gradients
// are reduced as soon as its last backward is done, on the exchange stream; reductions over groups
// of one rank are left out (reductions.h). Every rank's last tasks are the gradient norm, the
// statistics and the optimizer.
struct StepGraph {
  graph::Graph graph{0};
  std::vector<Segment> segments;   // by graph::SegmentId
  std::vector<SlotMeaning> slots;  // by graph::SlotShape
  const Segment& segment(const graph::Task& task) const { return segments[task.segment.index()]; }
  const SlotMeaning& meaning(graph::SlotId slot) const {
    return slots[graph.slot(slot).shape.index()];
  }
};

// Writes any strategy. Requires contradictions(strategy, model) to be empty (PIPER_CHECK). What
// this Piper's executor runs of them, strategy::not_runnable() says. `ranks`: write only these
// ranks' tasks (all when empty); operations then keep the members written, so a subset is for
// pricing and simulation of one pipeline, not for execution.
StepGraph write_step(const model::Model& model, const strategy::Strategy& strategy,
                     const std::vector<Rank>& ranks = {}, const ExecutionStyle& style = {});

// The forwards of that step alone, of the model without modules of multi-token prediction, and its
// statistics: the losses of a batch, with weights as they are. For the executor, on all ranks; it
// simulates with the strategy as it is. No backward holds the first stages back: outputs of all
// micro-batches may wait to be taken by a slower stage.
StepGraph write_evaluation(const model::Model& model, const strategy::Strategy& strategy);

// About how many tasks that is, without writing them.
double num_tasks(const model::Model& model, const strategy::Strategy& strategy, int64_t num_ranks,
                 const ExecutionStyle& style = {});

constexpr bool gathers_choices(SegmentKind segment) {
  return segment == SegmentKind::kTensorChoices || segment == SegmentKind::kContextChoices;
}

// Whether gathers and reduce-scatters of this kind are of hidden states, rows, keys and values or
// choices of experts, and not of weights and gradients.
constexpr bool moves_rows(SegmentKind segment) {
  return segment == SegmentKind::kTensor || segment == SegmentKind::kExpertTensor ||
         segment == SegmentKind::kExpertTokens || segment == SegmentKind::kDividedRows ||
         segment == SegmentKind::kContext || gathers_choices(segment);
}

// Whose ranks take part in a collective of a segment of this kind; the expert axis for exchanges
// (that of an exchange fused over ep x etp is LayerKind::exchange_axis).
strategy::Axis axis_of(graph::TaskKind task, SegmentKind segment);

// "F3 L2 experts" - phase (F, R, B, U; I and W of a backward in two parts), micro-batch, layer,
// segment: the name of a task in traces and messages, with " c1" behind it of chunk 1 and
// " h1" of hop 1. Exchanges
// are named "F3 L2 counts" / "F3 L2 dispatch" / "F3 L2 combine", point-to-point "F3 send -> 2" and
// "B3 receive <- 2", reductions "U L2 dense gradients", "U embedding dense gradients"; of a
// migration "U L2 expert 5 take", "U L2 expert 5 send -> 2".
std::string task_name(const StepGraph& step, const graph::Task& task);
const char* name(SegmentKind kind);

}  // namespace piper::schedule
