// What a run notes while it goes, and what it leaves in its folder.
#pragma once

#include <piper/report/expert_rows.h>
#include <piper/report/metrics.h>
#include <piper/strategy/rank_layout.h>
#include <piper/train/prediction.h>
#include <piper/train/traffic.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace piper::train {

struct RunResult;

// Thread-safe where ranks meet: each rank writes its own entries of a timeline; record() is rank
// 0's.
class RunRecorder {
 public:
  RunRecorder(const schedule::StepGraph& step, const strategy::Strategy& strategy,
              const cluster::Cluster& cluster);

  // Where the ranks write the tasks of a step. Kept are the newest steps, which ranks still write,
  // and steps that lie evenly over the whole run: the same ones in every process, at most
  // most_kept() and at least half as many of a long run.
  graph::Timeline* timeline_of(int64_t step_number);
  void set_state_bytes(Rank rank, int64_t bytes) { state_bytes_[rank.index()] = bytes; }
  // Ranks reset their peak before each step. What is said again for a step counts if it is more: on
  // a device that ranks share another rank's reading may be of too short a time (rank_memory.h).
  void set_peak_bytes(int64_t step_number, Rank rank, int64_t bytes);
  int64_t largest_peak_bytes(int64_t step_number) const;
  void record(int64_t step_number, double seconds, const report::StepOutcome& outcome);

  // How much slower than profiled the machine was in each step from `first_step` on
  // (speed_check.h); of steps not named, not at all.
  void set_slowdowns(int64_t first_step, const std::vector<double>& slowdowns);
  double slowdown_of(int64_t step_number) const;
  // Returns the kept step whose time is nearest the median of all of the run's, at one speed of the
  // machine; the first steps do not count when there are others. It is the median step itself while
  // all are kept. Rank 0's process calls it.
  int64_t median_step() const;
  // 16 to 64 steps, by the bytes of a timeline.
  int64_t most_kept() const { return most_kept_; }
  // What a rank's routers chose in a step, by (layer, micro-batch); and of a strategy that
  // deduplicates, the distinct tokens.
  using ByMicroBatch = std::map<std::pair<int32_t, int32_t>, std::vector<int64_t>>;
  void set_routed(int64_t step_number, Rank rank, const ByMicroBatch& rows,
                  const ByMicroBatch& distinct);
  // Where experts were in a step, those that are not plain (displaced()); rank 0's process.
  void set_placements(int64_t step_number, const balance::Placements& placements);
  // Sets what was measured in the median step: load.placements, and load.routed and load.distinct
  // where all of it is known.
  void measured_routing(cost::ExpertLoad& load) const;
  // What a rank's transport counted in a step; operations of other steps are left out.
  void set_traffic(int64_t step_number, Rank rank, const std::vector<comm::CountedBytes>& counted);
  // Returns what was counted in the median step.
  CountedTraffic measured_traffic() const;
  // What a rank noted of a step, as bytes for another process of the same kind of machine; and
  // their way in there, where `clock_offset_seconds` is added to its times. Throws CommError when
  // they are of another graph.
  std::string part_of(Rank rank, int64_t step_number) const;
  void add_part(Rank rank, int64_t step_number, const std::string& part,
                double clock_offset_seconds);

  // After the run: the median step, its time and its timeline; seconds counted from its first task.
  Measurement measurement() const;
  // Rows of every expert by layer: of that step, and summed over all steps.
  const report::StepOutcome& measured_outcome() const;
  bool same_order(const graph::Timeline& simulated) const;
  void write_files(const std::filesystem::path& folder, const RunResult& result) const;

 private:
  void add_to_spans(int64_t step_number, const std::map<int32_t, std::vector<int64_t>>& rows);
  void add_spans(report::ExpertRows& rows) const;
  graph::Timeline empty_timeline() const;
  void forget_between();
  void forget(int64_t step_number);

  const schedule::StepGraph& step_;
  const strategy::Strategy& strategy_;
  const strategy::RankLayout layout_;
  const cluster::Cluster& cluster_;
  mutable std::mutex mutex_;
  std::map<int64_t, graph::Timeline> timelines_;  // by step number
  int64_t most_kept_ = 0;
  int64_t stride_ = 1;  // older steps are kept when it divides their number
  struct Routed {
    cost::RoutedRows rows, distinct;
    balance::Placements placements;
  };
  std::map<int64_t, Routed> routed_;           // by step number, of the steps in timelines_
  std::map<int64_t, CountedTraffic> traffic_;  // likewise
  std::vector<std::pair<int64_t, double>> seconds_;
  std::map<int64_t, double> slowdowns_;  // by step number
  std::vector<int64_t> state_bytes_;
  std::map<int64_t, std::vector<int64_t>> peak_bytes_;  // by step, by rank
  // Rows of each expert by layer: of the steps in timelines_; and over the whole run, in stretches
  // of equal length.
  std::map<int64_t, report::StepOutcome> outcomes_;
  struct Span {
    int64_t last_step = 0, num_steps = 0;
    std::map<int32_t, std::vector<int64_t>> rows;
  };
  std::vector<Span> spans_;
  int64_t span_length_ = 1;
  std::map<int32_t, std::vector<int64_t>> expert_rows_;  // sums over steps
};

}  // namespace piper::train
