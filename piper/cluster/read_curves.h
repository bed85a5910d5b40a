// The part of parse_cluster() that reads curves: grids of rates, and curves point by point.
#pragma once

#include <piper/base/json_fwd.h>
#include <piper/cluster/cluster.h>

#include <string>
#include <vector>

namespace piper::cluster {

inline constexpr double kMaxRate = 1e24;  // FLOP/s or bytes/s: far beyond any machine

// {"m": [...], "n": [...], "k": [...], "values": [... row-major, the last axis fastest]} under
// `key`; empty when it is absent. A hole (null) is a problem.
Grid parse_grid(ObjectReader& parent, const std::string& key, const std::vector<std::string>& axes);

// The list under "curves".
std::vector<Curve> parse_curves(ObjectReader& parent);

}  // namespace piper::cluster
