#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/files/output.h>
#include <piper/report/chrome_trace.h>
#include <piper/report/run_files.h>
#include <piper/schedule/rank_chunks.h>
#include <piper/strategy/strategy.h>
#include <piper/train/run_recorder.h>
#include <piper/train/run_result.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

namespace piper::train {
namespace {

constexpr size_t kWarmUpSteps = 2;  // not part of the median

// A rank is at most one step ahead of another, so that older steps than these are no longer
// written.
constexpr int64_t kNewest = 4;
constexpr int64_t kLeastKept = 16, kMostKept = 64;
constexpr int64_t kKeptBytes = int64_t{64} << 20;  // of timelines, about

// Where a part's values lie (part_of).
enum PartValue : size_t {
  kStateBytes,
  kPeakBytes,
  kNumTasks,
  kNumRouted,
  kNumDistinct,
  kNumCounted,
  kFirst
};

using LayerSums = std::map<int32_t, std::vector<int64_t>>;

void add(LayerSums& sums, const LayerSums& more) {
  for (const auto& [layer, counts] : more) {
    std::vector<int64_t>& sum = sums[layer];
    sum.resize(counts.size());
    for (size_t e = 0; e < counts.size(); ++e) sum[e] += counts[e];
  }
}

}  // namespace

RunRecorder::RunRecorder(const schedule::StepGraph& step, const strategy::Strategy& strategy,
                         const cluster::Cluster& cluster)
    : step_(step), strategy_(strategy), layout_(strategy), cluster_(cluster) {
  const auto world = static_cast<size_t>(strategy.mesh.world());
  state_bytes_.assign(world, 0);
  // An interval and two samples of memory a task.
  const auto bytes =
      std::ssize(step.graph.tasks()) *
      static_cast<int64_t>(sizeof(graph::Interval) + 2 * sizeof(graph::MemorySample));
  most_kept_ = std::clamp(kKeptBytes / std::max<int64_t>(bytes, 1), kLeastKept, kMostKept);
}

graph::Timeline RunRecorder::empty_timeline() const {
  graph::Timeline timeline;
  timeline.tasks.resize(step_.graph.tasks().size());
  timeline.memory.resize(state_bytes_.size());
  return timeline;
}

graph::Timeline* RunRecorder::timeline_of(int64_t step_number) {
  const std::lock_guard lock(mutex_);
  const auto [found, made] = timelines_.try_emplace(step_number);
  if (made) {
    found->second = empty_timeline();
    forget_between();
  }
  return &found->second;
}

void RunRecorder::forget(int64_t step_number) {
  timelines_.erase(step_number);
  routed_.erase(step_number);
  traffic_.erase(step_number);
  peak_bytes_.erase(step_number);
  outcomes_.erase(step_number);
}

// Decided by the steps' numbers alone, so that all processes keep the same ones.
void RunRecorder::forget_between() {
  if (std::ssize(timelines_) > most_kept_) stride_ *= 2;
  const int64_t newest = timelines_.rbegin()->first;
  std::vector<int64_t> between;
  for (const auto& [number, timeline] : timelines_)
    if (number <= newest - kNewest && number % stride_ != 0) between.push_back(number);
  for (const int64_t number : between) forget(number);
}

void RunRecorder::set_peak_bytes(int64_t step_number, Rank rank, int64_t bytes) {
  const std::lock_guard lock(mutex_);
  std::vector<int64_t>& peaks = peak_bytes_[step_number];
  peaks.resize(state_bytes_.size());
  peaks[rank.index()] = std::max(peaks[rank.index()], bytes);
}

void RunRecorder::set_routed(int64_t step_number, Rank rank, const ByMicroBatch& rows,
                             const ByMicroBatch& distinct) {
  const std::lock_guard lock(mutex_);
  Routed& of_step = routed_[step_number];
  const auto put = [&](const ByMicroBatch& from, cost::RoutedRows& to) {
    for (const auto& [place, counts] : from)
      to[{place.first, place.second, layout_.member(rank)}] = counts;
  };
  put(rows, of_step.rows);
  put(distinct, of_step.distinct);
}

void RunRecorder::set_traffic(int64_t step_number, Rank rank,
                              const std::vector<comm::CountedBytes>& counted) {
  const std::lock_guard lock(mutex_);
  std::vector<comm::CountedBytes>& of_rank = traffic_[step_number][rank.value];
  of_rank.clear();
  for (const comm::CountedBytes& c : counted)
    if (c.key >> kOperationBits == static_cast<uint64_t>(step_number)) of_rank.push_back(c);
}

CountedTraffic RunRecorder::measured_traffic() const {
  const int64_t step = median_step();
  const std::lock_guard lock(mutex_);
  const auto found = traffic_.find(step);
  return found == traffic_.end() ? CountedTraffic{} : found->second;
}

void RunRecorder::set_placements(int64_t step_number, const balance::Placements& placements) {
  const std::lock_guard lock(mutex_);
  routed_[step_number].placements = placements;
}

void RunRecorder::measured_routing(cost::ExpertLoad& load) const {
  const int64_t step = median_step();
  const std::lock_guard lock(mutex_);
  const auto found = routed_.find(step);
  if (found == routed_.end()) return;
  const Routed& routed = found->second;
  load.placements = routed.placements;
  std::set<int32_t> layers;
  for (const auto& [key, rows] : routed.rows) layers.insert(std::get<0>(key));
  const auto all = std::ssize(layers) * strategy_.num_micro_batches * layout_.num_members();
  if (std::ssize(routed.rows) != all || layers.size() != outcomes_.at(step).expert_rows.size())
    return;
  if (strategy::deduplicates(strategy_) && std::ssize(routed.distinct) != all) return;
  load.routed = routed.rows;
  load.distinct = routed.distinct;
}

int64_t RunRecorder::largest_peak_bytes(int64_t step_number) const {
  const std::lock_guard lock(mutex_);
  const auto found = peak_bytes_.find(step_number);
  return found == peak_bytes_.end() ? 0 : *std::ranges::max_element(found->second);
}

const report::StepOutcome& RunRecorder::measured_outcome() const {
  return outcomes_.at(median_step());
}

void RunRecorder::record(int64_t step_number, double seconds, const report::StepOutcome& outcome) {
  const std::lock_guard lock(mutex_);
  seconds_.emplace_back(step_number, seconds);
  outcomes_[step_number] = outcome;
  add_to_spans(step_number, outcome.expert_rows);
  add(expert_rows_, outcome.expert_rows);
}

void RunRecorder::set_slowdowns(int64_t first_step, const std::vector<double>& slowdowns) {
  for (const double slowdown : slowdowns) slowdowns_[first_step++] = slowdown;
}

double RunRecorder::slowdown_of(int64_t step_number) const {
  const auto found = slowdowns_.find(step_number);
  return found == slowdowns_.end() ? 1 : found->second;
}

int64_t RunRecorder::median_step() const {
  std::vector<std::pair<double, int64_t>> all;
  for (size_t i = seconds_.size() > kWarmUpSteps ? kWarmUpSteps : 0; i < seconds_.size(); ++i)
    all.emplace_back(seconds_[i].second / slowdown_of(seconds_[i].first), seconds_[i].first);
  std::ranges::sort(all);
  const double median = all[all.size() / 2].first;
  const auto is_kept = [&](const auto& step) { return timelines_.contains(step.second); };
  const auto distance = [&](const auto& step) { return std::abs(step.first - median); };
  auto nearest = std::ranges::find_if(all, is_kept);
  for (auto step = nearest; step != all.end(); ++step)
    if (is_kept(*step) && distance(*step) < distance(*nearest)) nearest = step;
  return nearest->second;
}

// Doubles throughout, which hold every count of bytes: state, peak, number of tasks, their
// intervals, memory samples.
std::string RunRecorder::part_of(Rank rank, int64_t step_number) const {
  const std::lock_guard lock(mutex_);
  const graph::Timeline& timeline = timelines_.at(step_number);
  std::vector<double> values = {static_cast<double>(state_bytes_[rank.index()]),
                                static_cast<double>(peak_bytes_.at(step_number)[rank.index()]),
                                0,
                                0,
                                0,
                                0};
  for (const graph::Task& task : step_.graph.tasks()) {
    if (task.rank != rank) continue;
    const graph::Interval& interval = timeline.tasks[task.id.index()];
    values.insert(values.end(), {interval.start_seconds, interval.end_seconds});
    ++values[kNumTasks];
  }
  const int64_t member = layout_.member(rank);
  const auto add_routed = [&](const cost::RoutedRows& of_step, PartValue number) {
    for (const auto& [key, rows] : of_step) {
      if (std::get<2>(key) != member ||
          !schedule::holds_layer(strategy_, layout_.stage(rank), std::get<0>(key)))
        continue;
      ++values[number];
      values.insert(values.end(),
                    {static_cast<double>(std::get<0>(key)), static_cast<double>(std::get<1>(key)),
                     static_cast<double>(rows.size())});
      values.insert(values.end(), rows.begin(), rows.end());
    }
  };
  if (const auto found = routed_.find(step_number); found != routed_.end()) {
    add_routed(found->second.rows, kNumRouted);
    add_routed(found->second.distinct, kNumDistinct);
  }
  if (const auto found = traffic_.find(step_number); found != traffic_.end())
    for (const comm::CountedBytes& c : found->second.at(rank.value)) {
      ++values[kNumCounted];
      const uint64_t operation = c.key & ((uint64_t{1} << kOperationBits) - 1);
      values.insert(
          values.end(),
          {static_cast<double>(operation), static_cast<double>(c.peer.value), c.is_sent ? 1.0 : 0.0,
           static_cast<double>(c.num_messages), static_cast<double>(c.bytes)});
    }
  for (const graph::MemorySample& sample : timeline.memory[rank.index()])
    values.insert(values.end(), {sample.seconds, static_cast<double>(sample.bytes)});
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(double)};
}

