// The pricer of what this Piper executes, with its executor's own costs (pricer.h). Not for others.
#pragma once

#include <piper/cost/step_time.h>
#include <piper/plan/pricer.h>

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

namespace piper::plan {

class ExactPricer : public Pricer {
 public:
  ExactPricer(const model::Model& model, const cluster::Cluster& cluster,
              strategy::Precision precision, int64_t sequence);

  stack::Estimate estimate(const strategy::Strategy& strategy, double imbalance, double worth_below,
                           double most_bytes) override;
  stack::Estimate bytes(const strategy::Strategy& strategy, double imbalance) override;
  cost::PassSeconds pass_seconds(const strategy::Strategy& strategy, double imbalance) override;
  // Of worlds of at most 64 ranks: one pipeline where it provably stands for all
  // (sim/symmetry.h), else every rank, with the scatter of equal tasks that was measured.
  bool may_play(const strategy::Strategy& strategy) const override;
  double played_seconds(const strategy::Strategy& strategy, double imbalance) override;
  SampledEstimate sampled(const strategy::Strategy& strategy, const LoadSamples& samples,
                          const std::vector<double>& imbalances) override;
  std::vector<cluster::Outside> outside_measured(const std::vector<strategy::Strategy>& strategies,
                                                 double imbalance) const override;

 private:
  // An imbalance stands for a step in which one rank of every expert group has so many rows more.
  struct Loaded {
    Loaded(const ExactPricer& of, cost::ExpertLoad drawn)
        : load(std::move(drawn)),
          estimator(of.model_, of.cluster_, of.precision_, of.sequence_, &load) {}
    cost::ExpertLoad load;
    cost::Estimator estimator;
  };
  Loaded& loaded(int64_t ep, double imbalance);
  cost::Estimator& estimator(const strategy::Strategy& strategy, double imbalance);

  const model::Model& model_;
  const cluster::Cluster& cluster_;
  strategy::Precision precision_;
  int64_t sequence_;
  cost::Estimator balanced_;
  std::map<std::pair<int64_t, double>, std::unique_ptr<Loaded>> loaded_;  // by ep and imbalance
};

}  // namespace piper::plan
