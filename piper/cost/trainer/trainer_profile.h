// A trainer profile: the software that would run a strategy (Megatron-LM, nanotron, torchtitan,
// this Piper), as far as it decides time and memory: what it keeps, what it overlaps, how far its
// steps are from the micro-benchmarks.
//
// Data, read from configs/trainers (one file each, embedded). The one constant that is fitted to
// measured steps is `compute_efficiency`, at most one a device; the rows that it was fitted to are
// named beside it.
#pragma once

#include <piper/base/json_fwd.h>
#include <piper/strategy/strategy.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace piper::cost {

struct TrainerRules;  // trainer_rules.h

// Bytes of state that one parameter brings: to every rank that computes with it, and once for all
// replicas together.
struct DividedState {
  double replicated = 0;
  double sharded = 0;
  double total(double replicas) const { return replicated + sharded / replicas; }
};

// A measured step that a constant was fitted to; it stays out of error statistics. Fields of a row
// of measured runs ("source" may be a part of the row's).
struct CalibrationRow {
  std::string source, model;
  int64_t gpus = 0, tp = 0, pp = 0, micro_batch = 0;
  double measured_value = 0;
};

struct Calibration {
  double compute_efficiency = 1;  // rate of a step's compute / rate of the micro-benchmarks
  std::string source;
  std::vector<CalibrationRow> rows;
};

// What a trainer runs, of the axes of a search. An empty list: everything.
struct Offers {
  std::vector<strategy::PipelineSchedule> schedules;
  std::vector<int64_t> zero;
  std::vector<int64_t> zero_in_pipelines;  // the same where pp > 1; empty: as `zero`
  std::vector<strategy::Offload> offloads;
  // Activations go to the host only where every stage recomputes all of it: checkpoints do.
  bool offloads_checkpoints_only = false;
  std::vector<strategy::Recompute> recomputes;
  bool recompute_by_stage = true;
  // How an expert's matrices are divided beside ranks that share a layer's.
  enum class ExpertTensor : uint8_t { kAny, kOneOrTensor, kOne };
  ExpertTensor expert_tensor = ExpertTensor::kAny;

  const std::vector<int64_t>& zero_of(int64_t pp) const {
    return pp > 1 && !zero_in_pipelines.empty() ? zero_in_pipelines : zero;
  }

  // Without a pipeline gpipe and 1f1b are one, and nothing that a trainer would have to offer; and
  // who pairs micro-batches in a pipeline does without one.
  bool has(strategy::PipelineSchedule schedule, int64_t pp) const {
    using enum strategy::PipelineSchedule;
    return is_in(schedules, schedule) ||
           (pp == 1 && (schedule == kGPipe || schedule == k1F1B ||
                        (schedule == k1F1BPairs && is_in(schedules, kInterleavedPairs))));
  }
  bool has_zero(int64_t stage, int64_t pp) const { return is_in(zero_of(pp), stage); }
  bool has(strategy::Offload offload) const { return is_in(offloads, offload); }
  bool has_offload_of(const strategy::Strategy& s) const {
    bool is_full = true;
    for (int64_t stage = 0; stage < s.mesh.pp; ++stage)
      is_full &= s.recompute_of(stage) == strategy::Recompute::kFull;
    return has(s.offload) &&
           (is_full || !offloads_checkpoints_only || !strategy::offloads_activations(s.offload));
  }
  bool has(strategy::Recompute recompute) const { return is_in(recomputes, recompute); }
  bool has_expert_tensor(int64_t etp, int64_t tp) const {
    return etp == 1 || expert_tensor == ExpertTensor::kAny ||
           (expert_tensor == ExpertTensor::kOneOrTensor && etp == tp);
  }

 private:
  template <class T>
  static bool is_in(const std::vector<T>& list, T value) {
    return list.empty() || std::find(list.begin(), list.end(), value) != list.end();
  }
};

