// The bytes that a rank's tensors take: on the CPU those that its own allocations count
// (nn/counting_allocator.h), on a device what libtorch's allocator of the device says was asked of
// it since the run began, divided among the ranks that share the device. What a product's library
// takes for itself counts for nobody, there (cuBLAS: 32 MiB a stream on Hopper) as on the CPU.
//
// Thread safety: as what it asks.
#pragma once

#include <piper/base/strong_id.h>
#include <piper/nn/aten.h>

#include <cstdint>

namespace piper::train {

// What is asked of a device's allocator at present.
int64_t held_bytes(at::Device device);

class RankMemory {
 public:
  // `sharing`: ranks on the same device. `at_start`: what the device held when they had nothing but
  // what their libraries keep; it outlives this object.
  RankMemory(Rank rank, at::Device device, int64_t sharing, const int64_t* at_start)
      : rank_(rank), device_(device), sharing_(sharing), at_start_(at_start) {}

  int64_t live_bytes() const;
  int64_t peak_bytes() const;  // since reset_peak()
  void reset_peak() const;

 private:
  int64_t share_of(int64_t requested) const {
    return (requested - (at_start_ == nullptr ? 0 : *at_start_)) / sharing_;
  }

  Rank rank_;
  at::Device device_;
  int64_t sharing_;
  const int64_t* at_start_;
};

// What a device has left for new tensors; throws std::runtime_error where libtorch does not say.
int64_t free_bytes(at::Device device);

}  // namespace piper::train