void RunRecorder::add_part(Rank rank, int64_t step_number, const std::string& part,
                           double clock_offset_seconds) {
  std::vector<double> values(part.size() / sizeof(double));
  std::memcpy(values.data(), part.data(), values.size() * sizeof(double));
  const auto is_mine = [&](const graph::Task& task) { return task.rank == rank; };
  const auto num_tasks = std::ranges::count_if(step_.graph.tasks(), is_mine);
  if (values.size() < kFirst || values[kNumTasks] != static_cast<double>(num_tasks))
    throw CommError(fmt::format("rank {} executed another graph than rank 0", rank.value));
  graph::Timeline* timeline = timeline_of(step_number);
  set_peak_bytes(step_number, rank, static_cast<int64_t>(values[kPeakBytes]));
  state_bytes_[rank.index()] = static_cast<int64_t>(values[kStateBytes]);
  size_t next = kFirst;
  for (const graph::Task& task : step_.graph.tasks()) {
    if (!is_mine(task)) continue;
    graph::Interval& interval = timeline->tasks[task.id.index()];
    interval = {values[next], values[next + 1]};
    if (interval.has_run()) {
      interval.start_seconds += clock_offset_seconds;
      interval.end_seconds += clock_offset_seconds;
    }
    next += 2;
  }
  const auto take_routed = [&](cost::RoutedRows& of_step, PartValue number) {
    for (auto left = static_cast<int64_t>(values[number]); left > 0; --left) {
      const auto size = static_cast<std::ptrdiff_t>(values[next + 2]);
      const auto begin = values.begin() + static_cast<std::ptrdiff_t>(next) + 3;
      of_step[{static_cast<int32_t>(values[next]), static_cast<int32_t>(values[next + 1]),
               layout_.member(rank)}] = {begin, begin + size};
      next += 3 + static_cast<size_t>(size);
    }
  };
  take_routed(routed_[step_number].rows, kNumRouted);
  take_routed(routed_[step_number].distinct, kNumDistinct);
  std::vector<comm::CountedBytes>& counted = traffic_[step_number][rank.value];
  counted.clear();
  for (auto left = static_cast<int64_t>(values[kNumCounted]); left > 0; --left, next += 5)
    counted.push_back({.key = static_cast<uint64_t>(step_number) << kOperationBits |
                              static_cast<uint64_t>(values[next]),
                       .peer = Rank(static_cast<int64_t>(values[next + 1])),
                       .is_sent = values[next + 2] != 0,
                       .num_messages = static_cast<int64_t>(values[next + 3]),
                       .bytes = static_cast<int64_t>(values[next + 4])});
  std::vector<graph::MemorySample>& samples = timeline->memory[rank.index()];
  samples.clear();
  for (; next + 1 < values.size(); next += 2)
    samples.push_back(
        {values[next] + clock_offset_seconds, static_cast<int64_t>(values[next + 1])});
}

