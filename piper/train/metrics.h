// What a step did: a line of metrics.jsonl and a line on the console.
#pragma once

#include <piper/base/json.h>
#include <piper/files/file_tail.h>

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace piper::train {

struct StepMetrics {
  int64_t step = 0;  // counts from 1
  double loss = 0;   // nats a target token, auxiliary loss and z-loss apart
  double auxiliary_loss = 0;
  double z_loss = 0;
  double grad_norm = 0;  // over the whole mesh, before clipping
  double learning_rate = 0;
  double step_seconds = 0;
  double tokens_per_second = 0;
  double mfu = 0;          // fraction; NaN where the peak is not known
  int64_t peak_bytes = 0;  // of the fullest rank
  double load_imbalance =
      0;  // most chosen expert over the mean, the worst layer; 0 for a dense model
  // Of all copies of tokens, those beyond the experts' capacity; 0 in the file where a strategy has
  // none.
  std::optional<double> dropped_fraction;
  bool skipped = false;         // the update was skipped: loss or gradient not finite
  Json extra = Json::object();  // further keys, appended
};

// Keys in a fixed order, named like the members. Infinite and NaN become null.
Json to_json(const StepMetrics& metrics);

// "step 12 | loss 3.4123 | grad norm 1.23 | 4567 tokens/s | MFU 23.1 % | peak 512.0 MiB | imbalance
// 1.12"; an extra "mtp_loss" stands behind the loss, a capacity adds "| dropped 1.2 %" behind the
// imbalance, an extra "rank_imbalance" (of a run that rebalances) "| busiest rank 1.31" and, where
// experts moved before the step, "| moved 4 experts, 1.50 MiB in 2.1 ms", a skipped update "|
// skipped: not finite".
std::string console_line(const StepMetrics& metrics);

// How far metrics.jsonl can be trusted, and how much of that belongs to steps up to `last_step`. A
// line is sound when a newline ends it, it is one JSON object, its "step" is an integer from 1, and
// the step is greater than the one of the line before; a line that skips steps only if the line
// behind it goes on from there. Steps may be missing where an earlier tail was cut off. Never
// throws: any bytes are an answer. Linear.
files::SoundPart sound_metrics(std::string_view bytes, int64_t last_step);

// Appends to metrics.jsonl, a line a step, each flushed. One thread, but for sync().
class MetricsWriter {
 public:
  // Keeps the lines of an existing file up to `last_step` (of the checkpoint resumed from; 0 = a
  // new run) and drops the later ones; a damaged tail goes to metrics.jsonl.damaged (file_tail.h)
  // and into notes(). Throws IoError.
  MetricsWriter(std::filesystem::path path, int64_t last_step);

  void write(const StepMetrics& metrics);  // throws IoError
  // Returns when all lines written before the call are on the disk. Any thread. Throws IoError.
  void sync() const;

  // What to tell the user of the file as it was found.
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::filesystem::path path_;
  std::unique_ptr<std::FILE, Close> file_;
  std::vector<std::string> notes_;
};

}  // namespace piper::train
