// How few devices train a model, over every axis: the counts of device_walk.h, each answered by the
// least memory that any strategy needs there, before the best of those that fit is searched for.
#pragma once

#include <piper/plan/search.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace piper::plan {

struct DeviceCount {
  int64_t num_devices = 0;
  Candidate smallest;             // needs least memory a device, whether it fits or not
  std::optional<Candidate> best;  // plain plan's; none = nothing fits
};

struct FewestDevices {
  std::vector<DeviceCount> counts;     // ascending
  std::optional<int64_t> num_devices;  // the fewest that fit
  int64_t num_not_looked_at = 0;       // below num_devices
};

// The strategy that needs least memory a device, of all that the request's fixed axes leave. In
// micro-batches of one sequence, with everything offloaded and recomputed in full where that is
// open: nothing else needs less (a test tries all). Throws InvalidInput as search.
Candidate least_memory(const Request& request);

// `request_of` gives the request for a number of devices; counts for which it or the search throws
// InvalidInput are left out, and when all are, the last is thrown. `progress`: of counts that
// anything was left for.
FewestDevices fewest_devices(const cluster::Cluster& extended,
                             const std::function<Request(int64_t num_devices)>& request_of,
                             const std::function<void(int64_t num_devices)>& progress = {});

}  // namespace piper::plan
