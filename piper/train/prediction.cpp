#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/cost/mfu.h>
#include <piper/cost/segment_time.h>
#include <piper/cost/step_time.h>
#include <piper/sim/disturbance.h>
#include <piper/strategy/mesh.h>
#include <piper/train/prediction.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

namespace piper::train {
namespace {

using schedule::SegmentKind;

// Under what name a task's time is compared; communication includes waiting for the others.
std::string component(const schedule::StepGraph& step, const graph::Task& task) {
  switch (task.kind) {
    case graph::TaskKind::kCompute:
      return schedule::name(step.segment(task).kind);
    case graph::TaskKind::kSend:
    case graph::TaskKind::kReceive:
      return "point-to-point (with waiting)";
    case graph::TaskKind::kExchangeCounts:
    case graph::TaskKind::kAllToAll:
      return "exchange (with waiting)";
    case graph::TaskKind::kAllReduce:
    case graph::TaskKind::kCollective:
    case graph::TaskKind::kStateCollective:
    case graph::TaskKind::kHostCopy:
      return "reduction (with waiting)";
  }
  return "";
}

}  // namespace

std::map<std::string, double> seconds_by_component(const schedule::StepGraph& step,
                                                   const graph::Timeline& timeline, Rank rank) {
  std::map<std::string, double> seconds;
  for (const graph::Task& task : step.graph.tasks()) {
    if (rank != Rank::none() && task.rank != rank) continue;
    const graph::Interval& interval = timeline.tasks[task.id.index()];
    if (interval.played())
      seconds[component(step, task)] += interval.end_seconds - interval.start_seconds;
  }
  return seconds;
}

namespace {

// Over all mixture layers, each weighted by its copies of tokens.
double mean_kept(const model::Model& model, const cost::ExpertLoad& load) {
  double chosen = 0, kept = 0;
  for (size_t i = 0; i < model.layers.size(); ++i) {
    if (!model.layers[i].feed_forward.is_moe()) continue;
    const auto copies = static_cast<double>(model.layers[i].feed_forward.top_k);
    chosen += copies;
    kept += copies * load.kept[i];
  }
  return chosen > 0 ? kept / chosen : 1;
}

}  // namespace

schedule::StepGraph checked_step(const model::Model& model, const strategy::Strategy& strategy) {
  if (const auto problems = strategy::contradictions(strategy, model); !problems.empty())
    throw InvalidInput(problems);
  schedule::StepGraph step = schedule::write_step(model, strategy);
  const std::vector<std::string> problems = graph::validate(step.graph);
  PIPER_CHECK(problems.empty(), problems.empty() ? "" : problems.front());
  const std::string deadlock = graph::find_deadlock(step.graph);
  PIPER_CHECK(deadlock.empty(), deadlock);
  return step;
}

double model_flops_utilization(const model::Model& model, const strategy::Strategy& strategy,
                               const cluster::Cluster& cluster, double step_seconds, double kept) {
  if (!cost::unpriced(cluster, strategy.precision).empty())
    return std::numeric_limits<double>::quiet_NaN();
  const double peak =
      cost::peak_flops_per_second(cluster, strategy.precision, strategy.mesh.world());
  if (peak <= 0 || step_seconds <= 0) return 0;
  return cost::step_flops(model, strategy.sequence, strategy.global_batch_sequences, kept) /
         (step_seconds * peak);
}

Prediction predict(const schedule::StepGraph& step, const model::Model& model,
                   const strategy::Strategy& strategy, const cluster::Cluster& cluster,
                   const cost::ExpertLoad& load, double slowdown) {
  Prediction prediction;
  prediction.prices = cost::price(step, model, strategy, cluster, load);
  for (const graph::Task& task : step.graph.tasks())
    if (task.kind == graph::TaskKind::kCompute)
      prediction.prices.seconds[task.id.index()] *= slowdown;
  prediction.timeline = sim::play_scattered(step, prediction.prices, cost::scatter(cluster));
  prediction.step_seconds = prediction.timeline.seconds();
  prediction.kept = load.kept.empty() ? cost::kept_part(model, strategy) : mean_kept(model, load);
  prediction.mfu =
      model_flops_utilization(model, strategy, cluster, prediction.step_seconds, prediction.kept);
  return prediction;
}

namespace {

// Every component and rank with what was measured of it alone.
report::Comparison measured_alone(const schedule::StepGraph& step,
                                  const strategy::Strategy& strategy,
                                  const cluster::Cluster& cluster, const Measurement& measured) {
  report::Comparison comparison;
  comparison.measured_step_seconds = measured.step_seconds;
  const auto world = static_cast<double>(strategy.mesh.world());
  for (const auto& [name, seconds] : seconds_by_component(step, measured.timeline))
    comparison.time_components.push_back({name, std::nullopt, seconds / world});
  for (int64_t r = 0; r < strategy.mesh.world(); ++r) {
    const auto i = static_cast<size_t>(r);
    report::RankComparison rank;
    rank.rank = r;
    rank.stage = strategy::coordinates(strategy.mesh, Rank(r)).pp;
    rank.measured_peak_bytes = measured.peak_bytes[i];
    rank.limit_bytes = cluster.memory_bytes;
    rank.measured_components = {{"weights, gradients, optimizer", measured.state_bytes[i]},
                                {"activations", measured.peak_bytes[i] - measured.state_bytes[i]}};
    comparison.ranks.push_back(std::move(rank));
  }
  return comparison;
}

void add_seconds(const std::map<std::string, double>& predicted, double world,
                 report::Comparison& comparison) {
  for (const auto& [name, seconds] : predicted) {
    auto found = std::ranges::lower_bound(comparison.time_components, name, {},
                                          &report::TimeComponent::name);
    if (found == comparison.time_components.end() || found->name != name)
      found = comparison.time_components.insert(found, {name, std::nullopt, std::nullopt});
    found->predicted_seconds = seconds / world;
  }
}

}  // namespace

report::Comparison compare(const schedule::StepGraph& step, const model::Model& model,
                           const strategy::Strategy& strategy, const cluster::Cluster& cluster,
                           const std::optional<Prediction>& prediction,
                           const Measurement& measured) {
  report::Comparison comparison = measured_alone(step, strategy, cluster, measured);
  if (!prediction) {
    comparison.no_prediction = cost::unpriced(cluster, strategy.precision);
    return comparison;
  }
  comparison.predicted_step_seconds = prediction->step_seconds;
  comparison.predicted_mfu = prediction->mfu;
  comparison.measured_mfu =
      model_flops_utilization(model, strategy, cluster, measured.step_seconds, prediction->kept);
  add_seconds(seconds_by_component(step, prediction->timeline),
              static_cast<double>(strategy.mesh.world()), comparison);
  cost::Estimator estimator(model, cluster, strategy.precision, strategy.sequence);
  const std::vector<cost::StageMemory> stages = estimator.memory(strategy);
  for (report::RankComparison& rank : comparison.ranks) {
    const int64_t peak = prediction->timeline.peak_bytes[static_cast<size_t>(rank.rank)];
    const cost::StageMemory& stage = stages[static_cast<size_t>(*rank.stage)];
    rank.predicted_peak_bytes = peak;
    rank.predicted_components = {{"weights", stage.weights},
                                 {"gradients", stage.gradients},
                                 {"optimizer", stage.optimizer},
                                 {"activations", peak - stage.state()}};
  }
  return comparison;
}

cost::ExpertLoad load_of(const model::Model& model, const strategy::Strategy& strategy,
                         const std::map<int32_t, std::vector<int64_t>>& expert_rows) {
  cost::ExpertLoad load;
  load.share.resize(model.layers.size());
  if (strategy.capacity.is_limited()) load.kept.assign(model.layers.size(), 1.0);
  for (const auto& [layer, rows] : expert_rows) {
    const auto total = static_cast<double>(std::accumulate(rows.begin(), rows.end(), int64_t{0}));
    if (total <= 0) continue;
    for (const int64_t count : rows)
      load.share[static_cast<size_t>(layer)].push_back(static_cast<double>(count) / total);
    const int64_t top_k = model.layers[static_cast<size_t>(layer)].feed_forward.top_k;
    if (strategy.capacity.is_limited())
      load.kept[static_cast<size_t>(layer)] =
          total / static_cast<double>(strategy.global_batch_sequences *
                                      model.positions(layer, strategy.sequence) * top_k);
  }
  return load;
}

}  // namespace piper::train
