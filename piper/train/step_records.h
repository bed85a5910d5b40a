// What the steps of a run leave behind while it goes on: their metrics, and words where they leave
// the prediction.
#pragma once

#include <piper/train/deviation.h>
#include <piper/train/expert_moves.h>
#include <piper/train/metrics.h>
#include <piper/train/run_context.h>
#include <piper/train/run_recorder.h>
#include <piper/train/tensorboard.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace piper::train {

// Process 0's; from the first step on, rank 0's thread's.
class StepRecords {
 public:
  StepRecords(const RunContext& run, RunRecorder& recorder) : run_(run), recorder_(recorder) {}

  // Behind the records of steps before `first_step`; `state`: of the checkpoint there. Says what
  // was damaged of them. Throws IoError.
  void open(int64_t first_step, const checkpoint::TrainState& state);
  void watch(const DeviationWatch& deviation) { deviation_.emplace(deviation); }

  // After a step. Throws InvalidInput, and fails the transport, where one step too many was
  // skipped.
  void add(comm::Transport& transport, int64_t number, const report::StepOutcome& outcome,
           double seconds, std::optional<double> validation_loss, const report::Migrated& migrated,
           const balance::Placements& placements);

  const std::vector<report::StepMetrics>& metrics() const { return metrics_; }
  void count_skipped(checkpoint::TrainState& state) const;
  // What the user was shown of a step is there when the step can be resumed from. Throws IoError.
  void sync() const;

 private:
  void say_notes();

  const RunContext& run_;
  RunRecorder& recorder_;
  std::optional<MetricsWriter> writer_;
  std::optional<EventWriter> events_;
  std::optional<DeviationWatch> deviation_;
  std::vector<report::StepMetrics> metrics_;
  int64_t skipped_ = 0, skipped_in_a_row_ = 0;
};

}  // namespace piper::train
