// An NCCL communicator of one rank, watched: nothing waits without end for a rank that died, hangs
// or never came.
//
// All calls are non-blocking ones (ncclConfig_t::blocking = 0), which the rank's thread polls: a
// missing rank, an error that NCCL noticed and a failure that the world tells end the wait, abort
// the communicator and become a CommError that names ranks. An aborted communicator stays aborted.
#pragma once

#include <piper/comm/operations.h>
#include <piper/comm/world.h>
#include <piper/nccl/library.h>
#include <piper/nccl/streams.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace piper::nccl {

// What the ranks of one process share about a communicator of theirs: its name in NCCL, and how far
// each has come. Thread-safe.
class Meeting {
 public:
  // `id`: 128 bytes.
  Meeting(std::string what, std::string id, std::vector<Rank> members);

  const std::string& what() const { return what_; }
  const std::string& id() const { return id_; }
  const std::vector<Rank>& members() const { return members_; }

  void come(int64_t member) { executed_[member].store(0, std::memory_order_relaxed); }
  void begin_operation(int64_t member) {
    executed_[member].fetch_add(1, std::memory_order_relaxed);
  }
  int64_t num_begun(int64_t member) const {
    return executed_[member].load(std::memory_order_relaxed);
  }
  // "rank 2, rank 5": the members of this process that have begun fewer operations; "" for none.
  std::string behind(int64_t num_begun, const std::vector<bool>& is_local) const;

 private:
  std::string what_, id_;
  std::vector<Rank> members_;
  std::vector<std::atomic<int64_t>> executed_;  // by member: operations begun; -1: not there
};

// The meeting of a new communicator: its id is made by process 0 and told over the control channel.
// Every process of the world calls it in the same order, as World::share, whether or not it holds
// members. Throws CommError.
std::shared_ptr<Meeting> meet(comm::World& world, const Library& library, const std::string& what,
                              std::vector<Rank> members);

struct CommunicatorOptions {
  int device = 0;
  double connect_timeout_seconds = 60;
};

// It belongs to one rank, whose thread alone calls it. One operation is in flight at a time, and
// all members begin theirs in the same order: a stream knows no other. Independent lanes of a step
// (the exchange of tokens beside the reduction of gradients) need a communicator each.
class Communicator {
 public:
  // Waits until all members are there. `world` (which tells failures) and `library` outlive it.
  // Throws CommError: "rank 0: the communicator 'tokens' of 4 ranks was not complete after 60.0 s;
  // not there: rank 2".
  Communicator(const Library& library, const comm::World& world, std::shared_ptr<Meeting> meeting,
               int64_t member, const CommunicatorOptions& options);
  // Waits for the other members to end, too, a second at most; gives up at once when operations
  // were left unfinished.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  const Library& library() const { return library_; }
  Meeting& meeting() { return *meeting_; }
  int64_t member() const { return member_; }
  Rank rank() const { return meeting_->members()[member_]; }
  ncclComm_t handle() const { return handle_; }
  cudaStream_t messages() const { return messages_.get(); }
  cudaStream_t local() const { return local_.get(); }

  // Events are kept for the next exchange: those of other sizes ask for others each time.
  Event take_event();
  void give_back(Event event) { spare_events_.push_back(std::move(event)); }

  // Whether what was asked of NCCL last has been put into its stream. Throws CommError when NCCL
  // has failed (after aborting).
  bool ready();
  // What the world knows of a rank's failure; "" while there is none.
  std::string failure() const { return comm::failure_of(world_); }
  // Ends whatever is on the way, on this rank.
  void abort();
  bool aborted() const { return handle_ == nullptr; }

  std::vector<bool> local_members() const;  // by member: whether it lives in this process

 private:
  void connect(double timeout_seconds);
  [[noreturn]] void give_up(const std::string& why);

  const Library& library_;
  const comm::World& world_;
  std::shared_ptr<Meeting> meeting_;
  int64_t member_;
  ncclComm_t handle_ = nullptr;
  Stream messages_, local_;
  std::vector<Event> spare_events_;
};

// Sleeps a little longer each time: short waits answer at once, long ones leave the core to others.
class Pause {
 public:
  void operator()();

 private:
  int64_t num_ = 0;
};

}  // namespace piper::nccl
