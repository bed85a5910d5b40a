// The algorithms of `piper bench alltoall --algorithms`: those of strategy::AllToAll, by name.
// Those that cut messages may be followed by the largest size of a piece: "halo:64K".
#pragma once

#include <piper/collective/topology.h>
#include <piper/comm/exchange_bench.h>

#include <cstdint>
#include <string>
#include <vector>

namespace piper::cli {

std::vector<std::string> all_to_all_names();

// `topology` and `count` outlive the result. Throws InvalidInput for a name that is none.
comm::Exchange all_to_all(const std::string& name, const collective::Topology& topology,
                          const collective::CountOf& count);

// "4096", "4K", "16M", "1G" (powers of 1024); a problem and `min` when it is none, or outside.
int64_t read_bytes(const std::string& flag, const std::string& text, int64_t min, int64_t max,
                   std::vector<std::string>* problems);

}  // namespace piper::cli
