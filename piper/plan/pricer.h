// What a search prices strategies with: one price for one strategy, whichever command asks for it.
//
//   as a trainer runs it    stack::Estimator, every axis, on described machines (GPU clusters)
//   as this Piper runs it   cost::Estimator, the executor's own costs and exact bytes of what it
//                           executes, on machines that `piper profile` measured (CPU clusters)
//
// make_pricer() is the one place that chooses between the two.
#pragma once

#include <piper/cluster/cluster.h>
#include <piper/cost/load_distribution.h>
#include <piper/model/model.h>
#include <piper/stack/estimator.h>
#include <piper/stack/stack.h>
#include <piper/strategy/strategy.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

namespace piper::plan {

// Whether a strategy of this Piper is priced there by its executor's own costs.
bool has_exact_costs(const cluster::Cluster& cluster, const stack::Stack& stack);

struct LoadSamples {
  cost::LoadDistribution load;
  cost::Statistic statistic = cost::Statistic::kP95;
  int64_t num_samples = 16;
  uint64_t seed = 0;
};

// Seconds and bytes of a step under every sample.
struct SampledEstimate {
  std::vector<double> seconds, peak_bytes;
};

// Of one model, cluster, stack, precision and sequence length. Keeps what strategies have in
// common. Not thread-safe. All that it is made from outlives it.
//
// Strategies are free of contradictions, have the pricer's sequence and precision, at most as many
// ranks as the cluster has devices, and are executable where costs are exact. `imbalance`: rows of
// the busiest expert rank over the mean.
class Pricer {
 public:
  virtual ~Pricer() = default;

  // As stack::Estimator::estimate(): with what is beyond `worth_below` seconds or `most_bytes` a
  // pricer need not take pains.
  virtual stack::Estimate estimate(const strategy::Strategy& strategy, double imbalance = 1,
                                   double worth_below = std::numeric_limits<double>::infinity(),
                                   double most_bytes = std::numeric_limits<double>::infinity()) = 0;
  // The bytes of estimate(), and whose they are.
  virtual stack::Estimate bytes(const strategy::Strategy& strategy, double imbalance = 1) = 0;

  // What no strategy goes below (stack::Estimator's of the same names); 0 where nothing is known.
  virtual double bound(const strategy::Strategy&, double) { return 0; }
  virtual double bound_of_split(const strategy::Strategy&, double) { return 0; }
  virtual double bound_of_schedule(const strategy::Strategy&, double) { return 0; }
  virtual cost::PassSeconds pass_seconds(const strategy::Strategy& strategy, double imbalance) = 0;
  // By which stages choose their own recomputation; empty where they do not.
  virtual std::vector<stack::Estimator::StageLoad> stage_loads(const strategy::Strategy&, double) {
    return {};
  }

  // Whether a whole step is little enough work to play in virtual time, and its seconds.
  virtual bool may_play(const strategy::Strategy& strategy) const = 0;
  virtual double played_seconds(const strategy::Strategy& strategy, double imbalance) = 0;
  // In closed form. `imbalances`: of the same samples at the strategy's ep.
  virtual SampledEstimate sampled(const strategy::Strategy& strategy, const LoadSamples& samples,
                                  const std::vector<double>& imbalances) = 0;
  // The measured curves that these prices leaned on beyond their measured points.
  virtual std::vector<cluster::Outside> outside_measured(
      const std::vector<strategy::Strategy>& strategies, double imbalance) const = 0;
};

// Throws InvalidInput when the cluster has no figures for the precision.
std::unique_ptr<Pricer> make_pricer(const model::Model& model, const cluster::Cluster& cluster,
                                    const stack::Stack& stack, strategy::Precision precision,
                                    int64_t sequence);

// For one strategy, whatever it is: by exact costs where there are any and this Piper executes it.
std::unique_ptr<Pricer> make_pricer_of(const strategy::Strategy& strategy,
                                       const model::Model& model, const cluster::Cluster& cluster,
                                       const stack::Stack& stack);

// The exact costs, in the record of every price; `exact` is what they came from.
stack::Estimate to_estimate(const cost::StepEstimate& exact);

}  // namespace piper::plan
