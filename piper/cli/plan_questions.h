// What `plan` answers besides the plan itself: --what-if and --min-devices.
#pragma once

#include <piper/plan/plan.h>

#include <string>
#include <vector>

namespace piper::cli {

// Each change alone, beside the machine as it is. Returns the exit code: 1 when nothing fits anywhere.
int answer_what_if(const plan::Request& request, const std::vector<std::string>& changes,
                   bool json);

int answer_min_devices(const plan::Request& request, bool json);

}  // namespace piper::cli
