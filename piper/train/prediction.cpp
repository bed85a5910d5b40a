#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/cost/executor_estimator.h>
#include <piper/cost/mfu.h>
#include <piper/cost/segment_time.h>
#include <piper/sim/disturbance.h>
#include <piper/strategy/rank_layout.h>
#include <piper/train/prediction.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <numeric>
#include <tuple>

namespace piper::train {
namespace {

using schedule::SegmentKind;

// Under what name a task's time is compared.
std::string component(const schedule::StepGraph& step, const graph::Task& task) {
  switch (task.kind) {
    case graph::TaskKind::kCompute:
      return schedule::name(step.segment(task).kind);
    case graph::TaskKind::kSend:
    case graph::TaskKind::kReceive:
      return "point-to-point, exposed";
    case graph::TaskKind::kExchangeCounts:
    case graph::TaskKind::kAllToAll:
      return "exchange, exposed";
    case graph::TaskKind::kAllReduce:
    case graph::TaskKind::kAllGather:
    case graph::TaskKind::kReduceScatter:
    case graph::TaskKind::kRing:
    case graph::TaskKind::kStateCollective:
      if (schedule::gathers_choices(step.segment(task).kind)) return "exchange, exposed";
      switch (schedule::axis_of(task.kind, step.segment(task).kind)) {
        case strategy::Axis::kTensor:
          return "tensor collective, exposed";
        case strategy::Axis::kContext:
          return "keys and values, exposed";
        default:
          return "reduction, exposed";
      }
    case graph::TaskKind::kHostCopy:
      return "host copy, exposed";
  }
  return "";
}

// Which of a rank's tasks counts where several run at once: the lowest.
int turn(graph::TaskKind kind) {
  switch (kind) {
    case graph::TaskKind::kCompute:
      return 0;
    case graph::TaskKind::kExchangeCounts:
    case graph::TaskKind::kAllToAll:
      return 1;
    case graph::TaskKind::kSend:
    case graph::TaskKind::kReceive:
      return 2;
    case graph::TaskKind::kAllReduce:
    case graph::TaskKind::kAllGather:
    case graph::TaskKind::kReduceScatter:
    case graph::TaskKind::kRing:
    case graph::TaskKind::kStateCollective:
    case graph::TaskKind::kHostCopy:
      return 3;
  }
  return 0;
}

struct Span {
  int turn = 0;
  graph::Interval interval;
  const graph::Task* task = nullptr;
};
using Spans = std::vector<Span>;

// A set of moments, as intervals that do not touch.
class Covered {
 public:
  // Adds an interval; returns the seconds of it that are new.
  double add(const graph::Interval& interval) {
    double begin = interval.start_seconds, end = interval.end_seconds, known = 0;
    auto next = end_of_.upper_bound(begin);
    if (next != end_of_.begin() && std::prev(next)->second >= begin) --next;
    while (next != end_of_.end() && next->first <= end) {
      known += std::min(end, next->second) - std::max(interval.start_seconds, next->first);
      begin = std::min(begin, next->first);
      end = std::max(end, next->second);
      next = end_of_.erase(next);
    }
    end_of_[begin] = end;
    return interval.end_seconds - interval.start_seconds - known;
  }

