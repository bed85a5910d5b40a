// The algorithms that `piper bench alltoall` knows, by the names of its --algorithms.
#pragma once

#include <piper/collective/topology.h>
#include <piper/comm/exchange_bench.h>

#include <cstdint>
#include <string>
#include <vector>

namespace piper::cli {

std::vector<std::string> all_to_all_names();

// `chunk_bytes` is for the chunked ones, 0: a quarter of a node's message. `topology` and `count`
// outlive the result. Throws InvalidInput for a name that is none.
comm::Exchange all_to_all(const std::string& name, const collective::Topology& topology,
                          const collective::CountOf& count, int64_t num_ranks, int64_t chunk_bytes);

}  // namespace piper::cli
