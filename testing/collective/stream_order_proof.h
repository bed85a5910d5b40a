// Proves that the programmes of streams (collective/stream_order.h) execute, without running them.
#pragma once

#include <piper/collective/stream_order.h>

#include <string>
#include <vector>

namespace piper::collective {

// Executes the programmes of all members and says what is wrong, one line each; empty = proven.
// Asks nothing of how they were made: every step that moves something is issued once, all that
// `after` says is kept by lanes and events, the k-th send of a pair meets a receive of the same
// part and size, what two members have for each other in one group of the one is in one group of
// the other, and nobody waits in a circle although no send ends before its receive has started.
std::vector<std::string> problems(const std::vector<MemberSteps>& members,
                                  const std::vector<StreamOrder>& orders);

}  // namespace piper::collective
