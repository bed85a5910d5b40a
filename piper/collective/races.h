// Finds two steps of one member that touch the same place, at least one of them writing, without
// being ordered by `after`.
#pragma once

#include <piper/collective/steps.h>

#include <string>
#include <vector>

namespace piper::collective {

bool has_source(StepKind kind);
bool has_target(StepKind kind);
bool moves_rows(StepKind kind);

// "steps 3 and 7 race", one line each. Requires blocks inside their buffers and `after` that point
// back. Time grows with the number of steps and of places that two steps share.
std::vector<std::string> races(const MemberSteps& member);

}  // namespace piper::collective
