// What `piper sim` simulates: one step, or one for each sample of what is random, and where its
// time goes.
#pragma once

#include <piper/balance/rebalance_policy.h>
#include <piper/cli/load_flags.h>
#include <piper/cli/strategy_flags.h>
#include <piper/cost/trainer/trainer_profile.h>
#include <piper/graph/timeline.h>
#include <piper/schedule/step.h>
#include <piper/sim/disturbance.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace piper::cli {

// Where a rank's step goes.
struct RankShare {
  Rank rank;
  double compute_seconds = 0;
  double exposed_seconds = 0;  // an exchange or a reduction runs and nothing is computed
  double idle_seconds = 0;     // the rest
  int64_t peak_bytes = 0;
};

struct SimulatedSteps {
  schedule::StepGraph step;
  graph::Timeline timeline;      // of the slowest sample
  std::vector<RankShare> ranks;  // of that; those that were written
  SampledSteps sampled;
  bool one_pipeline = false;
  bool is_exact = false;  // by exact costs
  cost::TrainerProfile trainer;
  cost::Scatter scatter;  // with which it was simulated: SimulationRequest's
  std::string why_all;    // of more than 64 ranks all were simulated: why; "" otherwise
  std::optional<cost::RebalancingGain> rebalancing;  // of a run that rebalances
  // The closed form predicts so by a trainer's profile. It is empty with this Piper's exact costs,
  // which predict schedules of one chunk alone.
  std::optional<double> closed_form_seconds;
};

struct SimulationRequest {
  // Samples of it are simulated; without it, one step in which the busiest expert rank has so many
  // times the mean rows.
  std::optional<cost::LoadDistribution> load;
  double imbalance = 1;
  balance::RebalancePolicy rebalance;  // of the load; samples are then the steps of one run
  sim::Disturbance disturbance;        // a sample's seed is its own: seed + sample
  // Scatter of equal tasks on the machine (cost::scatter): a single step is simulate_scattered()'s,
  // of several samples each draws once. A trainer's step does not heed it.
  cost::Scatter scatter;
  uint64_t seed = 0;
  int64_t num_samples = 1;
  bool keep_memory = false;  // over time
  bool all_ranks = false;    // also where one pipeline would do
};

// Up to 64 ranks are simulated in full; of more, one pipeline where it provably stands for all
// (sim/symmetry.h). Throws InvalidInput when that is more than can be simulated.
//
// Where costs are exact (cost/estimator.h): the tasks that this Piper executes, under further
// pipeline schedules too. Else the step as the trainer would run it (cost/trainer/priced_step.h);
// of a load that is not balanced every rank is then the busiest of its group: exchanges let none be
// faster.
SimulatedSteps simulate(const Priced& priced, const SimulationRequest& request,
                        const cost::TrainerProfile& trainer);

}  // namespace piper::cli
