// Whether a run fits into this machine's memory: asked before anything is measured or allocated.
#pragma once

#include <piper/base/strong_id.h>
#include <piper/model/model.h>
#include <piper/strategy/strategy.h>
#include <piper/train/available_memory.h>
#include <piper/train/rank_devices.h>

#include <cstdint>
#include <filesystem>
#include <vector>

namespace piper::train {

// Bytes of several ranks together.
struct NeededMemory {
  int64_t state = 0;  // weights, gradients, optimizer
  int64_t activations =
      0;             // and buffers, at the peak of each rank, with an even load of the experts
  int64_t host = 0;  // of what lives with the host, beside these
  int64_t total() const { return state + activations; }
};

// Exact bytes (cost/memory.h), which depend on no cluster. Requires a strategy without
// contradictions (strategy::contradictions).
NeededMemory needed_memory(const model::Model& model, const strategy::Strategy& strategy,
                           const std::vector<Rank>& ranks);

// Throws InvalidInput when `ranks`, which are those of this process, need more than `available`
// bytes.
void require_memory(const model::Model& model, const strategy::Strategy& strategy,
                    const std::vector<Rank>& ranks, int64_t available = available_memory_bytes());

// Likewise of what lives with the host, where `free` bytes are left: in files of this folder or,
// where it is empty, in the host's memory. Files for nothing are refused as well.
void require_host_memory(const model::Model& model, const strategy::Strategy& strategy,
                         const std::vector<Rank>& ranks, const std::filesystem::path& folder,
                         int64_t free);

// The same where the ranks compute, each device by what it has left.
void require_memory_of(const model::Model& model, const strategy::Strategy& strategy,
                       const std::vector<Rank>& ranks, const RankDevices& devices);

}  // namespace piper::train
