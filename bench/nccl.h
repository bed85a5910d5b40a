// Where `piper bench alltoall --transport nccl` executes its exchanges. One of nccl.cpp and
// without_nccl.cpp is linked.
#pragma once

#include <bench/exchanges.h>

#include <functional>
#include <memory>

namespace piper::cli {

// Opens NCCL and the CUDA runtime and brings the ranks of `world` together, `num_uses` times: so
// often each rank may call what is returned. All processes call it; `world` outlives what it
// returns. A rank's device is its place among the ranks of its host. Throws InvalidInput where a
// library is missing, where a host has fewer devices than ranks, or when this Piper was built
// without the headers.
std::function<std::unique_ptr<comm::DeviceExchanges>(const comm::Transport&)> open_nccl(
    comm::World& world, size_t num_uses);

}  // namespace piper::cli
