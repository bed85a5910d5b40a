// What a strategy takes: one interface and one record of the answer, whoever is to run it.
//
//   TrainerEstimator    any trainer, by its profile (trainer/trainer_profile.h): a closed form over
//                       every axis, with bytes as that trainer keeps them. For described machines.
//   ExecutorEstimator   this Piper, on a machine that `piper profile` measured: segment by segment,
//                       with the exact bytes of every slot. Only for what its executor runs.
//
// make_estimator() is the one place that chooses. The two have byte models of their own: what other
// trainers keep fits no tape of this executor, and its slots fit no constant of a profile.
#pragma once

#include <piper/balance/rebalance_policy.h>
#include <piper/cluster/cluster.h>
#include <piper/cluster/watch.h>
#include <piper/cost/load_distribution.h>
#include <piper/cost/prices.h>
#include <piper/cost/trainer/trainer_profile.h>
#include <piper/model/model.h>
#include <piper/schedule/execution_style.h>
#include <piper/schedule/step.h>
#include <piper/strategy/strategy.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

namespace piper::cost {

struct ExactEstimate;

// Seconds of the busiest stage by what they are spent on; they add up to the step.
struct StepSeconds {
  double compute = 0;    // forward and backward
  double recompute = 0;  // with its communication
  double tensor = 0;     // collectives of tp, etp
  double exchange = 0;   // to the experts and back
  double context = 0;    // of cp
  double messages = 0;   // between stages
  double bubble = 0;
  double reductions = 0;  // gradients, gathered weights; exposed
  double update = 0;
  double offload = 0;  // copies to and from the host that nothing hides
  double total() const {
    return compute + recompute + tensor + exchange + context + messages + bubble + reductions +
           update + offload;
  }
};

// Bytes of one rank of a stage at its peak.
struct StageBytes {
  double weights_and_gradients = 0;  // replicated states
  double optimizer = 0;              // sharded states
  double activations = 0;            // kept of all micro-batches in flight
  double working = 0;                // of the moment
  double exchange = 0;               // scratch of an exchange that is not flat
  double fixed = 0;
  double total() const {
    return weights_and_gradients + optimizer + activations + working + exchange + fixed;
  }
};

struct Estimate {
  double seconds = 0;
  StepSeconds time;
  double peak_bytes = 0;  // of the fullest stage
  int64_t fullest_stage = 0, busiest_stage = 0;
  StageBytes fullest;
  double states_bytes = 0;  // largest over stages, without activations
  double pipeline_seconds =
      0;  // of `seconds`: until the last rank has done its last action, if nothing else held it up
  bool is_coarse = false;  // see Estimator::estimate()
  double at_least = 0;     // what `seconds` would not go below if they were not coarse
  // The exact costs of an ExecutorEstimator, which all of the above sums up; else null.
  std::shared_ptr<const ExactEstimate> exact = nullptr;
};

// A step's tasks, and what each of them costs.
struct PricedStep {
  schedule::StepGraph step;
  Prices prices;
};

// One micro-batch, forward and backward, exchanges included: what a split of the layers should
// balance.
struct PassSeconds {
  std::vector<double> layers;
  double embedding = 0, head = 0;  // head: with the modules of multi-token prediction
};

// A stage's bytes at its peak, and its seconds of one micro-batch, forward and backward (without
// reductions).
struct StageLoad {
  double bytes = 0, seconds = 0;
};

// Steps under a load that is not balanced, and by what of them a strategy is judged.
struct LoadSamples {
  LoadDistribution load;
  Statistic statistic = Statistic::kMean;
  int64_t num_samples = 16;
  uint64_t seed = 0;
  // The samples are the steps of one run, and experts move between them.
  balance::RebalancePolicy rebalance;
};

// Seconds and bytes of a step under every sample.
struct SampledEstimate {
  std::vector<double> seconds, peak_bytes;
};

// Estimates strategies for one model, cluster, precision and sequence length, and keeps what they
// have in common. Not thread-safe. All that it is made from outlives it.
//
// Strategies are free of contradictions, have the estimator's sequence and precision, at most as
// many ranks as the cluster has devices, and are executable where costs are exact. `imbalance`:
// rows of the busiest expert rank over the mean.
class Estimator {
 public:
  virtual ~Estimator() = default;

