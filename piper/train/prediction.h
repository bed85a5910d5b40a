// What is predicted for one step of a strategy on a cluster: the graph, its prices and its
// simulated timeline. The run executes the very same graph object.
#pragma once

#include <piper/cluster/cluster.h>
#include <piper/cost/prices.h>
#include <piper/graph/timeline.h>
#include <piper/model/model.h>
#include <piper/report/comparison.h>
#include <piper/schedule/step.h>
#include <piper/strategy/strategy.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace piper::train {

struct StepPrediction {
  cost::Prices prices;
  graph::Timeline timeline;
  double step_seconds = 0;
  double mfu = 0;
  double kept = 1;  // the part of all copies of tokens that a capacity keeps
};

// Writes, validates and dry-runs the step. Throws InvalidInput with the contradictions of strategy
// and model.
schedule::StepGraph checked_step(const model::Model& model, const strategy::Strategy& strategy,
                                 const schedule::ExecutionStyle& style = {});
// The same of its evaluation (schedule::write_evaluation()).
schedule::StepGraph checked_evaluation(const model::Model& model,
                                       const strategy::Strategy& strategy);

// Prices and simulates it. `load` = real expert loads, when known; `slowdown`: what compute takes,
// over what the cluster says.
StepPrediction predict(const schedule::StepGraph& step, const model::Model& model,
                       const strategy::Strategy& strategy, const cluster::Cluster& cluster,
                       const cost::ExpertLoad& load = {}, double slowdown = 1);

// FLOPs of the step (forward + backward, no recomputation; of routed experts the part `kept`) /
// (seconds x peak of all devices, or of the shared cores). NaN where the cluster has no figures for
// the precision.
double model_flops_utilization(const model::Model& model, const strategy::Strategy& strategy,
                               const cluster::Cluster& cluster, double step_seconds, double kept);

// What was measured in a run, beside a prediction: all of it in one step, that with the median
// time. Where the step was another start's, its time alone is known: no tasks and no bytes.
struct Measurement {
  int64_t step = 0, num_steps = 0;  // its number; and how many the run had
  graph::Timeline timeline;         // seconds from the start of its first task
  double step_seconds = 0;
  std::vector<int64_t> peak_bytes;   // by rank
  std::vector<int64_t> state_bytes;  // by rank: weights, gradients, optimizer as allocated
};

// The seconds of a rank, or of all ranks together when `rank` is not valid, by what they are spent
// on: segments by name, communication where nothing is computed meanwhile (it counts with its
// waiting; of several kinds at once, exchanges before point-to-point before reductions). Every
// moment counts once: what is missing to a step is idle.
std::map<std::string, double> seconds_by_component(const schedule::StepGraph& step,
                                                   const graph::Timeline& timeline,
                                                   Rank rank = Rank::none());

// Without a prediction: what was measured, and why there is none.
report::Comparison compare(const schedule::StepGraph& step, const model::Model& model,
                           const strategy::Strategy& strategy, const cluster::Cluster& cluster,
                           const std::optional<StepPrediction>& prediction,
                           const Measurement& measured);

}  // namespace piper::train