Measurement RunRecorder::measurement() const {
  Measurement measured;
  measured.step = median_step();
  measured.timeline = timelines_.at(measured.step);
  double start = 1e300;
  for (const graph::Interval& task : measured.timeline.tasks)
    if (task.has_run()) start = std::min(start, task.start_seconds);
  for (graph::Interval& task : measured.timeline.tasks)
    if (task.has_run()) task = {task.start_seconds - start, task.end_seconds - start};
  for (std::vector<graph::MemorySample>& samples : measured.timeline.memory)
    for (graph::MemorySample& sample : samples) sample.seconds -= start;
  measured.peak_bytes = measured.timeline.peak_bytes = peak_bytes_.at(measured.step);
  const auto its = std::ranges::find(seconds_, measured.step, &std::pair<int64_t, double>::first);
  measured.step_seconds = its->second;
  measured.num_steps = std::ssize(seconds_);
  measured.state_bytes = state_bytes_;
  return measured;
}

bool RunRecorder::same_order(const graph::Timeline& simulated) const {
  const graph::Timeline& executed = timelines_.at(median_step());
  for (int64_t r = 0; r < step_.graph.num_ranks(); ++r)
    for (int stream = 0; stream < graph::kNumStreams; ++stream) {
      const auto s = static_cast<graph::Stream>(stream);
      if (graph::start_order(step_.graph, simulated, Rank(r), s) !=
          graph::start_order(step_.graph, executed, Rank(r), s))
        return false;
    }
  return true;
}

