// How few devices train a model: memory a device, and what is reached, against their number (Piper
// Fig. 10).
#pragma once

#include <piper/plan/plan.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace piper::plan {

struct DeviceCount {
  int64_t num_devices = 0;
  // The strategy that needs least memory a device, whether it fits or not.
  std::optional<Planned> smallest;
  std::optional<Planned> best;  // the fastest that fits; none = nothing fits
};

struct FewestDevices {
  std::vector<DeviceCount> counts;     // ascending
  std::optional<int64_t> num_devices;  // the fewest that fit; none: not even the last count does
  int64_t memory_limit_bytes = 0;
  // Counts below num_devices that nobody looked at, because there are too many: one of them may be
  // enough.
  int64_t num_not_looked_at = 0;
  bool beyond_cluster =
      false;  // counts go beyond what the cluster has: more of its outermost units
  std::vector<Default> defaults;
};

// The counts that device_walk.h walks. The request's number of devices is not read; its global
// batch, when given, holds for all counts and is otherwise what plan's default gives for each.
// `progress` is told of counts that are planned, and may be empty. Throws InvalidInput as
// make_plan.
FewestDevices fewest_devices(const Request& request,
                             const std::function<void(int64_t num_devices)>& progress = {});

}  // namespace piper::plan
