// A machine that is slower, or faster, than its description says: what a run that measures itself
// knows of it.
#pragma once

#include <piper/cluster/cluster.h>

#include <vector>

namespace piper::cluster {

// A copy whose devices compute `compute` times as long, and whose links of level i take links[i]
// times as long for every message (latency and bandwidth alike; missing levels: 1). All > 0. Peaks
// stay, and with them what MFU is measured against; measured points (`curves`) and what copies to
// the host take stay too.
Cluster slowed(const Cluster& cluster, double compute, const std::vector<double>& links);

}  // namespace piper::cluster
