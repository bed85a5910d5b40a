// Lowers one rank's items (actions with their transfers) to tasks.
#pragma once

#include <piper/schedule/action.h>
#include <piper/schedule/writer.h>

namespace piper::schedule {

// Returns the phase of an action's tasks. Thread-safe.
graph::Phase phase_of(Action::Kind kind);

// Writes all tasks of `rank` into `step`.
void write_rank(StepWriter& step, Rank rank);

}  // namespace piper::schedule
