// Whether a run can begin as it was requested.
#pragma once

#include <piper/train/run_context.h>

namespace piper::train {

// What the processes must have in common; all else follows from it. All of them call it. Throws
// InvalidInput, CommError.
void require_same_request(const RunContext& run);

// What stands in the way, in this process. Throws InvalidInput, IoError.
void check_request(const RunContext& run);

}  // namespace piper::train
