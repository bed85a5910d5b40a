#include <fmt/format.h>
#include <piper/base/units.h>
#include <piper/train/deviation.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace piper::train {

std::optional<FurthestComponent> furthest_component(const schedule::StepGraph& step,
                                                    const graph::Timeline& predicted,
                                                    const graph::Timeline& measured, Rank rank,
                                                    bool slower) {
  const auto assumed = seconds_by_component(step, predicted, rank);
  const auto found = seconds_by_component(step, measured, rank);
  std::optional<FurthestComponent> furthest;
  double most = 0;
  for (const auto& [name, seconds] : found) {
    const auto it = assumed.find(name);
    const double before = it == assumed.end() ? 0 : it->second;
    const double moved = slower ? seconds - before : before - seconds;
    if (moved <= most) continue;
    most = moved;
    furthest = {name, before, seconds};
  }
  return furthest;
}

std::optional<std::string> DeviationWatch::note(int64_t number, double seconds,
                                                const graph::Timeline& measured) {
  if (bound_ <= 0 || predicted_seconds_ <= 0 || ++num_seen_ <= kWarmUpSteps) return std::nullopt;
  last_.push_back(seconds);
  if (last_.size() > kSteps) last_.pop_front();
  if (last_.size() < kSteps) return std::nullopt;
  std::vector<double> sorted(last_.begin(), last_.end());
  std::ranges::sort(sorted);
  const double median = sorted[kSteps / 2];
  const double deviation = median / predicted_seconds_ - 1;
  const int state = deviation > bound_ ? 1 : deviation < -bound_ ? -1 : 0;
  if (state == state_) return std::nullopt;
  state_ = state;
  std::string line =
      fmt::format("step {}: steps take {}, predicted {} ({:+.0f} %)", number,
                  format_seconds(median), format_seconds(predicted_seconds_), deviation * 100);
  if (state == 0) return line + ", within the bound again";
  if (const auto furthest = furthest_component(step_, predicted_, measured, Rank(0), state > 0))
    line += fmt::format("; most of it on rank 0: {} {}, assumed {}", furthest->name,
                        format_seconds(furthest->measured_seconds),
                        format_seconds(furthest->predicted_seconds));
  return line;
}

}  // namespace piper::train
