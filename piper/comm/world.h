// All ranks of a run, as one of its processes sees them: those that live here, and what became of
// the others.
//
// Implementations: local.h (every rank a thread of this process), process_world.h (several
// processes).
#pragma once

#include <piper/comm/transport.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace piper::comm {

// Thread-safe but for share(). Endpoints may outlive the world they came from; those of several
// processes fail then.
class World {
 public:
  virtual ~World() = default;

  virtual int64_t size() const = 0;                   // ranks in all
  virtual std::vector<Rank> local_ranks() const = 0;  // that live in this process, ascending
  virtual int64_t process() const = 0;                // 0 ...; process 0 holds rank 0
  virtual int64_t num_processes() const = 0;

  // The endpoint of a local rank; at most one at a time (InternalError). Requests dropped before
  // they are done are withdrawn: their buffers are not touched afterwards. So drop a request before
  // its buffer. An endpoint that goes while, or after, requests were dropped unfinished fails the
  // world: "left with 2 unfinished requests, ...".
  virtual std::unique_ptr<Transport> endpoint(Rank rank) = 0;

  // The first failure that is known here; rank none() while there is none. A failed world stays
  // failed.
  virtual Rank failed_rank() const = 0;
  virtual std::string failure_reason() const = 0;
  virtual Fault failure_fault() const = 0;

  // Every process's text, by process. All processes call it in the same order with the same `what`;
  // throws CommError that names who is missing after a bounded wait. All texts together stay below
  // 64 MB. Only the process's main thread calls it, before or after run_ranks.
  virtual std::vector<std::string> share(const std::string& what, const std::string& text) = 0;

  // What a local rank is doing, for messages about ranks that die or hang. Cheap: meant to be
  // called for every task.
  virtual void note(Rank rank, int64_t step, std::string_view operation) = 0;
};

// "" while no failure is known here; else a sentence: "rank 3 (host a, pid 7) ..." or "rank 3
// failed: ...". Thread-safe.
std::string failure_of(const World& world);

// Runs `body` once for every local rank of `world`, each in a thread of its own, and returns when
// all of them have ended. When a body throws, the other ranks' calls throw CommError, in all
// processes; then the exception of the rank that failed first is rethrown here, or a CommError with
// its reason when it lives in another process.
void run_ranks(World& world, const std::function<void(Transport&)>& body);

}  // namespace piper::comm
