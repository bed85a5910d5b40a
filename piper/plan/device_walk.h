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
// row fit. Then the numbers of whole nodes below the first that fits (below a node: of devices),
// for which `could_fit` holds: first those above the last that did not fit, then smaller ones, since
// what divides the axes well may fit where more devices do not. Where none of the steps fits, all
// that the cluster has as it was before extended(). `could_fit` is cheap and never false for a count
// that fits; `fits` is asked once a count, of at most 64 in each of these ranges; nullopt: the count
// could not be looked at. Returns how many counts below the fewest that could fit nobody looked at.
int64_t walk_device_counts(const cluster::Cluster& extended,
                           const std::function<bool(int64_t num_devices)>& could_fit,
                           const std::function<std::optional<bool>(int64_t num_devices)>& fits);

}  // namespace piper::plan
