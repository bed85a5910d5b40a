#include <piper/runtime/player.h>
#include <piper/runtime/reference_layers.h>
#include <piper/train/speed_check.h>

#include <algorithm>

namespace piper::train {
namespace {

constexpr int kRepeats = 6;

double median(std::vector<double> values) {
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::ranges::nth_element(values, middle);
  return *middle;
}

}  // namespace

SpeedCheck::SpeedCheck(const cluster::Cluster& cluster, strategy::Precision precision)
    : precision_(precision) {
  const auto found = cluster.numbers.find(runtime::reference_pass_name(precision));
  if (found != cluster.numbers.end()) profiled_seconds_ = found->second;
}

void SpeedCheck::measure(Window window, runtime::Cores& cores) {
  if (!possible()) return;
  runtime::ReferenceLayers layers(precision_, runtime::kReferencePassSequences);
  for (int repeat = 0; repeat <= kRepeats; ++repeat) {
    const runtime::Cores::Hold core(cores);
    const double start = runtime::now_seconds();
    layers.run();
    const double seconds = runtime::now_seconds() - start;
    if (repeat == 0) continue;  // first touch
    const std::lock_guard lock(mutex_);
    seconds_[static_cast<size_t>(window)].push_back(seconds);
  }
}

std::optional<double> SpeedCheck::slowdown() const {
  double sum = 0;
  int windows = 0;
  for (const std::vector<double>& seconds : seconds_) {
    if (seconds.empty()) continue;
    sum += median(seconds);
    ++windows;
  }
  if (windows == 0) return std::nullopt;
  return sum / windows / profiled_seconds_;
}

}  // namespace piper::train
