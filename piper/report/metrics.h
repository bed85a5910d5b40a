// The metrics of a step. One table says of each what it is called, how it is read from a finished
// step and where it is shown; metrics.jsonl, the console, TensorBoard and the page loop over it. A
// new metric is a new row.
#pragma once

#include <piper/base/json_fwd.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace piper::report {

// What the ranks know of a step after it: sums over the world, so the same on each.
struct StepOutcome {
  double loss = 0;  // mean over the global batch's target tokens
  double auxiliary_loss = 0;
  double z_loss = 0;
  // Mean over the modules of multi-token prediction, not weighted; of models that have them.
  std::optional<double> mtp_loss;
  double grad_norm = 0;  // before clipping
  double learning_rate = 0;
  bool stop = false;     // some rank was asked to stop after this step
  bool skipped = false;  // loss or gradient not finite on some rank: no rank updated
  // How often each expert was chosen in this step, by layer (mixture layers only), and the rows it
  // computed: without a capacity as many. A module's padding is in neither.
  std::map<int32_t, std::vector<int64_t>> expert_counts, expert_rows;
  std::optional<double> dropped_fraction;  // of all choices; with a capacity
  double load_imbalance =
      0;  // most chosen expert over the mean, the worst layer; 0 for a dense model
  // How often this rank's host waited for its device (nn/host_read.h); of ranks on devices.
  std::optional<int64_t> host_waits;
};

// What a run that rebalances moved before a step, all ranks together.
struct Migrated {
  int64_t experts = 0, bytes = 0;
  double seconds = 0;            // of the whole rebalancing: deciding, moving, renaming
  double predicted_seconds = 0;  // of the moving; 0: nothing is predicted
  double saved_seconds = 0;      // a step, as predicted
  double rank_imbalance = 1;     // busiest expert rank's rows / mean, worst layer, in the step
};

// All that a run's first process knows of a step when it is over.
struct FinishedStep {
  int64_t number = 0;  // counts from 1
  const StepOutcome& outcome;
  double seconds = 0;
  int64_t tokens = 0;      // of the global batch
  double mfu = 0;          // NaN where the peak is not known
  int64_t peak_bytes = 0;  // of the fullest rank
  std::optional<double> validation_loss = {};
  std::optional<Migrated> migrated = {};
};

// What a metric's number means; text, JSON and charts write it accordingly.
enum class Unit : uint8_t {
  kNats,       // of a loss; may be negative
  kNumber,     // a norm, a rate, a ratio
  kPerSecond,  // tokens
  kFraction,   // 0 to 1, in per cent where it is shown
  kBytes,      // whole
  kSeconds,
  kCount,  // whole; shown where it is not 0
  kFlag,   // true or false; shown where it is true
};

// Where in a step's text a metric stands; those of one place follow each other as in the table.
enum class ConsolePlace : uint8_t { kFirst, kMiddle, kLast, kOwnLine };

// A chart of the page; several metrics may share one (metric_charts.h).
enum class MetricChart : uint8_t { kNone, kLoss, kOfItsOwn, kImbalance, kDropped };

using MetricValue = std::optional<double>;

struct Metric {
  std::string_view name;  // the key in metrics.jsonl
  Unit unit;
  // Nothing: a step of this run has no such metric.
  MetricValue (*of)(const FinishedStep& step);
  std::string_view tensorboard = "";  // its tag there; "": not written
  // Its part of the console's text: "{}" is the number, "{NAME}" that of another metric; "": not
  // shown.
  std::string_view console = "";
  ConsolePlace place = ConsolePlace::kMiddle;
  MetricChart chart = MetricChart::kNone;
  std::string_view label = "";  // its curve's name in the chart
  std::string_view css_class = "series-a";
  bool zero_where_absent = false;  // in metrics.jsonl, which otherwise leaves out what is absent
};

