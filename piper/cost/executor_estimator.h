// The estimator of what this Piper executes (estimator.h): time and memory of a whole step with the
// executor's own costs, from a strategy alone, without writing its graph. Tests hold it to the
// simulation.
//
// Exclusive devices: every stage's forward and backward from layer_cost.h (exchanges are waited
// for, but for what shared experts and recomputation hide), the pipeline's recurrence, the gradient
// reductions that slow the last backward and outlast it (gradient_reduction_overlap.h), norm,
// statistics and update. Within 2 % of the simulation on a balanced load, 2 % on an uneven one too
// (of which the slowest rank of a group decides: layer_cost.h).
//
// Ranks that share cores (cluster.cores_per_node > 0): an expert group computes in ceil(ep / cores)
// rounds, and the step takes not less than
//
//   compute of the node / cores + (ways - 1) / 2 x (F + B),
//   ways = stages that the cores can run at once,
//
// the second part being the cores that idle while the pipeline fills and drains. With several
// chunks a rank, divided backwards or pairs of micro-batches the pipeline is simulated
// (pipeline_simulator.h), and in the place of (ways - 1) / 2 x (F + B) stands what it idles, times
// (ways - 1) / (2 pp - 2). Within 15 % of the simulation, 25 % where the cores do not divide the
// ranks evenly; small worlds should be simulated.
#pragma once

