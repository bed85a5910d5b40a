// How a trainer executes a step, where trainers differ: what computes beside what, what a layer
// does in one piece, when weights and gradients travel. The default is what this Piper's executor
// does. Published trainers are described by their profiles (trainer/), which fill this in.
#pragma once

namespace piper::schedule {

// A value. Every combination can be written for every strategy.
struct ExecutionStyle {
  // Forwards alone, and the sum of their losses (write_evaluation()): every action's end gives back
  // what a backward would have read, and nothing is updated.
  bool evaluates = false;
  // --- compute beside communication ---
  // A segment computes in parts: one while its own collective arrives, one while what it made
  // leaves. How long the parts are is a matter of price.
  bool splits_tensor = false;    // beside collectives of tensor parallelism
  bool splits_context = false;   // beside the ring of keys and values
  bool splits_exchange = false;  // beside dispatch and combine
  // The two of a pair (Action::pairs_with_next): one's exchanges run beside the other's compute,
  // else one after the other.
  bool pairs_take_turns = true;
  bool waits_for_sends = false;  // a sender computes nothing for a part of each message
  // Compute and collectives of a layer wait for each other in the order of its program, whatever
  // they read; but not the parts of compute that are split off, nor another micro-batch's.
  bool in_order = false;
  // --- what a layer does ---
  bool exchanges_counts = true;  // before rows travel, and of sequences that ranks share
  bool mixture_is_one_segment =
      false;  // kExperts stands for gate, shared experts and merge as well
  // Tensor parallelism without sequence parallelism: each rank routes an equal part of the tokens
  // that all of them hold, and nobody gathers what comes back; else all of them route all.
  bool splits_replicated_tokens = false;
  // Sequence parallelism: the backward gathers the inputs of attention and nets again, with the
  // gradients; else it has them from the forward.
  bool gathers_inputs_again = true;
  // Keys and values come to ranks that share a sequence as the strategy says
  // (strategy::ContextExchange), on a ring step by step; else they always pass round a ring, which
  // is one operation beside attention.
  bool follows_context_exchange = true;
  bool reruns_whole_layers = false;  // full recomputation: also what the backward does not need
  bool reruns_first = false;  // partial recomputation: before the backward, else before its reader
  // Whether tensor parallelism divides attention, dense nets and the model's head; else it divides
  // experts alone: a stand-in for the others hands on what every rank has whole, and no collective
  // follows it (bench/step_bench.h).
  bool divides_dense_blocks = true;
  bool has_mtp_modules = true;
  bool keeps_by_layer = false;  // one slot (kKept) stands for all that a layer keeps
  // Tensor with sequence parallelism: embedding and head compute with whole tables on a rank's own
  // tokens, so that what is held whole (tables, norms, routers) has a sum over the whole stage;
  // else everything dense is summed over the data group.
  bool divides_ends_by_tokens = true;
  // --- weights and gradients ---
  // Divided gradients are slots (step.h); else a trainer's profile counts them as states.
  bool states_in_slots = true;
  bool param_sync_has_stream = false;  // they travel beside everything else, else among exchanges
  bool overlaps_param_sync = true;     // a part of them travels beside compute
  bool exposes_param_sync = false;     // a part of them is waited for
  bool keeps_weights_in_pipelines =
      false;  // ZeRO 2 and 3 under a pipeline gather and scatter once a step
  // --- what lives with the host ---
  bool copies_in_turn = true;  // one copy after the other, else all that are posted share the link
  // Optimizer states come to the device layer by layer and go back; else the host updates, and
  // gradients and weights travel.
  bool updates_on_device = true;
};

}  // namespace piper::schedule
