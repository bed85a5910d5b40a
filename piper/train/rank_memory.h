// The bytes that a rank's tensors take: on the CPU those that its own allocations count
// (nn/counting_allocator.h), on a device what libtorch's allocator of the device says was asked of
// it since the run began, divided among the ranks that share the device. What a product's library
// takes for itself counts for nobody, there (cuBLAS: 32 MiB a stream on Hopper) as on the CPU.
//
// Thread safety: as what it asks.
#pragma once

#include <piper/base/strong_id.h>
#include <piper/nn/aten.h>
#include <piper/train/rank_devices.h>

#include <cstdint>
#include <iterator>
#include <vector>

namespace piper::train {

// What is asked of a device's allocator at present.
int64_t held_bytes(at::Device device);

class RankMemory {
 public:
  // On the CPU.
  explicit RankMemory(Rank rank) : ranks_{rank} {}
  // On a device that `use.ranks` share. `at_start`: what it held when they had nothing but what
  // their libraries keep; it outlives this object.
  RankMemory(Rank rank, const RankDevices::Use& use, const int64_t* at_start)
      : ranks_(use.ranks), device_(use.device), at_start_(at_start) {
    if (ranks_.front() != rank) watches_for_ = {rank};
  }

  int64_t live_bytes() const;
  int64_t peak_bytes() const;  // since reset_peak()
  // A device has one peak for all its ranks: the first of them resets it, and what that one reads
  // before it does so again is the peak of all. What another reads may be of the next step.
  void reset_peak() const;
  const std::vector<Rank>& reads_for() const { return is_first() ? ranks_ : watches_for_; }

 private:
  bool is_first() const { return watches_for_.empty(); }
  int64_t share_of(int64_t requested) const {
    return (requested - (at_start_ == nullptr ? 0 : *at_start_)) / std::ssize(ranks_);
  }

  std::vector<Rank> ranks_, watches_for_;
  at::Device device_ = at::Device(at::kCPU);
  const int64_t* at_start_ = nullptr;
};

// What a device has left for new tensors; throws std::runtime_error where libtorch does not say.
int64_t free_bytes(at::Device device);

}  // namespace piper::train
