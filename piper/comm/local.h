// The embedded transport: every rank is a thread of one process. No launcher, no network, no
// progress thread: of a send and its receive the one posted second copies, so a transfer goes on
// while its other rank computes. Waiting sleeps (two cores may carry eight ranks).
#pragma once

#include <piper/comm/transport.h>

#include <functional>
#include <memory>
#include <string>

namespace piper::comm {

namespace internal {
class LocalState;
}

// Thread-safe. Endpoints may outlive the world they came from.
class LocalWorld {
 public:
  explicit LocalWorld(int64_t num_ranks);  // >= 1

  int64_t size() const;

  // The endpoint of a rank; at most one at a time (InternalError). Requests dropped before they are
  // done are withdrawn: their buffers are not touched afterwards. So drop a request before its
  // buffer. An endpoint that goes while, or after, requests were dropped unfinished fails the
  // world: "left with 2 unfinished requests, ...".
  std::unique_ptr<Transport> endpoint(Rank rank);

  // The first failure; rank none() while there is none. A failed world stays failed.
  Rank failed_rank() const;
  std::string failure_reason() const;

 private:
  std::shared_ptr<internal::LocalState> state_;
};

// Runs `body` once for every rank of `world`, each in a thread of its own, and returns when all
// have ended. When a body throws, the others' calls throw CommError; then the exception of the rank
// that failed first is rethrown here.
void run_ranks(LocalWorld& world, const std::function<void(Transport&)>& body);

}  // namespace piper::comm
