// The exchanges of comm/exchange_bench.h on device buffers over NCCL.
#pragma once

#include <bench/exchanges.h>
#include <piper/comm/world.h>

#include <cstdint>
#include <memory>

namespace piper::nccl {

class Library;
class Meeting;

// Makes the exchanges of one rank, `member` of the meeting, on `device`. Waits until all members
// are there; `world` outlives the result. Exchanges that add or move rows are refused
// (InternalError). Throws CommError.
std::unique_ptr<comm::DeviceExchanges> make_bench_exchanges(std::shared_ptr<const Library> library,
                                                            const comm::World& world,
                                                            std::shared_ptr<Meeting> meeting,
                                                            int64_t member, int device);

}  // namespace piper::nccl
