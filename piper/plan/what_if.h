// A machine as it might be: "nics=x2", "memory=x0.5", "device=dgx-h200". What a change buys is the
// best plan there beside the best plan here.
#pragma once

#include <piper/cluster/cluster.h>

#include <string>

namespace piper::plan {

// The changes, one at a time, each "what=how":
//   memory=x0.5 | memory=96GB       of a device (GB: 1e9 bytes, GiB: 2^30)
//   memory_bandwidth=x2             of a device
//   compute=x2                      peak and every measured rate, all precisions
//   nics=x2                         as many NICs on every level that counts them; bandwidth with them
//   bandwidth=x2 | bandwidth.node=x2    of every level, or of one by its name
//   latency=x0.5 | latency.rack=x3
//   device=NAME                     the device of another cluster (compute, memory), network as it is
// Throws InvalidInput naming the change and what is allowed.
cluster::Cluster changed(const cluster::Cluster& cluster, const std::string& change);

}  // namespace piper::plan
