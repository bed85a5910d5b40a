// Whether a strategy fits into its devices' memory, all of it (the margin is `piper plan`'s): what
// estimate, sim and compare say beside their figures.
#pragma once

#include <piper/base/json_fwd.h>
#include <piper/cluster/cluster.h>

#include <cstdint>
#include <string>

namespace piper::cli {

struct Fit {
  double peak_bytes = 0, memory_bytes = 0;  // of one device
  int64_t stage = 0;                        // the fullest
  bool fits() const { return peak_bytes <= memory_bytes; }
};

Fit memory_fit(const cluster::Cluster& cluster, double peak_bytes, int64_t stage);

// "does not fit: 103.2 GiB of the 80 GiB of a device on stage 0", with its end; "" when it fits.
std::string to_text(const Fit& fit);

// Adds "fits" and "device_memory_bytes".
void add_to(Json& json, const Fit& fit);

}  // namespace piper::cli
