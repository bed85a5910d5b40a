// In which order numbers of devices are looked at for the fewest that train a model: what both
// searches share.
#pragma once

#include <piper/cluster/cluster.h>

#include <cstdint>
#include <functional>
#include <optional>

namespace piper::plan {

// The cluster with as many units of its outermost level as the walk may ask for; one of a single
// level as it is.
cluster::Cluster extended(cluster::Cluster cluster);

// One device, two, four, ... a node, then 1, 2, 3, 4, 6, 8, 12, ... nodes, until three counts in a
// row fit; then whatever lies between the last count that does not fit and the first that does, as
// far as whole nodes go. `fits` is asked once a count; nullopt: the count could not be looked at.
// Returns how many counts below the fewest nobody looked at, because there are too many.
int64_t walk_device_counts(const cluster::Cluster& cluster,
                           const std::function<std::optional<bool>(int64_t num_devices)>& fits);

}  // namespace piper::plan
