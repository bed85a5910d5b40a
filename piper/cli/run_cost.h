// What a training run of so many tokens takes at a step's speed: days, GPU-hours and money.
#pragma once

#include <piper/base/json_fwd.h>
#include <piper/cli/subcommand.h>
#include <piper/plan/prediction.h>

#include <cstdint>
#include <string>

namespace piper::cli {

struct RunCostFlags {
  std::string tokens;  // "15T"; "" = not given
  std::string price;   // of a device for an hour, in any currency; "" = not given
};

// Declares --tokens and --price; `flags` outlives `command`.
void add_run_cost_flags(Subcommand command, RunCostFlags& flags);

struct RunCost {
  double tokens = 0;
  double price = -1;  // of a device for an hour; below 0: not given
  bool is_asked() const { return tokens > 0; }
};

// Reads both: --tokens as a number with K, M, B or T behind it (10^3 to 10^12), --price as one that
// is not below 0. Throws InvalidInput, also for a price without tokens.
RunCost run_cost_of(const RunCostFlags& flags);

// "15.0 T tokens: 41.2 days, 2.03 M device-hours, 4.05 M at 2 an hour"
std::string to_text(const RunCost& cost, const plan::Prediction& prediction, int64_t num_devices);
// {"tokens", "days", "device_hours", "cost"}
Json to_json(const RunCost& cost, const plan::Prediction& prediction, int64_t num_devices);

}  // namespace piper::cli
