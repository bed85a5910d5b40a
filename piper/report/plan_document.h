// A plan as pages show it, read from what `piper plan` prints with --json or writes with --out
// (then a list of one strategy without its rivals). Further keys are ignored; every part may be
// missing.
#pragma once

#include <piper/base/json_fwd.h>
#include <piper/report/gantt.h>
#include <piper/report/strategy_map.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace piper::report {

// By component, in the document's order: "weights and gradients", bytes; "idle", seconds.
using Parts = std::vector<std::pair<std::string, double>>;

struct PlanRow {
  std::string mesh;     // "pp 2 · ep 8 · dp 32"
  std::string further;  // "zero 1 · sequence parallel"; may be empty
  std::string what;     // of a choice: "fastest", "this Piper trains it"
  std::string schedule, recompute;
  int64_t micro_batch_sequences = 0, num_micro_batches = 0;
  std::optional<double> mfu, step_seconds, peak_bytes;
  Parts seconds, bytes;                   // of a step; of the fullest stage
  std::vector<std::string> not_runnable;  // what this Piper's executor lacks
  std::vector<std::string> untrainable;   // of the model, whatever the strategy
  std::vector<std::string> runs_with;     // trainers to which it can be exported, and "piper"
  // Under a load that is less even.
  std::string heavy_load;
  std::optional<double> heavy_step_seconds, heavy_peak_bytes;
  bool fits_heavy_load = false;
  // A run's document says of the strategy that was trained what was measured.
  bool chosen = false;
  std::optional<double> measured_mfu, measured_step_seconds, measured_peak_bytes;
};

struct RejectedFamily {
  std::string family;           // "ep 16"
  std::string constraint;       // what killed it
  std::string smallest_change;  // that would admit it; may be empty
};

struct PlanFamily {
  std::string family, why_it_lost, smallest_change;
  bool wins = false;
  int64_t num_priced = 0;
  std::optional<PlanRow> best, nearest;  // that fits; that lacks least
};

struct FrontPoint {
  double mfu = 0, step_seconds = 0, peak_bytes = 0;
  std::string strategy;
};

struct InputSwing {
  std::string input, value;
  double low_mfu = 0, high_mfu = 0;  // with (1 -+ change) of the input
};

struct RoofPoint {
  std::string part, bound;  // "memory" or "compute"
  int64_t num_layers = 0;
  double flops_per_byte = 0, peak_flops_per_second = 0, attainable_flops_per_second = 0,
         predicted_flops_per_second = 0;
};

struct Roofs {
  double peak_flops_per_second = 0, memory_bytes_per_second = 0;
  std::vector<RoofPoint> points;
};

struct PlanDocument {
  std::string model, cluster, trainer, precision;
  int64_t num_devices = 0, sequence = 0, global_batch_sequences = 0;  // 0 = not stated
  int64_t num_considered = 0;
  std::optional<double> memory_limit_bytes;
  std::vector<std::pair<std::string, std::string>> defaults;  // name, value and why
  std::vector<std::string> notes;
  std::vector<PlanRow> ranked;   // best first
  std::vector<PlanRow> choices;  // the best of each kind, fastest first
  std::vector<PlanFamily> families;
  std::vector<RejectedFamily> rejected;
  std::vector<FrontPoint> front;
  double change = 0;  // of every input, for `swings`
  std::vector<InputSwing> swings;
  std::optional<Roofs> roofs;
  // Not in what `piper plan` prints; who asks for the page adds them.
  std::optional<Gantt> timeline;  // a step of the best, simulated
  std::optional<StrategyMap> map;
};

// The words of a mesh object, {"pp": 2, "ep": 2, "dp": 2} -> "pp 2 · ep 2 · dp 2".
std::string mesh_words(const Json& mesh);

// Throws InvalidInput with all problems; a document without `strategies` and without `mesh` is one.
PlanDocument parse_plan_document(const Json& json, const std::string& source);

}  // namespace piper::report
