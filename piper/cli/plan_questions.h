// What `plan` answers besides the plan itself: --what-if and --min-devices.
#pragma once

#include <piper/cli/plan_answer.h>

namespace piper::cli {

// Each change alone, beside the machine as it is, whose best is plain `plan`'s. The same work
// everywhere: devices, sequence, batch, precision and all that is fixed. With --explain the plan
// here comes first. Returns the exit code: 1 when nothing fits anywhere. Throws InvalidInput.
int answer_what_if(const PlanQuestion& question);

// The fewest devices that any strategy fits on, and memory and the best against their number. 1
// when no number is enough. Throws InvalidInput.
int answer_min_devices(const PlanQuestion& question);

}  // namespace piper::cli
