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
  for (const auto* notes : {&writer_->notes(), &events_->notes()})
    for (const std::string& note : *notes) run_.say(note);
}

void StepRecords::add(comm::Transport& transport, int64_t number, const StepOutcome& outcome,
                      double seconds, std::optional<double> validation_loss,
                      const Migrated& migrated, const balance::Placements& placements) {
  const strategy::Strategy& s = run_.request.strategy;
  skipped_ += outcome.skipped;
  skipped_in_a_row_ = outcome.skipped ? skipped_in_a_row_ + 1 : 0;
  StepMetrics metrics;
  metrics.step = number;
  metrics.loss = outcome.loss;
  metrics.auxiliary_loss = outcome.auxiliary_loss;
  metrics.z_loss = outcome.z_loss;
  metrics.grad_norm = outcome.grad_norm;
  metrics.learning_rate = outcome.learning_rate;
  metrics.step_seconds = seconds;
  metrics.tokens_per_second = static_cast<double>(s.global_batch_sequences * s.sequence) / seconds;
  metrics.mfu = model_flops_utilization(run_.request.model, s, run_.request.cluster, seconds,
                                        1 - outcome.dropped_fraction.value_or(0));
  metrics.peak_bytes = recorder_.largest_peak_bytes(number);
  metrics.load_imbalance = outcome.load_imbalance;
  metrics.dropped_fraction = outcome.dropped_fraction;
  metrics.skipped = outcome.skipped;
  if (run_.request.model.mtp_depth > 0) metrics.extra["mtp_loss"] = outcome.mtp_loss;
  if (!run_.request.devices.is_cpu()) metrics.extra["host_waits"] = outcome.host_waits;
  if (validation_loss) metrics.extra["validation_loss"] = *validation_loss;
  if (run_.request.rebalance.is_on()) {
    double busiest = 1;
    for (const auto& [layer, rows] : outcome.expert_rows)
      busiest = std::max(busiest, balance::imbalance(placements.at(layer), rows));
    metrics.extra["rank_imbalance"] = busiest;
    metrics.extra["migrated_experts"] = migrated.experts;
    metrics.extra["migrated_bytes"] = migrated.bytes;
    metrics.extra["rebalance_seconds"] = migrated.seconds;
    if (migrated.predicted_seconds > 0)
      metrics.extra["predicted_migration_seconds"] = migrated.predicted_seconds;
  }
  writer_->write(metrics);
  write_events(metrics);
  metrics_.push_back(metrics);
  recorder_.record(number, seconds, outcome.expert_rows);
  if (run_.request.on_step) run_.request.on_step(metrics);
  if (const auto line = deviation_->note(number, seconds, *recorder_.timeline_of(number)))
    run_.say(*line);
  if (skipped_in_a_row_ >= 3) {
    const std::string what =
        fmt::format("loss or gradient was not finite in 3 steps in a row, up to step {}", number);
    transport.fail(what);
    throw InvalidInput(what + "; lower --learning-rate");
  }
}

// For TensorBoard: the metrics, and each mixture layer's load imbalance.
void StepRecords::write_events(const StepMetrics& m) {
  const double now =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  std::vector<std::pair<std::string, double>> scalars = {
      {"train/loss", m.loss},
      {"train/auxiliary_loss", m.auxiliary_loss},
      {"train/z_loss", m.z_loss},
      {"train/grad_norm", m.grad_norm},
      {"train/learning_rate", m.learning_rate},
      {"speed/step_seconds", m.step_seconds},
      {"speed/tokens_per_second", m.tokens_per_second},
      {"speed/mfu", m.mfu},
      {"memory/peak_bytes", static_cast<double>(m.peak_bytes)},
      {"experts/load_imbalance", m.load_imbalance}};
  if (m.dropped_fraction) scalars.emplace_back("experts/dropped_fraction", *m.dropped_fraction);
  if (m.extra.contains("mtp_loss"))
    scalars.emplace_back("train/mtp_loss", m.extra.at("mtp_loss").get<double>());
  if (m.extra.contains("validation_loss"))
    scalars.emplace_back("validation/loss", m.extra.at("validation_loss").get<double>());
  events_->write(m.step, now, scalars);
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
