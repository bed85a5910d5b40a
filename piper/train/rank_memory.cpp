#include <c10/core/CachingDeviceAllocator.h>
#include <piper/nn/counting_allocator.h>
#include <piper/train/rank_memory.h>

namespace piper::train {
namespace {

// Returns what was asked of all the allocator's pools together.
c10::CachingAllocator::Stat requested(at::Device device) {
  return at::getDeviceAllocator(device.type())->getDeviceStats(device.index()).requested_bytes[0];
}

}  // namespace

int64_t held_bytes(at::Device device) { return requested(device).current; }

int64_t RankMemory::live_bytes() const {
  return device_.is_cpu() ? nn::live_bytes(ranks_.front()) : share_of(requested(device_).current);
}

int64_t RankMemory::peak_bytes() const {
  return device_.is_cpu() ? nn::peak_bytes(ranks_.front()) : share_of(requested(device_).peak);
}

void RankMemory::reset_peak() const {
  if (device_.is_cpu())
    nn::reset_peak(ranks_.front());
  else if (is_first())
    at::getDeviceAllocator(device_.type())->resetPeakStats(device_.index());
}

int64_t free_bytes(at::Device device) {
  return static_cast<int64_t>(
      at::getDeviceAllocator(device.type())->getMemoryInfo(device.index()).first);
}

}  // namespace piper::train
