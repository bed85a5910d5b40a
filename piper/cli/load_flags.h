// --load, --samples, --seed: an expert load as a distribution, on the command line of estimate, sim
// and plan.
#pragma once

#include <piper/balance/rebalance_policy.h>
#include <piper/cli/command.h>
#include <piper/cost/load_distribution.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace piper::cli {

struct LoadFlags {
  std::string load;  // "" = not given
  int64_t num_samples = 16;
  uint64_t seed = 0;
};

// `flags` outlives `command`.
void add_load_flags(Subcommand command, LoadFlags& flags);

// --rebalance and --rebalance-every, of plan, sim and train. `when` begins the help of the former;
// may be empty. `has_slots`: strategies may have slots for copies of experts, so that policies
// which fill them are offered. What they refer to outlives `command`.
void add_rebalance_flags(Subcommand command, std::string& policy, int64_t& every,
                         const std::string& when, bool has_slots = true);

// Returns the policy of a run whose steps are the samples of --load. Where a policy is on, throws
// InvalidInput without a load, or where the samples end before experts move.
balance::RebalancePolicy rebalance_of_samples(const std::string& policy, int64_t every,
                                              const LoadFlags& load);

// nullopt when --load was not given. Throws InvalidInput, IoError.
std::optional<cost::LoadDistribution> load_of(const LoadFlags& flags);

// Step time and peak memory of a device over the samples.
struct SampledSteps {
  std::vector<double> seconds, peak_bytes;
  std::string load_note;  // cost::stretch_of; may be empty
};

Json spread_json(const cost::MeanP95Worst& spread);
Json to_json(const LoadFlags& flags, const SampledSteps& sampled);
// "step ... / memory ..." as mean, p95, worst, with a line that says of what, and the note.
std::string to_text(const std::string& what, const SampledSteps& sampled);

// What moving experts is worth over the samples; as text one line, without its end: "rebalancing by
// threshold:1.3 every 50 steps pays: ...".
Json rebalancing_json(const balance::RebalancePolicy& policy, const cost::RebalancingGain& gain);
std::string rebalancing_text(const balance::RebalancePolicy& policy,
                             const cost::RebalancingGain& gain, int64_t num_steps);

}  // namespace piper::cli
