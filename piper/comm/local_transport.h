// One rank's endpoint on a LocalState. Internal to the worlds.
#pragma once

#include <piper/comm/local_state.h>
#include <piper/comm/transport.h>

#include <memory>

namespace piper::comm::internal {

// Claims `rank` (InternalError when it has an endpoint already) until the endpoint goes.
std::unique_ptr<Transport> make_local_transport(std::shared_ptr<LocalState> state, Rank rank);

}  // namespace piper::comm::internal