#include <piper/cost/estimator.h>
#include <piper/cost/gradient_reduction_overlap.h>
#include <piper/cost/layer_cost.h>
#include <piper/cost/memory.h>
#include <piper/cost/pipeline_simulator.h>
#include <piper/cost/rank_parameters.h>

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace piper::cost {

// Seconds of the busiest stage, by what they are spent on; they add up to the step.
struct StepBreakdown {
  double forward = 0;     // compute
  double backward = 0;    // compute
  double recompute = 0;   // compute
  double exchange = 0;    // waiting for dispatch and combine
  double reductions = 0;  // gradient reductions: what outlasts the backward or slows it
  double update = 0;      // norm, statistics, optimizer
  double offload = 0;     // what the update waits for its states, which live with the host
  double idle = 0;        // pipeline bubble, messages between stages, cores taken by other ranks
  double total() const {
    return forward + backward + recompute + exchange + reductions + update + offload + idle;
  }
};

struct ExactEstimate {
  double seconds = 0;
  StepBreakdown time;
  double bubble = 0;                // idle / seconds
  std::vector<StageMemory> memory;  // by stage
  int64_t peak_bytes = 0;           // of the fullest stage
  int64_t fullest_stage = 0, busiest_stage = 0;

  // peak_bytes and fullest_stage from `memory`.
  void find_fullest();
};

// `cluster`, with a speed for the precision where it has none: enough for
// ExecutorEstimator::memory(), whose bytes depend on no speed.
cluster::Cluster with_some_speed(cluster::Cluster cluster, strategy::Precision precision);

// The exact costs, in the record of every estimate; `exact` is what they came from.
Estimate to_estimate(const ExactEstimate& exact);

class ExecutorEstimator : public Estimator {
 public:
  // Throws InvalidInput when the cluster has no figures for the precision, or the load does not fit
  // the model. `load` (nullptr: balanced) is one distribution for all micro-batches; it outlives
  // this.
  ExecutorEstimator(const model::Model& model, const cluster::Cluster& cluster,
                    strategy::Precision precision, int64_t sequence,
                    const ExpertLoad* load = nullptr);
  ~ExecutorEstimator() override;

  // The costs themselves, under the load that was given.
  ExactEstimate exact(const strategy::Strategy& strategy);
  // By stage; where one needs more than `most_bytes`, others may be left empty.
  std::vector<StageMemory> memory(const strategy::Strategy& strategy,
                                  double most_bytes = std::numeric_limits<double>::infinity());

  // An imbalance stands for a step in which one rank of every expert group has so many rows more.
  Estimate estimate(const strategy::Strategy& strategy, double imbalance = 1,
                    double give_up_above_seconds = std::numeric_limits<double>::infinity(),
                    double most_bytes = std::numeric_limits<double>::infinity()) override;
  Estimate bytes(const strategy::Strategy& strategy, double imbalance = 1,
                 double most_bytes = std::numeric_limits<double>::infinity()) override;
  double seconds(const strategy::Strategy& strategy, double imbalance = 1) override;
  double bound_of_split(const strategy::Strategy& strategy, double imbalance) override;
  double least_bytes(const strategy::Strategy& strategy, double imbalance) override;
  double least_seconds(const strategy::Strategy& strategy, double imbalance) override;
  double likely_seconds(const strategy::Strategy& strategy, double imbalance) override;
  SampledEstimate sampled(const strategy::Strategy& strategy,
                          const std::vector<ExpertLoad>& loads) const override;
  PassSeconds pass_seconds(const strategy::Strategy& strategy, double imbalance = 1) override;
  PricedStep priced_step(const strategy::Strategy& strategy, const std::vector<Rank>& ranks = {},
                         double imbalance = 1) override;
  schedule::ExecutionStyle style() const override { return {}; }
  std::vector<cluster::Outside> outside_measured(const std::vector<strategy::Strategy>& strategies,
                                                 double imbalance) const override;
  bool is_exact() const override { return true; }
  const model::Model& model() const override { return model_; }
  const cluster::Cluster& cluster() const override { return cluster_; }

 private:
  // A virtual stage, or the sum of those of a rank.
  struct Stage {
    double forward = 0, backward = 0, recompute = 0;   // compute of one micro-batch
    double backward_weights = 0;                       // part of `backward`
    double divided_compute = 0, divided_exchange = 0;  // more that a backward in two parts takes
    double pair_saves = 0, pair_ends = 0;              // see RecomputeCost
    double exchange_forward = 0, exchange_backward = 0;
    double recompute_ahead = 0;             // before the gradient has come, exchanges included
    double reductions = 0;                  // exposed
    double slowed = 0, message_slowed = 0;  // by the reductions: the last backward, what it sends
    double norm = 0, optimizer = 0;
    double gathers = 0;     // of updated weights
    double kept_bytes = 0;  // of its layers, of a micro-batch
    Stage& operator+=(const Stage& next);
  };
  struct TypeParameters {
    int64_t dense = 0, experts = 0;  // routed experts of the whole layer
  };
  // A virtual stage with its layers and ends alone; with what states add; and all, by either.
  Stage layers_of_stage(const strategy::Strategy& strategy, int64_t index, int64_t first_layer);
  Stage stage(const strategy::Strategy& strategy, int64_t index, int64_t first_layer);
  std::vector<Stage> every_stage(const strategy::Strategy& strategy,
                                 Stage (ExecutorEstimator::*stage)(const strategy::Strategy&,
                                                                   int64_t, int64_t));
  // A lower bound: the seconds of its pipeline, whatever ZeRO, offload and reductions.
  double seconds_without_states(const strategy::Strategy& strategy);
  // Without the memory.
  ExactEstimate exact_time(const strategy::Strategy& strategy);
  // Weights, gradients that are not in slots and optimizer states of the first rank of a pipeline's
  // place, which has most of them.
  StageMemory state_memory(const strategy::Strategy& strategy, int64_t pp_rank) const;
  void add_layer(const strategy::Strategy& strategy, int64_t stage_index, int32_t index,
                 Stage& stage);
  // Whether every rank has one chunk of layers, whole backwards and the same recomputation: bytes
  // by the closed form of memory.h, and reductions behind the last backwards. Else a rank is
  // walked.
  static bool has_closed_form(const strategy::Strategy& strategy);
  // Likewise, but for pairs of micro-batches, of which the last backward is none.
  static bool ends_with_whole_backwards(const strategy::Strategy& strategy);
  // Seconds by which pairs shorten one rank's step, against one micro-batch after the other.
  static double saved_by_pairs(const strategy::Strategy& strategy, int64_t pp_rank,
                               const std::vector<ChunkSeconds>& chunks);
  // Ranks of a pipeline by what is known of their bytes without a walk: a lower bound of each.
  std::vector<int64_t> fullest_first(const strategy::Strategy& strategy);
  std::vector<double> least_bytes_by_rank(const strategy::Strategy& strategy);
  // By pipeline rank; where ranks are walked, it ends at the first that needs more than
  // `most_bytes`, and the others stay empty.
  std::vector<StageMemory> find_memory(const strategy::Strategy& strategy, double most_bytes);
  StageMemory rank_memory(const strategy::Strategy& strategy, int64_t pp_rank);
  // The memory of the stage's fullest rank; and of its rank with one ep index.
  StageMemory stage_memory(const strategy::Strategy& strategy, int64_t index, int64_t first_layer);
  StageMemory stage_memory(const strategy::Strategy& strategy, int64_t index, int64_t first_layer,
                           int64_t ep_index);
  void price_update(const strategy::Strategy& strategy, int64_t index, int64_t first_layer,
                    Stage& stage);
  // Seconds from the optimizer's start, when `statistics` have been summed since the norm, until
  // the last states are back with the host.
  double update_from_host(const strategy::Strategy& strategy, int64_t pp_rank,
                          double statistics) const;
  std::vector<BackwardTurn> backward_turns(const strategy::Strategy& strategy, int64_t index,
                                           int64_t first_layer);
  // Every gradient buffer of a stage: f(axis over which it is summed, its parameters).
  template <class F>
  void for_each_buffer(const strategy::Strategy& strategy, int64_t index, int64_t first_layer,
                       F f) const;
  RankParameters parameters(const strategy::Strategy& strategy, int32_t layer) const;  // of one
  RankParameters parameters(const strategy::Strategy& strategy, int64_t index,
                            int64_t first_layer) const;
  // Seconds that sending a layer's copies of experts, or (`homeward`) their gradients, takes; 0
  // without any.
  double copied_seconds(const strategy::Strategy& strategy, int64_t index, int32_t layer,
                        bool homeward) const;
  // Those whose optimizer states the stage's first member has, which has the most.
  int64_t optimized(const strategy::Strategy& strategy, int64_t index, int64_t first_layer) const;
  // ZeRO 2: what each micro-batch's reductions add to a stage's backward, by how the last one
  // fares.
  void price_scattered(const strategy::Strategy& strategy, int64_t index, int64_t first_layer,
                       Stage& stage) const;
  // ZeRO 3: what a micro-batch waits for weights beyond what it computes meanwhile, in either
  // direction; and the first gather of a step.
  void price_gathered(const strategy::Strategy& strategy, int64_t index, int64_t first_layer,
                      Stage& stage);
  // The pipeline's seconds by virtual stage.
  std::vector<ChunkSeconds> pipeline(const strategy::Strategy& strategy,
                                     const std::vector<Stage>& chunks) const;

  static void delay_last_backwards(const std::vector<Stage>& stages,
                                   const std::vector<ChunkSeconds>& seconds,
                                   std::vector<double>& finish);

  PassSeconds exact_pass_seconds(const strategy::Strategy& strategy);
  struct Loaded;  // an estimator under a load of its own
  Loaded& loaded(int64_t ep, double imbalance);
  ExecutorEstimator& at(const strategy::Strategy& strategy, double imbalance);

  const model::Model& model_;
  const cluster::Cluster& cluster_;
  strategy::Precision precision_;
  int64_t sequence_;
  const ExpertLoad* load_;
  LayerCosts costs_;
  std::vector<TypeParameters> type_parameters_;
  int64_t embedding_parameters_ = 0, head_parameters_ = 0, tied_parameters_ = 0;
  double norm_per_parameter_ = 0, optimizer_per_parameter_ = 0, keep_per_parameter_ = 0;
  PipelineSimulators simulators_;
  // What memory() was last asked, without what changes no bytes.
  struct KnownMemory {
    strategy::Strategy of;
    std::vector<StageMemory> stages;
    bool is_whole;  // else up to one that needed more than was asked
  };
  std::optional<KnownMemory> last_memory_;
  std::map<std::pair<int64_t, double>, std::unique_ptr<Loaded>> loaded_;  // by ep and imbalance
};

}  // namespace piper::cost
