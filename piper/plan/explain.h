// Why not: for each family that is missing from the answer the constraint that killed it and the
// smallest change that would admit it.
#pragma once

#include <piper/plan/search.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace piper::plan {

// Families of which nothing fits in memory (eq. 11), each with what its smallest strategy lacks,
// the least first.
std::vector<Rejected> explain_memory(const Setting& setting, const SearchResult& result,
                                     cost::Estimator& estimator);

// The smallest number of devices of this kind (whole nodes beyond one node) on which the model fits
// at all, with micro-batches of one sequence and recomputation unless the request fixes them;
// nullopt when none up to 64 times as many does. Requires that the request fixes neither pp nor dp.
struct Enough {
  int64_t num_devices = 0;
  Family family;
};
std::optional<Enough> enough_devices(const Setting& setting);

}  // namespace piper::plan
