#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/train/step_records.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

namespace piper::train {

void StepRecords::open(int64_t first_step, const checkpoint::TrainState& state) {
  skipped_ = state.skipped_steps;
  skipped_in_a_row_ = state.skipped_in_a_row;
  writer_.emplace(run_.request.folder / "metrics.jsonl", first_step - 1);
  events_.emplace(run_.request.folder / "tensorboard", first_step);
  say_notes();
}

void StepRecords::say_notes() {
  for (const std::vector<std::string>& notes : {writer_->take_notes(), events_->take_notes()})
    for (const std::string& note : notes) run_.say(note);
}

void StepRecords::add(comm::Transport& transport, int64_t number,
                      const report::StepOutcome& outcome, double seconds,
                      std::optional<double> validation_loss, const report::Migrated& migrated,
                      const balance::Placements& placements) {
  const strategy::Strategy& s = run_.request.strategy;
  skipped_ += outcome.skipped;
  skipped_in_a_row_ = outcome.skipped ? skipped_in_a_row_ + 1 : 0;
  report::FinishedStep finished{
      .number = number,
      .outcome = outcome,
      .seconds = seconds,
      .tokens = s.global_batch_sequences * s.sequence,
      .mfu = model_flops_utilization(run_.request.model, s, run_.request.cluster, seconds,
                                     1 - outcome.dropped_fraction.value_or(0)),
      .peak_bytes = recorder_.largest_peak_bytes(number),
      .validation_loss = validation_loss};
  if (run_.request.rebalance.is_on()) {
    finished.migrated = migrated;
    for (const auto& [layer, rows] : outcome.expert_rows)
      finished.migrated->rank_imbalance = std::max(finished.migrated->rank_imbalance,
                                                   balance::imbalance(placements.at(layer), rows));
  }
  const report::StepMetrics metrics = report::metrics_of(finished);
  writer_->write(metrics);
  events_->write(
      number,
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(),
      report::tensorboard_scalars(metrics));
  say_notes();
  if (!run_.request.keep_metrics && metrics_.size() > 1) metrics_.pop_back();
  metrics_.push_back(metrics);
  recorder_.record(number, seconds, outcome);
  if (run_.request.on_step) run_.request.on_step(metrics);
  if (const auto line = deviation_->note(number, seconds, *recorder_.timeline_of(number)))
    run_.say(*line);
  if (skipped_in_a_row_ >= 3) {
    const std::string what =
        fmt::format("loss or gradient was not finite in 3 steps in a row, up to step {}", number);
    transport.fail(what, comm::Fault::kInput);
    throw InvalidInput(what + "; lower --learning-rate");
  }
}

void StepRecords::count_skipped(checkpoint::TrainState& state) const {
  state.skipped_steps = skipped_;
  state.skipped_in_a_row = skipped_in_a_row_;
}

void StepRecords::sync() const {
  writer_->sync();
  events_->sync();
  files::sync_folder(run_.request.folder / "tensorboard");
  files::sync_folder(run_.request.folder);
}

}  // namespace piper::train
