// The estimator of any trainer, by its profile (estimator.h): time and memory of a whole step of
// any strategy in closed form. The search over every axis prices its candidates with it, and `piper
// validate` holds it to published steps.
//
//   seconds = m x busiest stage + bubble + exposed messages + exposed reductions + update
//
// A stage's forward and backward are sums over its layers (layer_price.h): compute divided by the
// trainer's efficiency on the device, plus the communication that does not hide. Bubbles as
// cost/bubble.h has them for equal stages; where they differ, the others' work takes the place of p
// - 1 means. What that does not fit is simulated action by action: the two V's, pairs of micro-
// batches, interleaved chunks of unequal layers or whose states travel with every micro-batch, and
// activations that go to the host and back, with their copies. Held to whole steps that are
// simulated (priced_step.h): 0.4 % in the mean over every axis, docs/validation.md.
//
// Reductions and update of a step are those of its fullest stage. Memory of every stage: state by
// ZeRO stage, kept activations times the micro-batches in flight, what the head or a layer's
// backward needs for the moment.
#pragma once

#include <piper/cluster/cluster.h>
#include <piper/cost/chunks_held.h>
#include <piper/cost/estimator.h>
#include <piper/cost/pipeline_simulator.h>
#include <piper/cost/trainer/layer_price.h>
#include <piper/cost/trainer/rates.h>
#include <piper/cost/trainer/step_parts.h>
#include <piper/cost/trainer/trainer_profile.h>
#include <piper/model/model.h>
#include <piper/schedule/action.h>
#include <piper/strategy/strategy.h>

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <vector>

namespace piper::cost {

struct StageOverlap;

// Prices strategies of one model on one cluster under one trainer; keeps what they have in common.
// Not thread-safe. Model, cluster and trainer outlive it.
class TrainerEstimator : public Estimator {
 public:
  // Throws InvalidInput when the cluster has no figures for the precision.
  TrainerEstimator(const model::Model& model, const cluster::Cluster& cluster,
                   const TrainerProfile& trainer, strategy::Precision precision, int64_t sequence);
  ~TrainerEstimator() override;

  // Requires contradictions(strategy, model) to be empty and this TrainerEstimator's sequence and
  // precision. `imbalance`: rows of the busiest expert rank over the mean. What no formula fits
  // (above) is simulated (cost/pipeline_simulator.h), some microseconds, unless what it takes at
  // least is beyond `give_up_above_seconds`, or its memory beyond `most_bytes`: a formula's bubble
  // will do then, `is_coarse`, and `seconds` are at least that.
  Estimate estimate(const strategy::Strategy& strategy, double imbalance = 1,
                    double give_up_above_seconds = std::numeric_limits<double>::infinity(),
                    double most_bytes = std::numeric_limits<double>::infinity()) override;
  Estimate bytes(const strategy::Strategy& strategy, double imbalance = 1) override;
  SampledEstimate sampled(const strategy::Strategy& strategy,
                          const std::vector<ExpertLoad>& loads) const override;
  // Compute efficiency that estimates take (default: the trainer's calibration for the device).
  void set_compute_efficiency(double efficiency);

  // The same step with its pipeline simulated action by action (cost/pipeline_simulator.h) whatever
  // its schedule: what tests hold the closed form of the bubble to.
  double simulated_seconds(const strategy::Strategy& strategy, double imbalance = 1);

  // What the step is made of. Requires what estimate() requires; valid as long as this.
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

  const Rates& rates() const { return rates_; }
  const TrainerProfile& trainer() const { return trainer_; }
  const model::Model& model() const override { return model_; }
  const cluster::Cluster& cluster() const override { return cluster_; }
  // Throws InvalidInput where a trainer's profile has no price of what the strategy does.
  void require_priced(const strategy::Strategy& strategy) const;

