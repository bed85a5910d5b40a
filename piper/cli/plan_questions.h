// What `plan` answers besides the plan itself: --what-if and --min-devices.
#pragma once

#include <piper/plan/plan.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace piper::cli {

// Each change alone, beside the machine as it is. Returns the exit code: 1 when nothing fits
// anywhere.
int answer_what_if(const plan::Request& request, const std::vector<std::string>& changes,
                   bool json);

int answer_min_devices(const plan::Request& request, bool json);

// What both searches say of --what-if: the best plan of each machine, first that of the machine as
// it is.
struct WhatIfRow {
  std::string change;  // empty: as it is
  bool fits = false;
  double step_seconds = 0, mfu = 0;
  double peak_bytes = 0;  // where nothing fits: of what needs least; 0: there is nothing
  std::string strategy, limits;
};
void print_what_if_table(const std::vector<WhatIfRow>& rows);

// What both searches say of --min-devices. Memory against the limit, ten characters for the limit;
// what lies beyond it is drawn otherwise.
std::string memory_bar(double peak_bytes, double limit_bytes);
// A line, with its end.
std::string fewest_sentence(std::optional<int64_t> fewest, int64_t num_not_looked_at,
                            int64_t own_devices);

}  // namespace piper::cli
