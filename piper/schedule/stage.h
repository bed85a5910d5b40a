// Lowers one rank's items (actions with their transfers) to tasks.
#pragma once

#include <piper/schedule/writer.h>

namespace piper::schedule {

// Writes all tasks of `rank` into `step`.
void write_rank(StepWriter& step, Rank rank);

}  // namespace piper::schedule