void RunRecorder::write_files(const std::filesystem::path& folder, const RunResult& result) const {
  report::TraceDescription description;
  for (int64_t r = 0; r < strategy_.mesh.world(); ++r)
    description.stage_of_rank.push_back(layout_.stage(Rank(r)));
  description.title = "predicted";
  if (result.prediction_with_load)
    report::write_chrome_trace_file(folder / report::kPredictedTraceFile, step_,
                                    result.prediction_with_load->timeline, description);
  else  // of an earlier run in this folder
    files::remove_output(folder / report::kPredictedTraceFile);
  description.title = "measured";
  report::write_chrome_trace_file(folder / report::kMeasuredTraceFile, step_,
                                  result.measurement.timeline, description);
  files::write_json_file(folder / report::kComparisonFile, report::to_json(result.comparison));
  files::write_json_file(folder / report::kTrafficFile, to_json(result.traffic));
  report::ExpertRows rows;
  rows.num_steps = std::ssize(seconds_);
  for (const auto& [layer, counts] : expert_rows_)
    rows.layers.push_back({.layer = layer, .rows = counts});
  add_spans(rows);
  files::write_json_file(folder / report::kExpertLoadFile, report::to_json(rows));
}

// However long the run, at most kMostSpans stretches: when there are more, each two become one.
void RunRecorder::add_to_spans(int64_t step_number, const LayerSums& rows) {
  if (spans_.empty() || spans_.back().num_steps == span_length_) spans_.emplace_back();
  Span& last = spans_.back();
  last.last_step = step_number;
  ++last.num_steps;
  add(last.rows, rows);
  if (std::ssize(spans_) <= report::ExpertRows::kMostSpans) return;
  span_length_ *= 2;
  std::vector<Span> merged;
  for (size_t i = 0; i < spans_.size(); ++i) {
    if (i % 2 == 0) {
      merged.push_back(std::move(spans_[i]));
    } else {
      merged.back().last_step = spans_[i].last_step;
      merged.back().num_steps += spans_[i].num_steps;
      add(merged.back().rows, spans_[i].rows);
    }
  }
  spans_ = std::move(merged);
}

void RunRecorder::add_spans(report::ExpertRows& rows) const {
  for (const Span& span : spans_) {
    rows.span_ends.push_back(span.last_step);
    for (report::LayerRows& layer : rows.layers)
      layer.over_time.push_back(span.rows.at(static_cast<int32_t>(layer.layer)));
  }
}

}  // namespace piper::train
