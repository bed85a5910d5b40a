// What `plan` answers besides the plan itself: --what-if and --min-devices.
#pragma once

#include <piper/plan/plan.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace piper::cli {

// Each change alone, beside the machine as it is. Returns the exit code: 1 when nothing fits anywhere.
int answer_what_if(const plan::Request& request, const std::vector<std::string>& changes,
                   bool json);

int answer_min_devices(const plan::Request& request, bool json);

// What both searches say of --min-devices. Memory against the limit, ten characters for the limit; what lies beyond it is drawn
// otherwise.
std::string memory_bar(double peak_bytes, double limit_bytes);
// A line, with its end.
std::string fewest_sentence(std::optional<int64_t> fewest, int64_t num_not_looked_at,
                            int64_t own_devices);

}  // namespace piper::cli
