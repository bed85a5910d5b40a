// On which device each rank of a process computes.
#pragma once

#include <piper/base/strong_id.h>
#include <piper/comm/world.h>
#include <piper/nn/aten.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace piper::train {

// Immutable.
class RankDevices {
 public:
  RankDevices() = default;  // on the CPU
  // Rank ranks[i] computes on devices[(first + i) mod their number]. No devices: on the CPU.
  RankDevices(const std::vector<at::Device>& devices, const std::vector<Rank>& ranks,
              int64_t first = 0);

  // A device and its ranks of this process, in the order of the ranks; none on the CPU.
  struct Use {
    at::Device device;
    std::vector<Rank> ranks;
  };
  const std::vector<Use>& uses() const { return uses_; }
  bool is_cpu() const { return uses_.empty(); }

  // Returns the device of a rank of this process. On the CPU it may be any rank; use_of() is for
  // devices.
  at::Device of(Rank rank) const;
  size_t use_of(Rank rank) const;

 private:
  std::vector<Use> uses_;
};

// The ranks of one host take the devices in turn, those of earlier processes first. Every process
// calls it, as World::share; none, or the CPU: on the CPU. Throws CommError, and InvalidInput
// where GPUs of one process cannot read each other's memory (executor/peer_access.h).
RankDevices place_on_devices(comm::World& world, const std::vector<at::Device>& devices);

// This machine's name, or "" where it has none.
std::string host_name();

}  // namespace piper::train
