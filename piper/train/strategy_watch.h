// Does the strategy still suit? What rank 0 asks the planner after every step, and what it says or
// does.
#pragma once

#include <piper/graph/timeline.h>
#include <piper/plan/replanner.h>
#include <piper/train/run_context.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

namespace piper::train {

// begin() and note() are of rank 0's thread.
class StrategyWatch {
 public:
  explicit StrategyWatch(const RunContext& run) : run_(run) {}

  // Before the first step of a run that was called at `begun_seconds` (executor/clock.h): what
  // beginning took is what a change will take twice, once for its save. What may be chosen:
  // whatever trains the same model on the same ranks, text and batches.
  void begin(const schedule::StepGraph& step, double begun_seconds);
  // A step with its timeline, of which all ranks have written their part.
  void note(int64_t number, double seconds, const graph::Timeline& timeline,
            const std::map<int32_t, std::vector<int64_t>>& expert_rows,
            const balance::Placements& placements);
  // Whether the run ends to go on with the strategy that was proposed last. Thread-safe; in rank
  // 0's process.
  bool changes() const { return changes_; }
  // After the last step, by every process: the strategy to go on with. Whoever was asked to stop
  // meanwhile, in whatever process, stops all: the step is saved, and --resume may go on with what
  // was proposed.
  std::optional<strategy::Strategy> agree_on_change() const;
  const std::vector<plan::Replanned>& proposals() const { return replanned_; }

 private:
  const RunContext& run_;
  cost::TrainerProfile trainer_profile_;  // of replan_request_
  plan::Request replan_request_;
  std::optional<plan::Replanner> replanner_;
  std::vector<plan::Replanned> replanned_;
  std::atomic<bool> changes_{false};
};

}  // namespace piper::train