 private:
  std::map<double, double> end_of_;  // by begin
};

}  // namespace

std::map<std::string, double> seconds_by_component(const schedule::StepGraph& step,
                                                   const graph::Timeline& timeline, Rank rank) {
  std::vector<Spans> ranks(static_cast<size_t>(step.graph.num_ranks()));
  for (const graph::Task& task : step.graph.tasks())
    if (const graph::Interval& interval = timeline.tasks[task.id.index()];
        interval.has_run() && (rank == Rank::none() || task.rank == rank))
      ranks[task.rank.index()].push_back({turn(task.kind), interval, &task});
  std::map<std::string, double> seconds;
  for (Spans& spans : ranks) {
    std::ranges::sort(spans, {}, [](const Span& span) {
      return std::tuple(span.turn, span.interval.start_seconds, span.interval.end_seconds);
    });
    Covered covered;
    for (const Span& span : spans)
      seconds[component(step, *span.task)] += covered.add(span.interval);
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

schedule::StepGraph checked(const model::Model& model, const strategy::Strategy& strategy,
                            const std::function<schedule::StepGraph()>& write) {
  if (const auto problems = strategy::contradictions(strategy, model); !problems.empty())
    throw InvalidInput(strategy::texts_of(problems));
  schedule::StepGraph step = write();
  const std::vector<std::string> problems = graph::validate(step.graph);
  PIPER_CHECK(problems.empty(), problems.empty() ? "" : problems.front());
  const std::string deadlock = graph::find_deadlock(step.graph);
  PIPER_CHECK(deadlock.empty(), deadlock);
  return step;
}

}  // namespace

schedule::StepGraph checked_step(const model::Model& model, const strategy::Strategy& strategy,
                                 const schedule::ExecutionStyle& style) {
  return checked(model, strategy, [&] { return schedule::write_step(model, strategy, {}, style); });
}

schedule::StepGraph checked_evaluation(const model::Model& model,
                                       const strategy::Strategy& strategy) {
  return checked(model, strategy, [&] { return schedule::write_evaluation(model, strategy); });
}

double model_flops_utilization(const model::Model& model, const strategy::Strategy& strategy,
                               const cluster::Cluster& cluster, double step_seconds, double kept) {
  if (!cost::unpriced(cluster, strategy.precision).empty())
    return std::numeric_limits<double>::quiet_NaN();
  return cost::mfu(model, strategy, cluster, step_seconds, kept);
}

StepPrediction predict(const schedule::StepGraph& step, const model::Model& model,
                       const strategy::Strategy& strategy, const cluster::Cluster& cluster,
                       const cost::ExpertLoad& load, double slowdown) {
  StepPrediction prediction;
  prediction.prices = cost::price(step, model, strategy, cluster, load);
  for (const graph::Task& task : step.graph.tasks())
    if (task.kind == graph::TaskKind::kCompute)
      prediction.prices.seconds[task.id.index()] *= slowdown;
  prediction.timeline = sim::simulate_scattered(step, prediction.prices, cost::scatter(cluster));
  prediction.step_seconds = prediction.timeline.seconds();
  prediction.kept = load.kept.empty() ? cost::kept_part(model, strategy) : mean_kept(model, load);
  prediction.mfu =
      model_flops_utilization(model, strategy, cluster, prediction.step_seconds, prediction.kept);
  return prediction;
}

namespace {

// Means over the ranks; what is missing to the step is idle: a bubble, a wait for a core, the time
// between two steps.
void add_parts(const std::map<std::string, double>& seconds, double world, double step_seconds,
               std::optional<double> report::TimeComponent::*side,
               std::vector<report::TimeComponent>& parts) {
  const auto part = [&](const std::string& name) -> report::TimeComponent& {
    const auto found = std::ranges::find(parts, name, &report::TimeComponent::name);
    return found != parts.end() ? *found : parts.emplace_back(report::TimeComponent{.name = name});
  };
  for (const auto& [name, total] : seconds) {
    part(name).*side = total / world;
    step_seconds -= total / world;
  }
  part("idle").*side = std::max(0.0, step_seconds);
}

// Every component and rank with what was measured of it alone.
report::Comparison measured_alone(const schedule::StepGraph& step,
                                  const strategy::Strategy& strategy,
                                  const cluster::Cluster& cluster, const Measurement& measured) {
  report::Comparison comparison;
  comparison.num_steps = measured.num_steps;
  if (measured.num_steps > 0) {
    comparison.measured_step_seconds = measured.step_seconds;
    comparison.measured_step = measured.step;
  }
  if (!measured.timeline.tasks.empty())
    add_parts(seconds_by_component(step, measured.timeline),
              static_cast<double>(strategy.mesh.world()), measured.step_seconds,
              &report::TimeComponent::measured_seconds, comparison.time_components);
  for (int64_t r = 0; r < strategy.mesh.world(); ++r) {
    const auto i = static_cast<size_t>(r);
    report::RankComparison rank;
    rank.rank = r;
    rank.stage = strategy::RankLayout(strategy).stage(Rank(r));
    rank.limit_bytes = cluster.memory_bytes;
    if (measured.peak_bytes.empty()) {
      comparison.ranks.push_back(std::move(rank));
      continue;
    }
    rank.measured_peak_bytes = measured.peak_bytes[i];
    // What ranks hold between steps is what they hold at the peak too, unless gradients or weights
    // are divided, and come whole for a layer at a time.
    if (strategy.zero < 2)
      rank.measured_components = {
          {"weights, gradients, optimizer", measured.state_bytes[i]},
          {"activations", measured.peak_bytes[i] - measured.state_bytes[i]}};
    comparison.ranks.push_back(std::move(rank));
  }
  return comparison;
}

}  // namespace

report::Comparison compare(const schedule::StepGraph& step, const model::Model& model,
                           const strategy::Strategy& strategy, const cluster::Cluster& cluster,
                           const std::optional<StepPrediction>& prediction,
                           const Measurement& measured) {
  report::Comparison comparison = measured_alone(step, strategy, cluster, measured);
  if (!prediction) {
    comparison.no_prediction = cost::unpriced(cluster, strategy.precision);
    return comparison;
  }
  comparison.predicted_step_seconds = prediction->step_seconds;
  comparison.predicted_mfu = prediction->mfu;
  if (comparison.measured_step_seconds)
    comparison.measured_mfu =
        model_flops_utilization(model, strategy, cluster, measured.step_seconds, prediction->kept);
  add_parts(seconds_by_component(step, prediction->timeline),
            static_cast<double>(strategy.mesh.world()), prediction->step_seconds,
            &report::TimeComponent::predicted_seconds, comparison.time_components);
  cost::ExecutorEstimator estimator(model, cluster, strategy.precision, strategy.sequence);
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

}  // namespace piper::train