// As a number, or nothing where there is none.
template <class T>
constexpr MetricValue metric_value(const std::optional<T>& value) {
  return value ? MetricValue(static_cast<double>(*value)) : MetricValue();
}
// A member of what moved, in runs that rebalance.
template <class T>
constexpr MetricValue value_of_move(const FinishedStep& step, T Migrated::*member) {
  return step.migrated ? MetricValue(static_cast<double>((*step.migrated).*member)) : MetricValue();
}

// In the order of the keys of metrics.jsonl, where each line begins with "step".
inline constexpr std::array kMetrics{
    Metric{.name = "loss",
           .unit = Unit::kNats,
           .of = [](const FinishedStep& s) -> MetricValue { return s.outcome.loss; },
           .tensorboard = "train/loss",
           .console = "loss {}",
           .place = ConsolePlace::kFirst,
           .chart = MetricChart::kLoss,
           .label = "loss"},
    Metric{.name = "auxiliary_loss",
           .unit = Unit::kNats,
           .of = [](const FinishedStep& s) -> MetricValue { return s.outcome.auxiliary_loss; },
           .tensorboard = "train/auxiliary_loss"},
    Metric{.name = "z_loss",
           .unit = Unit::kNats,
           .of = [](const FinishedStep& s) -> MetricValue { return s.outcome.z_loss; },
           .tensorboard = "train/z_loss"},
    Metric{.name = "grad_norm",
           .unit = Unit::kNumber,
           .of = [](const FinishedStep& s) -> MetricValue { return s.outcome.grad_norm; },
           .tensorboard = "train/grad_norm",
           .console = "grad norm {}",
           .chart = MetricChart::kOfItsOwn,
           .label = "norm of the gradient before clipping"},
    Metric{.name = "learning_rate",
           .unit = Unit::kNumber,
           .of = [](const FinishedStep& s) -> MetricValue { return s.outcome.learning_rate; },
           .tensorboard = "train/learning_rate",
           .chart = MetricChart::kOfItsOwn,
           .label = "learning rate"},
    Metric{.name = "step_seconds",
           .unit = Unit::kSeconds,
           .of = [](const FinishedStep& s) -> MetricValue { return s.seconds; },
           .tensorboard = "speed/step_seconds"},
    Metric{.name = "tokens_per_second",
           .unit = Unit::kPerSecond,
           .of = [](const FinishedStep& s) -> MetricValue {
             return static_cast<double>(s.tokens) / s.seconds;
           },
           .tensorboard = "speed/tokens_per_second",
           .console = "{} tokens/s"},
    Metric{.name = "mfu",
           .unit = Unit::kFraction,
           .of = [](const FinishedStep& s) -> MetricValue { return s.mfu; },
           .tensorboard = "speed/mfu",
           .console = "MFU {}"},
    Metric{.name = "peak_bytes",
           .unit = Unit::kBytes,
           .of = [](const FinishedStep& s) -> MetricValue {
             return static_cast<double>(s.peak_bytes);
           },
           .tensorboard = "memory/peak_bytes",
           .console = "peak {}"},
    Metric{.name = "load_imbalance",
           .unit = Unit::kNumber,
           .of = [](const FinishedStep& s) -> MetricValue { return s.outcome.load_imbalance; },
           .tensorboard = "experts/load_imbalance",
           .console = "imbalance {}",
           .chart = MetricChart::kImbalance,
           .label = "busiest expert",
           .css_class = "series-b"},
    Metric{.name = "dropped_fraction",
           .unit = Unit::kFraction,
           .of = [](const FinishedStep& s) -> MetricValue { return s.outcome.dropped_fraction; },
           .tensorboard = "experts/dropped_fraction",
           .console = "dropped {}",
           .chart = MetricChart::kDropped,
           .label = "dropped",
           .css_class = "series-b",
           .zero_where_absent = true},
    Metric{.name = "skipped",
           .unit = Unit::kFlag,
           .of = [](const FinishedStep& s) -> MetricValue { return s.outcome.skipped; },
           .console = "skipped: not finite",
           .place = ConsolePlace::kLast},
    Metric{.name = "mtp_loss",
           .unit = Unit::kNats,
           .of = [](const FinishedStep& s) -> MetricValue { return s.outcome.mtp_loss; },
           .tensorboard = "train/mtp_loss",
           .console = "mtp loss {}",
           .place = ConsolePlace::kFirst},
    Metric{.name = "host_waits",
           .unit = Unit::kCount,
           .of = [](const FinishedStep& s) -> MetricValue {
             return metric_value(s.outcome.host_waits);
           }},
    Metric{.name = "validation_loss",
           .unit = Unit::kNats,
           .of = [](const FinishedStep& s) -> MetricValue { return s.validation_loss; },
           .tensorboard = "validation/loss",
           .console = "validation loss {}",
           .place = ConsolePlace::kOwnLine,
           .chart = MetricChart::kLoss,
           .label = "validation loss",
           .css_class = "series-b"},
    Metric{.name = "rank_imbalance",
           .unit = Unit::kNumber,
           .of = [](const FinishedStep& s) -> MetricValue {
             return value_of_move(s, &Migrated::rank_imbalance);
           },
           .console = "busiest rank {}",
           .chart = MetricChart::kImbalance,
           .label = "busiest rank"},
    Metric{.name = "migrated_experts",
           .unit = Unit::kCount,
           .of = [](const FinishedStep& s) -> MetricValue {
             return value_of_move(s, &Migrated::experts);
           },
           .console = "moved {} experts, {migrated_bytes} in {rebalance_seconds}"},
    Metric{.name = "migrated_bytes",
           .unit = Unit::kBytes,
           .of = [](const FinishedStep& s) -> MetricValue {
             return value_of_move(s, &Migrated::bytes);
           }},
    Metric{.name = "rebalance_seconds",
           .unit = Unit::kSeconds,
           .of = [](const FinishedStep& s) -> MetricValue {
             return value_of_move(s, &Migrated::seconds);
           }},
    Metric{.name = "predicted_migration_seconds",
           .unit = Unit::kSeconds,
           .of = [](const FinishedStep& s) -> MetricValue {
             const MetricValue seconds = value_of_move(s, &Migrated::predicted_seconds);
             return seconds.value_or(0) > 0 ? seconds : MetricValue();
           }},
};

