// The algorithms of `piper bench alltoall --algorithms`: those of strategy::AllToAll, by name.
// Those that cut messages may be followed by the largest size of a piece: "halo:64K".
#pragma once

#include <bench/exchanges.h>
#include <piper/collective/topology.h>

#include <string>
#include <vector>

namespace piper::cli {

std::vector<std::string> all_to_all_names();

// `topology` and `count` outlive the result. Throws InvalidInput for a name that is none.
comm::Exchange all_to_all(const std::string& name, const collective::Topology& topology,
                          const collective::CountOf& count);

}  // namespace piper::cli
