// A routing trace, CSV or JSON. In what is accepted every step has a layer, and a layer's shares
// sum to one.
#include <piper/cost/load_distribution.h>

#include <cmath>
#include <numeric>

#include "fuzz.h"

namespace piper::fuzz {

void fuzz(std::span<const std::byte> bytes) {
  const auto trace = cost::parse_load_trace(std::string(text_of(bytes)), "f");
  FUZZ_CHECK(!trace.empty());
  for (const auto& layers : trace) {
    FUZZ_CHECK(!layers.empty());
    for (const auto& share : layers)
      FUZZ_CHECK(std::abs(std::accumulate(share.begin(), share.end(), 0.0) - 1) < 1e-9);
  }
}

}  // namespace piper::fuzz
