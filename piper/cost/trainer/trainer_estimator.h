// The estimator of any trainer, by its profile (estimator.h): time and memory of a whole step of
// any strategy in closed form. The search over every axis prices its candidates with it, and `piper
// validate` holds it to published steps.
//
//   seconds = m x busiest stage + bubble + exposed messages + exposed reductions + update
//
//   shape_prices.h    each kind of layer and the ends, of one micro-batch: compute divided by the
//                     trainer's efficiency on the device, and the communication that does not hide
//   stage_sums.h      these added up over what a rank of the pipeline holds
//   stage_memory.h    bytes of every stage, of which the fullest counts
//   state_traffic.h   reductions, gathers and update of the states
//   stage_overlap.h   how long they hold up a stage beside its compute
//   pipeline_time.h   bubbles, by formula or simulated action by action
//   step_parts.h      all of it before anything waits, for a simulation of the whole step
//
// Held to whole steps that are simulated (priced_step.h): 0.4 % in the mean over every axis,
// docs/validation.md.
#pragma once

#include <piper/cluster/cluster.h>
#include <piper/cost/estimator.h>
#include <piper/cost/trainer/pipeline_time.h>
#include <piper/cost/trainer/rates.h>
#include <piper/cost/trainer/schedule_facts.h>
#include <piper/cost/trainer/shape_prices.h>
#include <piper/cost/trainer/stage_overlap.h>
#include <piper/cost/trainer/stage_sums.h>
#include <piper/cost/trainer/step_parts.h>
#include <piper/cost/trainer/trainer_context.h>
#include <piper/cost/trainer/trainer_profile.h>
#include <piper/model/model.h>
#include <piper/strategy/strategy.h>

#include <cstdint>
#include <limits>
#include <vector>

namespace piper::cost {

// Prices strategies of one model on one cluster under one trainer; keeps what they have in common.
// Not thread-safe. Model, cluster and trainer outlive it.
class TrainerEstimator : public Estimator {
 public:
  // Throws InvalidInput when the cluster has no figures for the precision.
  TrainerEstimator(const model::Model& model, const cluster::Cluster& cluster,
                   const TrainerProfile& trainer, strategy::Precision precision, int64_t sequence);
  TrainerEstimator(const TrainerEstimator&) = delete;
  TrainerEstimator& operator=(const TrainerEstimator&) = delete;

  // Requires contradictions(strategy, model) to be empty and this TrainerEstimator's sequence and
  // precision. `imbalance`: rows of the busiest expert rank over the mean. What no formula fits
  // (pipeline_time.h) is simulated, some microseconds, unless what it takes at least is beyond
  // `give_up_above_seconds`, or its memory beyond `most_bytes`: a formula's bubble will do then,
  // `is_coarse`, and `seconds` are at least that.
  Estimate estimate(const strategy::Strategy& strategy, double imbalance = 1,
                    double give_up_above_seconds = std::numeric_limits<double>::infinity(),
                    double most_bytes = std::numeric_limits<double>::infinity()) override;
  Estimate bytes(const strategy::Strategy& strategy, double imbalance = 1,
                 double most_bytes = std::numeric_limits<double>::infinity()) override;
  SampledEstimate sampled(const strategy::Strategy& strategy,
                          const std::vector<ExpertLoad>& loads) const override;
  // Compute efficiency that estimates take (default: the trainer's calibration for the device).
  void set_compute_efficiency(double efficiency);

  // The same step with its pipeline simulated action by action (cost/pipeline_simulator.h) whatever
  // its schedule: what tests hold the closed form of the bubble to.
  double simulated_seconds(const strategy::Strategy& strategy, double imbalance = 1);

  // What the step is made of. Requires what estimate() requires; valid until
  // set_compute_efficiency().
  StepParts parts(const strategy::Strategy& strategy, double imbalance = 1);

  // m x mean work of a stage, exchanges left out (schedules that pair micro-batches hide them).
  double bound(const strategy::Strategy& strategy, double imbalance = 1) override;
  // m x the busiest stage.
  double bound_of_split(const strategy::Strategy& strategy, double imbalance = 1) override;
  // m x the mean stage, all that pairs could hide hidden.
  double bound_of_schedule(const strategy::Strategy& strategy, double imbalance = 1) override;
  PassSeconds pass_seconds(const strategy::Strategy& strategy, double imbalance = 1) override;
  std::vector<StageLoad> stage_loads(const strategy::Strategy& strategy,
                                     double imbalance = 1) override;

  // write_priced_step(): the step in this trainer's style.
  PricedStep priced_step(const strategy::Strategy& strategy, const std::vector<Rank>& ranks = {},
                         double imbalance = 1) override;
  schedule::ExecutionStyle style() const override;
  std::vector<cluster::Outside> outside_measured(const std::vector<strategy::Strategy>& strategies,
                                                 double imbalance) const override;
  bool is_exact() const override { return false; }

  const Rates& rates() const { return context_.rates; }
  const TrainerProfile& trainer() const { return context_.trainer; }
  const model::Model& model() const override { return context_.model; }
  const cluster::Cluster& cluster() const override { return context_.cluster; }

 private:
  // Calibrated seconds of one stage for one micro-batch, without what states add.
  BusySeconds busy_of(const strategy::Strategy& s, const StageSums& sums, int64_t stage);
  Estimate bytes_of(const strategy::Strategy& s, const StrategySums& sums);
  // Seconds for which the busiest link between stages is occupied, in its best placement.
  double least_link(strategy::Strategy s, double imbalance);
  // Seconds of a step that waits for messages beside a pipeline of so many.
  double message_waits(const strategy::Strategy& s, const StageMessages& messages,
                       double pipeline_seconds) const;

  TrainerContext context_;
  ShapePricer shapes_;
  ScheduleFacts schedules_;
  SumsOfStages sums_;
  StageOverlaps overlaps_;
  PipelineTime pipeline_;
  std::vector<BusySeconds> busy_;  // by stage
};

}  // namespace piper::cost
