// A strategy on the command line: a file, or its axes. The same flags for estimate, sim and train.
//
//   --strategy strategy.json                        what `plan --out` wrote
//   --pp 2 --ep 2 --dp 2 --schedule 1f1b ...        4 ranks; dp counts a stage's, a multiple of ep
//
// Axes left out: pp 1, ep 1, dp = ep, one sequence a micro-batch, 2 pp micro-batches (1 without a
// pipeline), 1f1b, no recomputation, dropless, the layers split evenly. With --capacity-factor
// experts drop by probability. With --global-batch the number of micro-batches follows.
#pragma once

#include <piper/base/json_fwd.h>
#include <piper/cli/command.h>
#include <piper/cluster/cluster.h>
#include <piper/cost/load_distribution.h>
#include <piper/cost/trainer/trainer_profile.h>
#include <piper/model/model.h>
#include <piper/strategy/strategy.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace piper::cli {

struct StrategyFlags {
  std::string model, cluster, strategy;  // names or paths; "" = not given
  std::vector<std::string> ignore;       // keys of the model's config.json
  std::optional<int64_t> pp, ep, dp, micro_batch_sequences, num_micro_batches, sequence,
      global_batch_sequences, mtp_depth, tp, cp, etp, vpp, zero;
  bool sequence_parallel = false;
  std::string offload, placement, all_to_all, reduction, reduction_start, context_exchange,
      moe_schedule;  // "" = not given
  std::optional<int64_t> all_to_all_chunk_bytes, moe_chunks, redundant_experts, expert_compression;
  std::vector<int64_t> layers_per_stage;
  std::string schedule, recompute, precision;  // "" = not given
  std::optional<double> capacity_factor;
  std::string drop;  // "" = not given
  bool pad_to_capacity = false;
  // What stands in for --sequence (never more than the model's positions) and --precision.
  int64_t default_sequence = 256;
  strategy::Precision default_precision = strategy::Precision::kFp32;
};

// Declares --model, --ignore, --cluster, --strategy and the axes; kNone: the first three not.
// `flags` outlives `command`.
enum class ModelFlag : uint8_t { kOptional, kNone };
void add_strategy_flags(Subcommand command, StrategyFlags& flags,
                        ModelFlag model = ModelFlag::kOptional);

// The model that --model names, else the one that the strategy file names. Throws InvalidInput when
// there is neither, and where the file's is no built-in: then it says what --model could be.
std::string model_of(const StrategyFlags& flags);

// Throws InvalidInput, one line a problem: axes beside --strategy, degrees that do not divide (with
// those that do), a strategy that contradicts the model. Reads the file; does not read the cluster.
// The strategy is one for model::with_mtp(model, strategy.mtp_depth); --mtp-depth may stand beside
// a file that has none.
strategy::Strategy strategy_from_flags(const StrategyFlags& flags, const model::Model& model);

// The flag that sets a field of a strategy, for what contradicts one who wrote flags; the key in
// quotes where none does. A strategy::NameOfKey.
std::string flag_of(std::string_view key);

// Writes how many parameters the model has into a plan's `predicted`, and reads it (0 where it is
// not said): by it a model is known again under another name.
void note_parameters(Json& plan, const model::Model& model);
int64_t noted_parameters(const Json& plan);

// The cluster that --cluster names, else the one that the strategy file names. Throws InvalidInput
// when there is neither, or when it has fewer devices than the strategy has ranks.
cluster::Cluster cluster_of(const StrategyFlags& flags, const strategy::Strategy& strategy);

// For pricing: model, cluster and strategy together, with the defaults that suit the cluster (4096
// tokens and bf16 on GPUs).
struct Priced {
  model::Model model;
  cluster::Cluster cluster;
  strategy::Strategy strategy;
};
Priced priced_from_flags(StrategyFlags flags);

// Who is predicted to run the strategy: the trainer that --trainer names, else the one that its
// file was planned for, else the machine's default (cost::default_trainer). Throws InvalidInput,
// also where the machine has none.
cost::TrainerProfile trainer_of(const std::string& flag, const strategy::Strategy& strategy,
                                const cluster::Cluster& cluster);
cost::TrainerProfile trainer_of(const std::string& flag, const cluster::Cluster& cluster);
// The same where no machine is named: none without --trainer and a built-in one in the file.
std::optional<cost::TrainerProfile> trainer_of(const std::string& flag,
                                               const strategy::Strategy& strategy);

// The load of its experts that a strategy is priced at: what --load names, else the one that its
// file was planned for, else cost::kDefaultLoad. One strategy keeps one price in every command.
// Throws InvalidInput, IoError.
cost::LoadDistribution load_of(const std::string& flag, const strategy::Strategy& strategy);
// What is expected of it: rows of the busiest expert rank over the mean.
double imbalance_of(const cost::LoadDistribution& load, const strategy::Strategy& strategy,
                    const model::Model& model);
// "load zipf:0.1: the busiest of 64 expert ranks has 1.17 times the mean", or "load balanced".
std::string in_words(const cost::LoadDistribution& load, const strategy::Strategy& strategy,
                     const model::Model& model);

// Declares --trainer, and --stack as it was called before; `name` outlives `command`. `otherwise`:
// whose profile is taken where it is not given, in --help.
inline constexpr const char* kAsItsFile = " (what the strategy's file says, else as piper plan)";
Flag add_trainer_flag(Subcommand command, std::string& name, const std::string& otherwise = "");

// Throws InvalidInput with what the executor lacks, and the nearest strategy that it executes.
void require_runnable(const strategy::Strategy& strategy, const model::Model& model,
                      const std::string& command);

// Throws InvalidInput with what is allowed and what was most likely meant.
[[noreturn]] void refuse_word(const char* flag, const std::string& text,
                              const std::vector<std::string>& names);
// The enumerator that a flag names, in the words of its traits.
template <HasTraits Enum>
Enum parse_word(const char* flag, const std::string& text) {
  const std::optional<Enum> found = find_by_name<Enum>(text);
  if (!found) refuse_word(flag, text, names_of<Enum>());
  return *found;
}
// None where the flag is not given.
template <HasTraits Enum>
std::optional<Enum> parse_word_if_given(const char* flag, const std::string& text) {
  if (text.empty()) return std::nullopt;
  return parse_word<Enum>(flag, text);
}
strategy::Recompute parse_recompute(const std::string& text);

}  // namespace piper::cli
