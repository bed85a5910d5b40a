#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/optim/learning_rate.h>

#include <cmath>
#include <numbers>

namespace piper::optim {

double learning_rate(const LearningRateSchedule& schedule, int64_t step) {
  PIPER_CHECK(step >= 1);
  if (step <= schedule.warmup_steps)
    return schedule.peak * static_cast<double>(step) / static_cast<double>(schedule.warmup_steps);
  if (step >= schedule.total_steps) return schedule.minimum;
  const double progress = static_cast<double>(step - schedule.warmup_steps) /
                          static_cast<double>(schedule.total_steps - schedule.warmup_steps);
  return schedule.minimum +
         0.5 * (schedule.peak - schedule.minimum) * (1 + std::cos(std::numbers::pi * progress));
}

std::vector<std::string> problems(const LearningRateSchedule& schedule) {
  std::vector<std::string> lines;
  if (!(schedule.peak > 0 && std::isfinite(schedule.peak)))
    lines.push_back(
        fmt::format("learning rate {}; allowed: a finite number above 0", schedule.peak));
  if (!(schedule.minimum >= 0 && schedule.minimum <= schedule.peak))
    lines.push_back(fmt::format("minimum learning rate {}; allowed: from 0 to the learning rate {}",
                                schedule.minimum, schedule.peak));
  if (schedule.total_steps < 1)
    lines.push_back(fmt::format("{} steps; allowed: at least 1", schedule.total_steps));
  if (schedule.warmup_steps < 0 || schedule.warmup_steps > schedule.total_steps)
    lines.push_back(fmt::format("{} warm-up steps; allowed: from 0 to the number of steps {}",
                                schedule.warmup_steps, schedule.total_steps));
  return lines;
}

}  // namespace piper::optim
