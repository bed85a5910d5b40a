// Prices every row of a file of measured runs and says how far off each is: the planner's
// predictions held against published steps, misses included.
//
// A row that a trainer's constant was fitted to ("calibration_row") stays out of the statistics. A
// row is left out only for a field that is missing or not understood, or an unknown device, which
// it names.
#pragma once

#include <piper/base/json_fwd.h>
#include <piper/validate/interpret.h>
#include <piper/validate/measured_row.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace piper::validate {

struct PricedRow {
  MeasuredRow row;
  std::string not_priced_because;  // "" = priced
  double predicted_value = 0;      // in the row's unit
  double predicted_seconds = 0, predicted_bytes = 0;
  double step_error = 0;      // of the step's time that the value implies: predicted / measured - 1
  double relative_error = 0;  // predicted / measured - 1; 0 for fit rows without a figure
  std::vector<std::string> assumed_fields;
  bool calibration_row = false, is_memory = false, is_moe = false;
  std::string predicted_outcome;  // fit rows: "ran" or "oom"
  std::string trainer, device, precision;
  std::string asked_trainer;  // of price_rows()
  bool is_priced() const { return not_priced_because.empty(); }
};

// By `trainer`, or where it is "" each by the one that its source names.
std::vector<PricedRow> price_rows(const std::vector<MeasuredRow>& rows,
                                  const std::function<void(int64_t done)>& progress = {},
                                  const std::string& trainer = "");

// It summarises absolute values of the relative errors of step time (rates and utilisations count
// by the time that they imply), or of memory.
struct Errors {
  int64_t count = 0;
  double median = 0, mean = 0, worst = 0;
};
Errors errors_of(const std::vector<const PricedRow*>& rows);

// Does the row state every field that decides time?
bool states_every_field(const MeasuredRow& row);

std::vector<std::pair<std::string, Errors>> leave_one_source_out(
    const std::vector<const PricedRow*>& rows);
// The row priced with a constant that no row of `source` was fitted to.
PricedRow reprice_without(const PricedRow& row, const std::string& source);

// The compute efficiency with which a row of step time would be predicted exactly, by bisection;
// nullopt where none between 0.05 and 5 does (communication alone takes longer), and for rows of
// memory.
std::optional<double> exact_efficiency(const PricedRow& row);

struct FitCounts {
  int64_t ran = 0, ran_called_feasible = 0, oom = 0, oom_called_infeasible = 0;
};

struct Summary {
  int64_t num_rows = 0, num_priced = 0, num_grade_a = 0, num_grade_a_priced = 0,
          num_calibration = 0;
  Errors time_stated, time_assumed, time_moe, time_dense, memory;
  int64_t memory_beyond_tenth = 0;
  // Groups of step-time errors: by "source", "hardware", "family", "precision", "trainer".
  std::map<std::string, std::vector<std::pair<std::string, Errors>>> groups;
  // Leave one source out: errors of a source's rows when no constant was fitted to its own rows
  // (the trainer's constant from other sources, or none).
  std::vector<std::pair<std::string, Errors>> leave_one_out;
  FitCounts fit;
};
Summary summarise(const std::vector<PricedRow>& rows);

Json to_json(const PricedRow& row);
Json to_json(const Summary& summary);

}  // namespace piper::validate
