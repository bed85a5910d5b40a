// What decides how a run trains, beside its model, its text and its mesh: batch, sequence, rates
// and their schedule. Every checkpoint holds it, so that a run that goes on says what it changes.
#pragma once

#include <piper/base/json_fwd.h>
#include <piper/train/run_request.h>

#include <cstdint>
#include <string>
#include <vector>

namespace piper::train {

// Keys of TrainState::extra: the settings, and the model's config.json.
inline constexpr const char* kTrainingSettings = "training";
inline constexpr const char* kModelConfig = "config";

// By the flag that sets it, without dashes: {"global-batch": 8, ...}.
Json training_settings(const RunRequest& request);

// "changed: --global-batch is 16 from step 11 on, 8 before", a line for each setting that `now` has
// otherwise than `saved` (of step `step`), and for each that one of them lacks.
std::vector<std::string> changed_settings(const Json& saved, const Json& now, int64_t step);

}  // namespace piper::train
