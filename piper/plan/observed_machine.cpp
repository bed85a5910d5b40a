#include <piper/base/error.h>
#include <piper/base/median.h>
#include <piper/graph/operations.h>
#include <piper/plan/observed_machine.h>

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

namespace piper::plan {
namespace {

// By seconds as predicted, of a level's operations: that many have to have been alone to speak for
// all. Where the large ones always overlap, those that are alone are small, and know start-up times
// only.
constexpr double kMostOfAll = 0.5;

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

struct Span {
  double start = 0, end = 0;
};

// While an operation really moves: from its last member's coming to its end.
struct Transfer {
  Span measured, simulated;
  double predicted = 0;
  std::vector<Rank> ranks;
  bool alone = true;  // none of its ranks was in another one meanwhile

  double ratio() const { return (measured.end - measured.start) / predicted; }
};

// From the last member's coming, of those that were simulated.
Span span_of(std::span<const graph::TaskId> tasks, const graph::Timeline& timeline) {
  double start = -std::numeric_limits<double>::infinity(), end = start;
  for (const graph::TaskId id : tasks) {
    const graph::Interval& interval = timeline.tasks[id.index()];
    if (!interval.has_run()) continue;
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
    transfer.measured = span_of(tasks, measured);
    transfer.simulated = span_of(tasks, simulated);
    for (const graph::TaskId id : tasks) {
      if (!measured.tasks[id.index()].has_run()) continue;
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
  std::ranges::sort(transfers, {},
                    [](const Transfer& transfer) { return transfer.measured.start; });
  std::vector<Transfer*> latest(static_cast<size_t>(num_ranks), nullptr);
  for (Transfer& transfer : transfers)
    for (const Rank rank : transfer.ranks) {
      Transfer*& before = latest[rank.index()];
      if (before != nullptr && transfer.measured.start < before->measured.end)
        transfer.alone = before->alone = false;
      if (before == nullptr || before->measured.end < transfer.measured.end) before = &transfer;
    }
}

// How long at least one of them moves, rank by rank and summed: where several do, it does not
// matter whether they take turns or share.
double busy_seconds(const std::vector<const Transfer*>& transfers, Span Transfer::*span) {
  std::map<Rank, std::vector<Span>> of_rank;
  for (const Transfer* transfer : transfers)
    for (const Rank rank : transfer->ranks) of_rank[rank].push_back(transfer->*span);
  double seconds = 0;
  for (auto& [rank, spans] : of_rank) {
    std::ranges::sort(spans, {}, &Span::start);
    double until = spans.front().start;
    for (const Span& one : spans) {
      seconds += std::max(0.0, one.end - std::max(one.start, until));
      until = std::max(until, one.end);
    }
  }
  return seconds;
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
    if (task.kind != graph::TaskKind::kCompute || !interval.has_run()) continue;
    compute[task.rank.index()].measured += seconds(interval);
    compute[task.rank.index()].predicted += prices.seconds[task.id.index()];
  }
  std::vector<Transfer> transfers = transfers_of(graph, prices, simulated, measured);
  mark_alone(transfers, graph.num_ranks());
  ObservedMachine machine;
  for (const Ratio& ratio : compute) machine.compute.push_back(ratio.value());
  std::vector<bool> is_seen;
  for (size_t level = 0; level < cluster.levels.size(); ++level) {
    std::vector<const Transfer*> all, alone;
    double seconds_of_all = 0, seconds_alone = 0;
    for (const Transfer& transfer : transfers) {
      if (level_of(cluster, transfer.ranks) != level) continue;
      all.push_back(&transfer);
      seconds_of_all += transfer.predicted;
      if (!transfer.alone) continue;
      alone.push_back(&transfer);
      seconds_alone += transfer.predicted;
    }
    const Ratio busy{busy_seconds(all, &Transfer::measured),
                     busy_seconds(all, &Transfer::simulated)};
    machine.links.push_back(seconds_alone > kMostOfAll * seconds_of_all ? median_ratio(alone)
                                                                        : busy.value());
    is_seen.push_back(busy.measured > 0);
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
