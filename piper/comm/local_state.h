// What the endpoints of a LocalWorld share: mailboxes that match sends with receives, one bell for
// every rank, and the first failure. Internal to local.cpp; thread-safe throughout.
//
//   rank 0: post_send --+                              +-- post_receive :rank 1
//                       +--> mailbox of rank 1 (match) <--+
//            the one who posts second copies, then rings both bells
//
// Locks: a mailbox's mutex is held while looking up, never while copying or ringing; a bell's mutex
// is held while a request changes to its final state. No two are ever held together, except the
// mailboxes' one after the other.
#pragma once

#include <piper/comm/transport.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <tuple>

namespace piper::comm::internal {

enum class Direction : uint8_t { kSend, kReceive };

enum class PostingState : uint8_t {
  kWaiting,     // in the mailbox
  kCopying,     // matched: the buffers are in use by either rank's thread
  kDone,        // final, as the next two
  kMismatched,  // the two sizes differ: `problem` says how
  kWithdrawn,   // given up by its owner
};

// One posted send or receive.
struct Posting {
  Rank owner, peer;
  Direction direction = Direction::kSend;
  OperationName name;
  uint32_t part = 0;
  const std::byte* source = nullptr;
  std::byte* target = nullptr;
  size_t size = 0;
  std::string problem;  // written before kMismatched
  std::atomic<PostingState> state{PostingState::kWaiting};

  Rank sender() const { return direction == Direction::kSend ? owner : peer; }
  Rank receiver() const { return direction == Direction::kSend ? peer : owner; }
  std::string describe() const;  // "receive 'F3 L2 dispatch' from rank 2"
};

struct Failure {
  Rank rank = Rank::none();  // none() while nothing has failed
  std::string reason;
};

class LocalState {
 public:
  explicit LocalState(int64_t num_ranks) : mailboxes_(num_ranks), bells_(num_ranks) {}

  int64_t size() const { return static_cast<int64_t>(bells_.size()); }

  // Claims and gives back a rank: one endpoint each.
  void enter(Rank rank);
  // What the rank left behind fails the world.
  void leave(Rank rank);

  // Matches and copies, or leaves the posting in the mailbox.
  void post(const std::shared_ptr<Posting>& posting);
  // The owner drops it: afterwards nobody touches its buffer. Waits for a copy under way.
  void withdraw(Posting& posting);

  uint64_t wait_completion(Rank rank, uint64_t seen, double timeout_seconds);
  // The first call counts; all of them wake every rank.
  void fail(Rank rank, const std::string& reason);
  Failure failure() const;
  // Throws CommError "rank 1: <context>: rank 2 failed: <reason>" when the world has failed.
  void check(Rank rank, const std::string& context) const;
  bool failed() const { return failed_.load(std::memory_order_acquire); }

  // Every posting without its counterpart: "rank 0: receive 'a' from rank 1; rank 1: ..."; at
  // most 16.
  std::string unmatched() const;

 private:
  using Key = std::tuple<int32_t, uint64_t, uint32_t>;  // sender, key, part
  struct Mailbox {
    mutable std::mutex mutex;
    std::map<Key, std::shared_ptr<Posting>> waiting;
  };
  struct Bell {
    std::mutex mutex;
    std::condition_variable rung;
    uint64_t num_rings = 0;
    bool taken = false;            // an endpoint exists
    std::deque<std::string> left;  // descriptions of unfinished requests that were dropped
  };

  void finish(Posting& posting, PostingState state);

  // deques: neither mutexes nor condition variables can be moved.
  std::deque<Mailbox> mailboxes_;  // by receiver
  std::deque<Bell> bells_;
  std::atomic<bool> failed_{false};
  mutable std::mutex failure_mutex_;
  Failure failure_;
};

}  // namespace piper::comm::internal
