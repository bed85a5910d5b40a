// The bytes that a rank's tensors take: on the CPU those that its own allocations count
// (nn/counting_allocator.h), on a device what libtorch's allocator of the device says was asked of
// it, divided among the ranks that share the device.
//
// Thread safety: as what it asks.
#pragma once

#include <piper/base/strong_id.h>
#include <piper/nn/aten.h>

#include <cstdint>

namespace piper::train {

class RankMemory {
 public:
  // `sharing`: ranks on the same device.
  RankMemory(Rank rank, at::Device device, int64_t sharing)
      : rank_(rank), device_(device), sharing_(sharing) {}

  int64_t live_bytes() const;
  int64_t peak_bytes() const;  // since reset_peak()
  void reset_peak() const;

 private:
  Rank rank_;
  at::Device device_;
  int64_t sharing_;
};

// What a device has left for new tensors; throws std::runtime_error where libtorch does not say.
int64_t free_bytes(at::Device device);

}  // namespace piper::train
