// What the endpoints of a LocalWorld share: mailboxes that match sends with receives, one bell for
// every rank, and the first failure. Internal to the worlds; thread-safe throughout.
//
//   rank 0: post_send --+                              +-- post_receive :rank 1
//                       +--> mailbox of rank 1 (match) <--+
//            the one who posts second copies, then rings the bell of whoever can go on
//
// A long message is copied by whichever of the two comes to wait first (SharedCopy): otherwise the
// last rank of an exchange would copy for all that wait for it, and write their buffers from the
// wrong core.
//
// Locks: a mailbox's mutex is held while looking up, never while copying or ringing; a bell's mutex
// is held while a request changes to its final state. No two are ever held together, except the
// mailboxes' one after the other.
#pragma once

#include <piper/comm/pool_allocator.h>
#include <piper/comm/transport.h>

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace piper::comm::internal {

enum class Direction : uint8_t { kSend, kReceive };

enum class PostingState : uint8_t {
  kWaiting,     // in the mailbox, or offered to another process
  kCopying,     // matched: the buffers are in use by either rank's thread, or by a wire
  kDone,        // final, as the next two
  kMismatched,  // the two sizes differ: `problem` says how
  kWithdrawn,   // given up by its owner
};

// It holds what has come so far of a send that was posted in another process.
struct Arrival {
  int64_t process = 0;
  uint64_t id = 0;               // the sender's number of the message
  bool payload_follows = false;  // once it is matched; otherwise the payload came along
  std::vector<std::byte> held;   // the payload that came along, while nobody has posted the receive
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
  std::unique_ptr<Arrival> arrival;  // null unless the send was posted in another process
  std::string problem;               // written before kMismatched
  Completions* completions =
      nullptr;  // under the owner's bell, as the next one: who wants to know of the end
  int32_t number = 0;
  std::atomic<PostingState> state{PostingState::kWaiting};

  Rank sender() const { return direction == Direction::kSend ? owner : peer; }
  Rank receiver() const { return direction == Direction::kSend ? peer : owner; }
  std::string describe() const;  // "receive 'F3 L2 dispatch' from rank 2"
};

// A matched pair that either rank's thread may copy; both postings are kCopying until one has.
struct SharedCopy {
  SharedCopy(std::shared_ptr<Posting> from, std::shared_ptr<Posting> to)
      : send(std::move(from)), receive(std::move(to)) {}
  std::shared_ptr<Posting> send, receive;
  std::atomic<bool> taken{false};
};

struct Failure {
  Rank rank = Rank::none();  // none() while nothing has failed
  std::string reason;
  Fault fault = Fault::kRun;
};

// Says "rank 2 failed: out of memory", or "rank 2 failed: wrong input: ...". A reason that names
// who itself ("rank 2 (host a, pid 7) died") is taken as it is.
std::string sentence(const Failure& failure);

// Where the ranks of other processes are: what a LocalState calls for them, never with a lock held.
class RemoteSide {
 public:
  virtual ~RemoteSide() = default;
  virtual bool is_local(Rank rank) const = 0;
  // Takes over a send to a rank elsewhere; calls finish() in the end.
  virtual void send(const std::shared_ptr<Posting>& send) = 0;
  // Gives such a send up while its buffer is not in use; false when it is too late (or over).
  virtual bool withdraw(Posting& send) = 0;
  // A send from elsewhere, whose payload follows, has met its receive: calls finish() on the
  // receive in the end, or repost() when the sender gave up.
  virtual void fetch(const Posting& arrived, const std::shared_ptr<Posting>& receive) = 0;
  // The payload of a send from elsewhere was taken.
  virtual void consumed(const Posting& arrived) = 0;
  // A send from elsewhere met a receive of another size; `arrived.problem` is for the sender.
  virtual void refuse(const Posting& arrived) = 0;
  // Receives posted here whose senders are elsewhere: more (or fewer) of them wait.
  virtual void expect(int64_t more) = 0;
  virtual std::vector<std::shared_ptr<Posting>> unfinished_sends() const = 0;
  virtual void failed(const Failure& failure) = 0;  // called once
};

class LocalState {
 public:
  // Every rank lives here unless `remote` says otherwise, which outlives this object.
  explicit LocalState(int64_t num_ranks, RemoteSide* remote = nullptr);

  int64_t size() const { return static_cast<int64_t>(bells_.size()); }
  // For the rank's postings and requests.
  const Pool& pool(Rank rank) const { return pools_[rank.index()]; }

  // Claims and gives back a rank: one endpoint each.
  void enter(Rank rank);
  // What the rank left behind fails the world.
  void leave(Rank rank);

  // Matches and copies, or leaves the posting in the mailbox. Posted twice is an InternalError.
  void post(const std::shared_ptr<Posting>& posting);
  // Posts a matched receive again, whose sender gave up.
  void repost(const std::shared_ptr<Posting>& receive);
  // Gives a posting its final state and wakes its owner, unless its Completions say that it has
  // nothing to do yet.
  void finish(Posting& posting, PostingState state);
  // The owner wants to know when its state is final: Request::tell.
  void tell(Posting& posting, Completions& completions, int32_t number);
  // The owner drops it: afterwards nobody touches its buffer. Waits for a copy under way.
  void withdraw(Posting& posting);

  uint64_t wait_completion(Rank rank, uint64_t seen, double timeout_seconds);
  void wake(Rank rank);
  // The first call counts; all of them wake every rank.
  void fail(Rank rank, const std::string& reason, Fault fault = Fault::kRun);
  Failure failure() const;
  // Throws MessageError "rank 1: send 'x' to rank 2, 8 bytes: rank 2 failed: <reason>" when the
  // world has failed.
  void check(const Posting& posting) const;
  bool failed() const { return failed_.load(std::memory_order_acquire); }

  // Every posting without its counterpart: "rank 0: receive 'a' from rank 1; rank 1: ..."; at
  // most 16.
  std::string unmatched() const;

 private:
  using Key = std::tuple<int32_t, uint64_t, uint32_t>;  // sender, key, part
  using Waiting = std::pair<const Key, std::shared_ptr<Posting>>;
  struct Mailbox {
    explicit Mailbox(const Pool& pool) : waiting(PoolAllocator<Waiting>(pool)) {}
    mutable std::mutex mutex;
    std::map<Key, std::shared_ptr<Posting>, std::less<>, PoolAllocator<Waiting>> waiting;
  };
  struct Bell {
    std::mutex mutex;
    std::condition_variable rung;
    uint64_t num_rings = 0;
    std::atomic<uint64_t> num_events{0};              // whatever a waiting thread has to look at
    std::vector<std::shared_ptr<SharedCopy>> copies;  // for this rank to do, if the other has not
    bool taken = false;                               // an endpoint exists
    bool withdraws = false;                           // its thread waits for one message's end
    std::deque<std::string> left;  // descriptions of unfinished requests that were dropped
  };

  // What has failed, for a rank that was doing this.
  std::string failure_for(Rank rank, const std::string& context) const;
  // Changes what the bell's mutex protects, and wakes whoever waits there if that says so.
  template <class Change>
  static void rouse(Bell& bell, Change change);
  void ring(Rank rank);
  bool look(Bell& bell, std::unique_lock<std::mutex>& lock) const;
  // Whether a core has none of this process's ranks to run.
  bool has_idle_core() const { return num_busy_.load(std::memory_order_relaxed) < num_cores_; }
  std::shared_ptr<Posting> match(const std::shared_ptr<Posting>& posting);
  void transfer(const std::shared_ptr<Posting>& send, const std::shared_ptr<Posting>& receive);
  void share(const std::shared_ptr<Posting>& send, const std::shared_ptr<Posting>& receive);
  void copy(SharedCopy& shared);
  bool take_back(Posting& posting);
  bool elsewhere(Rank rank) const { return remote_ != nullptr && !remote_->is_local(rank); }

  std::vector<Pool> pools_;  // by rank
  // deques: neither mutexes nor condition variables can be moved.
  std::deque<Mailbox> mailboxes_;  // by receiver
  std::deque<Bell> bells_;
  RemoteSide* remote_;  // null when there are no other processes
  // A thread looks for a moment before it sleeps while a core would stand still (to wake one that
  // does takes longer than to change threads), unless a wire's thread needs it.
  const bool looks_first_;
  const int64_t num_cores_;           // that this process may run on
  std::atomic<int64_t> num_busy_{0};  // ranks that have an endpoint and do not wait
  std::atomic<bool> failed_{false};
  mutable std::mutex failure_mutex_;
  Failure failure_;
};

}  // namespace piper::comm::internal
