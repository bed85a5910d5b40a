// Groups of ranks that tests of transports take.
#pragma once

#include <piper/comm/operations.h>

#include <cstdint>

namespace piper::comm {

// All ranks of the transport's world, in their order.
inline Group everyone(const Transport& transport) {
  Group group{.index = transport.rank().value};
  for (int64_t r = 0; r < transport.world_size(); ++r) group.members.emplace_back(r);
  return group;
}

}  // namespace piper::comm