 private:
  struct Prices;  // of one shape: layers by type, ends
  struct StageSums;
  class OverlapWalk;
  struct ChunkBytes;
  struct Sums;
  struct Busy;
  const Prices& prices(const strategy::Strategy& strategy, double imbalance);
  void sum_stage(const strategy::Strategy& s, const Prices& prices, int64_t stage, StageSums& sums);
  void sum_chunk(const strategy::Strategy& s, const Prices& prices, strategy::Recompute recompute,
                 int64_t chunk, StageSums& sums);
  void fill_pairs(Prices& prices) const;
  // Of a stage's list of actions.
  struct ListFacts {
    double paired = 0;          // part of the forwards that run with a backward
    std::vector<double> whole;  // part of each chunk's backwards that are not split
    // When activations are offloaded (schedule/host_copies.h): micro-batches of each chunk that go
    // to the host, and how many of the rank's layers are on the device at once.
    std::vector<int64_t> copied;
    double held = 0;
  };
  const std::vector<ListFacts>& facts(const strategy::Strategy& s, int64_t num_micro_batches);
  const std::vector<ListFacts>& facts(const strategy::Strategy& s) {
    return facts(s, s.num_micro_batches);
  }
  ChunkPart chunk_part(const strategy::Strategy& s, const Prices& prices, int64_t stage,
                       int64_t chunk);
  Busy busy_of(const strategy::Strategy& s, const StageSums& sums) const;
  bool copies_activations(const strategy::Strategy& s);
  const std::vector<StageSums>& stage_sums(const strategy::Strategy& s, const Prices& prices);
  const std::vector<StageSums>& chunk_sums(const strategy::Strategy& s, const Prices& prices);
  // What a pipeline adds to `e`, which has everything else: bubble, copies of activations, exposed
  // traffic of states.
  struct Pipeline {
    const std::vector<StageOverlap>& states;
    double in_turn = 0;        // of the busiest rank: its micro-batches, one after the other
    double with_states = 0;    // of that, because states travel with every micro-batch
    double last_backward = 0;  // of a chunk
    double bubble = 0;         // by formula
  };
  void add_pipeline(const strategy::Strategy& s, const Prices& prices, const Pipeline& pipeline,
                    double give_up_above_seconds, double most_bytes, Estimate& e);
  // The three of a strategy's pipeline, one after the other: chunks_; what it takes at least; when
  // each rank has done its last action, in finishes_ (returns the latest).
  void fill_chunks(const strategy::Strategy& s, const Prices& prices,
                   const std::vector<StageOverlap>& states);
  double least_finish(const strategy::Strategy& s, bool copies);
  double pipeline_finish(const strategy::Strategy& s, bool copies);
  std::span<const RankSeconds> simulate_pipeline(const strategy::Strategy& s, int64_t simulated,
                                                 bool copies);
  // Whether ranks wait for messages in every round.
  static bool awaits_messages(const strategy::Strategy& s);
  // Whether what is computed again stays until a weights' part of its own.
  static bool keeps_recomputed(const strategy::Strategy& s) {
    return strategy::splits_backward(s.schedule) &&
           (s.recompute != strategy::Recompute::kNone || !s.recompute_per_stage.empty());
  }
  static bool chunks_differ(const strategy::Strategy& s);
  double pace(const strategy::Strategy& s, int64_t simulated, bool copies);
  static double bubble_of(const strategy::Strategy& s, const std::vector<Busy>& stages,
                          size_t busiest, double message);
  Estimate bytes_of(const strategy::Strategy& s, const std::vector<StageSums>& sums);
  StageBytes stage_bytes(const strategy::Strategy& s, const StageSums& sums, int64_t stage);
  // Activations on the device when the stage holds the most. `sums`: of the last call of
  // stage_sums().
  double activation_bytes(const strategy::Strategy& s, const StageSums& sums, int64_t stage);
  const std::vector<std::vector<ChunksHeld>>& held(const strategy::Strategy& s);  // by rank
  StateTraffic state_traffic(const strategy::Strategy& s, const StageSums& sums) const;
  double updated_parameters(const strategy::Strategy& s, const StageSums& sums) const;
  double update_seconds(const strategy::Strategy& s, const StageSums& sums) const;
  double optimizer_copy_seconds(const strategy::Strategy& s, double parameters) const;
  CommTime message(const strategy::Strategy& s, const Prices& prices) const;
  LevelUtilization state_needs(const strategy::Strategy& s, const StateTraffic& traffic) const;
  StageOverlap stage_overlap(const strategy::Strategy& s, const Prices& prices,
                             const StageSums& sums, int64_t stage);
  bool awaits_weights(const strategy::Strategy& s, const StageSums& sums, int64_t stage,
                      const StageOverlap& like) const;
  const std::vector<StageOverlap>& overlaps(const strategy::Strategy& s, const Prices& prices,
                                            const std::vector<StageSums>& sums);
  // `earlier`: by stage, how long before the last one it has done its last action.
  static double shown_states(const strategy::Strategy& s, const std::vector<StageOverlap>& stages,
                             const std::vector<double>& earlier);

  const model::Model& model_;
  const cluster::Cluster& cluster_;
  const TrainerProfile& trainer_;
  strategy::Precision precision_;
  int64_t sequence_;
  Rates rates_;
  double efficiency_;
  std::vector<size_t> type_;                              // of each layer
  std::vector<int64_t> representative_, layers_of_type_;  // of each type
  bool has_shared_ = false;                               // experts, in some layer
  using Key =
      std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, bool, bool, strategy::MoeSchedule,
                 int64_t, double, double, strategy::AllToAll, int64_t>;
  std::map<Key, std::unique_ptr<Prices>> known_;
  const Prices* last_ = nullptr;
  Key last_key_{};
  // What a stage does from the first action on that completes a chunk's gradients.
  struct TailAction {
    schedule::Action action;
    bool completes = false;  // its chunk's gradients
  };
  using Tail = std::vector<TailAction>;
  const Tail& tail(const strategy::Strategy& s, int64_t stage);
  using ListKey = std::tuple<strategy::PipelineSchedule, int64_t, int64_t, int64_t>;
  std::map<ListKey, std::vector<ListFacts>> facts_;
  ListKey last_facts_key_{};
  const std::vector<ListFacts>* last_facts_ = nullptr;
  using HeldKey = std::tuple<ListKey, bool, bool>;  // pairs_take_turns(), keeps_recomputed()
  std::map<HeldKey, std::vector<std::vector<ChunksHeld>>> held_;
  HeldKey last_held_key_{};
  const std::vector<std::vector<ChunksHeld>>* last_held_ = nullptr;
  std::map<ListKey, std::vector<Tail>> tails_;
  PipelineSimulators simulators_;
  std::vector<ChunkSeconds> chunks_;
  std::vector<double> finishes_, earlier_;  // by stage
  std::unique_ptr<Sums> sums_;              // of the last strategy's stages
  std::unique_ptr<std::vector<Busy>> busy_;
};

}  // namespace piper::cost
