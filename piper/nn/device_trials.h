// What was found by trying one of libtorch's kernels on a device before it computes: once for each
// device and kind of problem (fused_attention.h, experts_grouped.h).
#pragma once

#include <fmt/format.h>
#include <piper/nn/aten.h>

#include <cstdint>
#include <exception>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

namespace piper::nn {

// Thread-safe.
template <class Problem, class Result>
class DeviceTrials {
 public:
  // The result of `attempt()`, which the first caller makes while others wait. What it throws
  // leaves nothing behind.
  template <class Attempt>
  Result once(const at::Device& device, const Problem& problem, Attempt attempt) {
    const std::unique_lock lock(mutex_);
    const Key key{device.type(), device.index(), problem};
    if (const auto known = found_.find(key); known != found_.end()) return known->second;
    return found_[key] = attempt();
  }

  // Result{} where nothing was tried.
  Result found(const at::Device& device, const Problem& problem) const {
    const std::shared_lock lock(mutex_);
    const auto known = found_.find({device.type(), device.index(), problem});
    return known == found_.end() ? Result{} : known->second;
  }

  // "cuda:0: " and what `line(problem, result)` says, of each.
  template <class Line>
  std::vector<std::string> lines(Line line) const {
    const std::shared_lock lock(mutex_);
    std::vector<std::string> made;
    for (const auto& [key, result] : found_) {
      const auto& [type, index, problem] = key;
      made.push_back(fmt::format("{}: {}", c10::Device(type, index).str(), line(problem, result)));
    }
    return made;
  }

 private:
  using Key = std::tuple<at::DeviceType, at::DeviceIndex, Problem>;
  mutable std::shared_mutex mutex_;
  std::map<Key, Result> found_;
};

// What `attempt()` says; false where it throws, as libtorch does where it has no such kernel. Lack
// of memory is no answer, and neither is a failure that leaves the device unable to compute (an
// access out of bounds ends all its work): both are thrown.
template <class Attempt>
bool succeeds(const at::Device& device, Attempt attempt) {
  try {
    return attempt();
  } catch (const c10::OutOfMemoryError&) {
    throw;
  } catch (const std::exception& error) {
    const std::string why = error.what();
    try {
      at::ones({1}, at::TensorOptions(device)).cpu();
    } catch (const std::exception&) {
      throw std::runtime_error(
          fmt::format("{} computes no more since a kernel was tried on it: {}", device.str(), why));
    }
    return false;
  }
}

// Operands of a trial: numbers from -1 to 1, the same every time.
inline at::Tensor trial_operand(at::IntArrayRef shape, double phase,
                                const at::TensorOptions& options) {
  int64_t n = 1;
  for (const int64_t size : shape) n *= size;
  return at::sin(at::arange(n, at::kDouble) * 12.9898 + phase).view(shape).to(options);
}

}  // namespace piper::nn
