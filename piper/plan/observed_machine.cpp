#include <piper/base/error.h>
#include <piper/graph/operations.h>
#include <piper/plan/observed_machine.h>

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

namespace piper::plan {
namespace {

struct Ratio {
  double measured = 0, predicted = 0;
  double value() const { return measured > 0 && predicted > 0 ? measured / predicted : 1; }
};

double seconds(const graph::Interval& interval) {
  return interval.end_seconds - interval.start_seconds;
}

size_t level_of(const cluster::Cluster& cluster, const std::vector<Rank>& ranks) {
  size_t level = 0;
  for (const Rank rank : ranks)
    level = std::max(level, cluster.common_level(ranks.front().value, rank.value));
  return level;
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

// While an operation really moves: from its last member's coming to its end.
struct Transfer {
  double start = 0, end = 0, predicted = 0, simulated = 0;
  std::vector<Rank> ranks;
  bool alone = true;  // none of its ranks was in another one meanwhile

  double ratio() const { return (end - start) / predicted; }
};

// From the last member's coming, of those that were played.
std::pair<double, double> span_of(std::span<const graph::TaskId> tasks,
                                  const graph::Timeline& timeline) {
  double start = -std::numeric_limits<double>::infinity(), end = start;
  for (const graph::TaskId id : tasks) {
    const graph::Interval& interval = timeline.tasks[id.index()];
    if (!interval.played()) continue;
    start = std::max(start, interval.start_seconds);
    end = std::max(end, interval.end_seconds);
  }
  return {start, end};
}

std::vector<Transfer> transfers_of(const graph::Graph& graph, const cost::Prices& prices,
                                   const graph::Timeline& simulated,
                                   const graph::Timeline& measured) {
  const graph::Operations operations(graph);
  std::vector<Transfer> transfers;
  for (int64_t i = 0; i < graph.num_operations(); ++i) {
    const std::span<const graph::TaskId> tasks = operations.tasks(graph::OperationId(i));
    Transfer transfer;
    std::tie(transfer.start, transfer.end) = span_of(tasks, measured);
    const auto [start, end] = span_of(tasks, simulated);
    transfer.simulated = end - start;
    for (const graph::TaskId id : tasks) {
      if (!measured.tasks[id.index()].played()) continue;
      transfer.ranks.push_back(graph.task(id).rank);
      transfer.predicted = std::max(transfer.predicted, prices.seconds[id.index()]);
    }
    if (transfer.ranks.size() > 1 && transfer.predicted > 0)
      transfers.push_back(std::move(transfer));
  }
  return transfers;
}

// In the order of their starts, rank by rank: one that begins before the latest end so far, and the
// one that has this end, share the rank's links.
void mark_alone(std::vector<Transfer>& transfers, int64_t num_ranks) {
  std::ranges::sort(transfers, {}, &Transfer::start);
  std::vector<Transfer*> latest(static_cast<size_t>(num_ranks), nullptr);
  for (Transfer& transfer : transfers)
    for (const Rank rank : transfer.ranks) {
      Transfer*& before = latest[rank.index()];
      if (before != nullptr && transfer.start < before->end) transfer.alone = before->alone = false;
      if (before == nullptr || before->end < transfer.end) before = &transfer;
    }
}

// The median, each as heavy as its predicted seconds. Requires one.
double median_ratio(std::vector<const Transfer*> transfers) {
  std::ranges::sort(transfers, {}, &Transfer::ratio);
  double half = 0;
  for (const Transfer* transfer : transfers) half += transfer->predicted / 2;
  size_t i = 0;
  for (double below = transfers[0]->predicted; below < half; below += transfers[++i]->predicted) {
  }
  return transfers[i]->ratio();
}

}  // namespace

ObservedMachine observe(const schedule::StepGraph& step, const cost::Prices& prices,
                        const cluster::Cluster& cluster, const graph::Timeline& simulated,
                        const graph::Timeline& measured) {
  const graph::Graph& graph = step.graph;
  std::vector<Ratio> compute(static_cast<size_t>(graph.num_ranks()));
  for (const graph::Task& task : graph.tasks()) {
    const graph::Interval& interval = measured.tasks[task.id.index()];
    if (task.kind != graph::TaskKind::kCompute || !interval.played()) continue;
    compute[task.rank.index()].measured += seconds(interval);
    compute[task.rank.index()].predicted += prices.seconds[task.id.index()];
  }
  std::vector<Transfer> transfers = transfers_of(graph, prices, simulated, measured);
  mark_alone(transfers, graph.num_ranks());
  ObservedMachine machine;
  for (const Ratio& ratio : compute) machine.compute.push_back(ratio.value());
  std::vector<bool> is_seen;
  for (size_t level = 0; level < cluster.levels.size(); ++level) {
    Ratio all;
    std::vector<const Transfer*> alone;
    for (const Transfer& transfer : transfers) {
      if (level_of(cluster, transfer.ranks) != level) continue;
      all.measured += transfer.end - transfer.start;
      all.predicted += transfer.simulated;
      if (transfer.alone) alone.push_back(&transfer);
    }
    machine.links.push_back(alone.empty() ? all.value() : median_ratio(alone));
    is_seen.push_back(all.measured > 0);
  }
  for (size_t level = machine.links.size(); level-- > 1;)
    if (is_seen[level] && !is_seen[level - 1]) {
      machine.links[level - 1] = machine.links[level];
      is_seen[level - 1] = true;
    }
  return machine;
}

ObservedMachine median_of(std::span<const ObservedMachine> steps) {
  PIPER_CHECK(!steps.empty());
  const auto of = [&](std::vector<double> ObservedMachine::*figures) {
    std::vector<double> medians;
    for (size_t i = 0; i < (steps.front().*figures).size(); ++i) {
      std::vector<double> values;
      for (const ObservedMachine& machine : steps) values.push_back((machine.*figures)[i]);
      medians.push_back(median(std::move(values)));
    }
    return medians;
  };
  return {of(&ObservedMachine::compute), of(&ObservedMachine::links)};
}

}  // namespace piper::plan