// A row of the table by its name; one that is not there does not compile.
class MetricName {
 public:
  consteval MetricName(const char* name) : row_(0) {
    while (kMetrics.at(row_).name != name) ++row_;
  }
  size_t row() const { return row_; }

 private:
  size_t row_;
};

struct StepMetrics {
  int64_t step = 0;                                   // counts from 1
  std::array<MetricValue, kMetrics.size()> values{};  // by row; nothing: absent

  const MetricValue& operator[](MetricName name) const { return values[name.row()]; }
  MetricValue& operator[](MetricName name) { return values[name.row()]; }
};

StepMetrics metrics_of(const FinishedStep& step);

// Keys in the table's order. Infinite and NaN become null.
Json to_json(const StepMetrics& metrics);

// "step 12 | loss 3.4123 | grad norm 1.23 | 4567 tokens/s | MFU 23.1 % | peak 512.0 MiB | imbalance
// 1.12", and a further line for each metric that has one of its own.
std::vector<std::string> console_lines(const StepMetrics& metrics);

// Tags and values for TensorBoard.
std::vector<std::pair<std::string, double>> tensorboard_scalars(const StepMetrics& metrics);

// Steps ascend in the result: after a resume the later of two rows of one step counts, and rows
// beyond it are dropped. Only the step is required; keys that are not in the table are ignored. An
// incomplete last line (a run that was killed) is ignored. Null (not finite) reads as absent.
// Throws InvalidInput naming line and key.
std::vector<StepMetrics> parse_metrics(std::string_view text, const std::string& source);

}  // namespace piper::report