struct TrainerProfile {
  std::string name;
  std::string description;
  std::string use;  // what to take it for, in a phrase
  // Steps that others published, priced by it: how far off the median was (docs/validation.md).
  struct Published {
    int64_t rows = 0;
    double median_error = 0;
    std::string of;  // the profile that stands for who ran them; "": this one
  } published;
  Offers offers;                              // what a search tries under this trainer
  std::shared_ptr<const TrainerRules> rules;  // and what of that it refuses; null: nothing
  // --- compute ---
  Calibration calibration;                          // where the device has none of its own
  std::map<std::string, Calibration> calibrations;  // by Cluster::device
  double host_seconds_per_layer =
      0;  // a layer's forward and backward take no less: kernels are started one by one
  double serial_seconds_per_layer =
      0;  // beside the kernels, never hidden: synchronisation, allocator
  double seconds_per_message =
      0;  // between stages, beside what the link takes: shapes told first, synchronisation
  double host_seconds_per_mixture_layer = 0;  // the same of a layer with experts
  // Where the optimizer's states are divided (ZeRO 1 and more), every step: tensors cut for the
  // replicas and put together again.
  double division_bytes = 0;  // read and written a parameter, beside the collectives
  // Between device and host a parameter whose optimizer states live there: gradients down and
  // weights up where the host updates, the states both ways where the device does.
  double optimizer_copy_bytes = 6;
  double division_seconds_per_replica = 0;  // of the host, a layer and replica
  bool fuses_sinks =
      true;  // attention with a learned logit a head (gpt-oss) runs in the fused kernel
  bool fused_attention = true;  // false: scores are written and read (softmax_passes times)
  double softmax_passes = 7;
  bool dropout = false;
  double logit_bytes = 20;  // read and written per logit, forward and backward, beside the products
  double grouped_efficiency = 0.8;  // of grouped products against one product of the same rows
  double mixture_passes =
      1;  // routing, sorting and bringing back of rows, in passes of separate kernels; fused: less
  bool recomputes_finely =
      false;                 // what a table does not say about recomputation costs next to no time
  bool interleaves = false;  // chunks of layers where a table does not say how many
  bool splits_by_parameters =
      false;  // a stage ends where its share of all parameters is reached (nanotron)
  bool counts_all_pairs = false;  // FLOPs that it reports count attention without the causal mask
  // --- communication: the part that hides behind compute ---
  double hidden_gradients = 0;  // reductions of gradients and gathers of weights
  double hidden_tensor = 0;     // of tensor parallelism
  double hidden_messages = 0;   // between stages
  double hidden_exchange = 0;   // to the experts and back
  bool deduplicates_rows =
      false;  // a row for several experts of a node crosses once: with the flat exchange
  bool chooses_exchange = false;  // runs any of strategy::kEveryAllToAll: the search picks one
  // Runs every schedule of a mixture layer that strategy::runs(), as this Piper does: the search
  // picks one.
  bool schedules_mixtures = false;
  // Bytes of an element of a row on its way to the experts, and of its gradient on the way back;
  // below 2 it travels as FP8 with scales, and is converted before it leaves instead of where it
  // arrives.
  double dispatch_element_bytes = 2;
  bool gathers_twice = true;   // sequence parallel: the backward gathers its inputs again
  double reduction_bytes = 4;  // of a gradient while it is reduced
  // --- memory ---
  std::array<DividedState, 4> state;        // by ZeRO stage
  double state_alone = 18;                  // one replica
  bool keeps_weights_in_pipelines = false;  // ZeRO 2 and 3 there gather and scatter once a step
  // ZeRO 3 under a pipeline, where weights stay whole between micro-batches
  DividedState state_zero3_pipelined;
  double gathered_buffers = 0;  // whole hidden states of a micro-batch under tp, at the peak
  // "attention" recomputes every other product: this part of what both blocks keep stays; 0 = as
  // strategy.h has it.
  double selective_kept_part = 0;
  bool keeps_rotary_inputs = false;        // queries and keys before and after
  bool keeps_gate_output = false;          // silu(gate) beside gate and up
  double logit_bytes_kept = 8;             // per logit, at the peak of the head
  bool keeps_weight_placeholders = false;  // a buffer of each shape of weight, in bf16
  bool recomputes_scores_only = false;     // "attention": the scores alone, not the projections
  double fixed_bytes = 0;                  // context, workspace
  // Peak of the states alone is what its logs call peak; activations are not in it.
  bool reports_states_only = false;
  double reported_bytes = 0;  // beside the states, in that case
  double unusable_part = 0;   // of a device's memory, beside fixed_bytes: fragmentation

  const Calibration& calibration_of(const std::string& device) const;
};

// Whether this trainer's exchange takes a row to a node once.
inline bool crosses_once(const TrainerProfile& trainer, strategy::AllToAll algorithm) {
  return algorithm == strategy::AllToAll::kHaloDedup ||
         (trainer.deduplicates_rows && algorithm == strategy::AllToAll::kFlat);
}

// All problems at once as InvalidInput.
TrainerProfile parse_trainer(const Json& json, const std::string& source);
// A built-in name or a path. Throws InvalidInput (with a suggestion), IoError.
TrainerProfile load_trainer(const std::string& name_or_path);
std::vector<std::string> builtin_trainers();

}  // namespace piper::cost
