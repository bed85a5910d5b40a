// The learning rate of a step: linear warm-up, then a cosine down to a minimum (Loshchilov and
// Hutter 2017, one cycle).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace piper::optim {

struct LearningRateSchedule {
  double peak = 3e-4;
  double minimum = 3e-5;
  int64_t warmup_steps = 0;
  int64_t total_steps = 1;  // the minimum is reached at this step and kept after it
};

// `step` counts from 1: peak * step / warmup_steps up to the warm-up's end (so never 0), then the
// cosine.
double learning_rate(const LearningRateSchedule& schedule, int64_t step);

// What is wrong with the schedule, one line each, naming key, value and what is allowed; empty =
// nothing.
std::vector<std::string> problems(const LearningRateSchedule& schedule);

}  // namespace piper::optim
