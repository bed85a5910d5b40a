// What a run says when it has ended: its steps, and the prediction beside what was measured.
#pragma once

#include <piper/plan/replanner.h>
#include <piper/report/metrics.h>
#include <piper/train/prediction.h>
#include <piper/train/traffic.h>

#include <optional>
#include <vector>

namespace piper::train {

// Whole in process 0; elsewhere only `stopped` is set.
struct RunResult {
  bool stopped = false;  // because stop_requested said so, on any rank; the last step is saved
  // What was worth the change, in the order in which it was said; with `auto`, what the run went on
  // with. All else below is of the strategy that the run ended with, but for `metrics`.
  std::vector<plan::Replanned> replanned;
  std::vector<report::StepMetrics> metrics;  // see RunRequest::keep_metrics
  // Made before the run, at the load that was planned for; none where the cluster has no figures
  // for the precision.
  std::optional<StepPrediction> prediction;
  // Made after it, with the loads of the measured step, and at the speed of the machine during the
  // run where that was measured.
  std::optional<StepPrediction> prediction_with_load;
  Measurement measurement;
  report::Comparison comparison;  // against prediction_with_load
  Traffic traffic;  // of the measured step: predicted beside counted by the transports
  // Whether every stream of every rank started its tasks in the simulated order; none was simulated
  // where nothing was predicted.
  std::optional<bool> same_order;
};

}  // namespace piper::train
