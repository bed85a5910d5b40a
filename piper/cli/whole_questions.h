// What `plan` answers over every axis besides the plan itself: --what-if and --min-devices.
#pragma once

#include <piper/cli/whole_plan.h>

namespace piper::cli {

// Each change alone, beside the machine as it is, whose best is plain `plan`'s. The same work
// everywhere: devices, sequence, batch, precision and all that is fixed. With --explain the plan
// here comes first. Returns the exit code: 1 when nothing fits anywhere. Throws InvalidInput.
int answer_whole_what_if(const WholeQuestion& question);

// The fewest devices that any strategy fits on, and memory and the best against their number. 1
// when no number is enough. Throws InvalidInput.
int answer_whole_min_devices(const WholeQuestion& question);

}  // namespace piper::cli