  // For a strategy beyond one of these two limits the result may be a lower bound: it `is_coarse`
  // then, and its seconds are at least that.
  virtual Estimate estimate(const strategy::Strategy& strategy, double imbalance = 1,
                            double give_up_above_seconds = std::numeric_limits<double>::infinity(),
                            double most_bytes = std::numeric_limits<double>::infinity()) = 0;
  // The bytes of estimate() and the stage that they are of, and nothing else: a fraction of its
  // work. Above `most_bytes` those of a stage that needs more than that, and perhaps not the most.
  virtual Estimate bytes(const strategy::Strategy& strategy, double imbalance = 1,
                         double most_bytes = std::numeric_limits<double>::infinity()) = 0;
  // The seconds of estimate() alone, where bytes take longer than they.
  virtual double seconds(const strategy::Strategy& strategy, double imbalance = 1) {
    return estimate(strategy, imbalance).seconds;
  }
  // In closed form, a step for each load; loads are drawn for the strategy's ep.
  virtual SampledEstimate sampled(const strategy::Strategy& strategy,
                                  const std::vector<ExpertLoad>& loads) const = 0;

  // Lower bounds in seconds by which a search leaves strategies out; 0 where nothing is known. They
  // hold for every strategy with this micro-batch, mesh and sequence parallelism, whatever its
  // schedule, split, recomputation, ZeRO and offload;
  virtual double bound(const strategy::Strategy&, double /*imbalance*/) { return 0; }
  // with this schedule, split and recomputation, whatever ZeRO, offload and placement;
  virtual double bound_of_split(const strategy::Strategy&, double /*imbalance*/) { return 0; }
  // with this schedule and recomputation, whatever the split besides.
  virtual double bound_of_schedule(const strategy::Strategy&, double /*imbalance*/) { return 0; }
  // Lower bounds of this strategy alone, in bytes, and in seconds whenever its sums of gradients
  // start, for less work than bytes() and estimate(); 0 where nothing is known.
  virtual double least_bytes(const strategy::Strategy&, double /*imbalance*/) { return 0; }
  virtual double least_seconds(const strategy::Strategy&, double /*imbalance*/) { return 0; }
  // About how many seconds a good strategy of a bound()'s kind takes, no lower bound: shapes with
  // less of it are searched first.
  virtual double likely_seconds(const strategy::Strategy& strategy, double imbalance) {
    return bound(strategy, imbalance);
  }

  // layers_per_stage is not read.
  virtual PassSeconds pass_seconds(const strategy::Strategy& strategy, double imbalance = 1) = 0;
  // By which stages choose their own recomputation; empty where they do not.
  virtual std::vector<StageLoad> stage_loads(const strategy::Strategy&, double /*imbalance*/) {
    return {};
  }

  // The step as tasks: what is simulated, and what the closed form is held to. `ranks`: only
  // these (all when empty), as schedule::write_step. Rank i sits on device i.
  virtual PricedStep priced_step(const strategy::Strategy& strategy,
                                 const std::vector<Rank>& ranks = {}, double imbalance = 1) = 0;
  // How its trainer executes that step.
  virtual schedule::ExecutionStyle style() const = 0;

  // The measured curves that these prices leaned on beyond their measured points.
  virtual std::vector<cluster::Outside> outside_measured(
      const std::vector<strategy::Strategy>& strategies, double imbalance) const = 0;

  virtual bool is_exact() const = 0;
  virtual const model::Model& model() const = 0;
  virtual const cluster::Cluster& cluster() const = 0;
};

// Who is taken to run a strategy there where nobody is named: this Piper on a machine that it has
// measured, Megatron-LM on a GPU that is described. Empty on AMD's GPUs, where the user has to say.
std::string default_trainer(const cluster::Cluster& cluster);

// Whether what this Piper executes is priced there by its executor's own costs: for the trainer
// "piper", on a machine that it has measured (segment_time.h).
bool has_exact_costs(const cluster::Cluster& cluster, const TrainerProfile& trainer);

// `is_exact`: by this Piper's exact costs. Throws InvalidInput when the cluster has no figures for
// the precision.
std::unique_ptr<Estimator> make_estimator(const model::Model& model,
                                          const cluster::Cluster& cluster,
                                          const TrainerProfile& trainer,
                                          strategy::Precision precision, int64_t sequence,
                                          bool is_exact);

// For one strategy, whatever it is: by exact costs where there are any and this Piper executes it.
std::unique_ptr<Estimator> make_estimator_of(const strategy::Strategy& strategy,
                                             const model::Model& model,
                                             const cluster::Cluster& cluster,
                                             const TrainerProfile& trainer);

}  // namespace piper::cost
