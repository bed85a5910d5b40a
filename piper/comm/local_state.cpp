#include <fmt/core.h>
#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/base/printable.h>
#include <piper/comm/local_state.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

namespace piper::comm::internal {
namespace {

std::string disagreement(const Posting& mine, const Posting& other) {
  const Posting& send = mine.direction == Direction::kSend ? mine : other;
  const Posting& receive = mine.direction == Direction::kSend ? other : mine;
  return one_line(fmt::format(
      "rank {}: sizes differ in '{}' (part {}): rank {} sends {} bytes{}, rank {} receives {} "
      "bytes{}",
      mine.owner.value, mine.name.what, mine.part, send.owner.value, send.size,
      send.name.what == mine.name.what ? "" : fmt::format(" ('{}')", send.name.what),
      receive.owner.value, receive.size,
      receive.name.what == mine.name.what ? "" : fmt::format(" ('{}')", receive.name.what)));
}

// Shorter messages are copied sooner than another thread wakes.
constexpr size_t kSharedBytes = size_t{192} << 10;

// How long who drops a message waits for the wire that is in the middle of it.
constexpr std::chrono::seconds kLongestCopy{10};

// Takes the next of the copies that a rank may make. Those for its own receives come first: their
// bytes are then in its core's cache. Null where there is none.
std::shared_ptr<SharedCopy> next_copy(std::vector<std::shared_ptr<SharedCopy>>& copies, Rank rank) {
  std::erase_if(copies, [](const auto& c) { return c->taken.load(std::memory_order_relaxed); });
  if (copies.empty()) return nullptr;
  auto place =
      std::ranges::find_if(copies, [&](const auto& c) { return c->receive->owner == rank; });
  if (place == copies.end()) place = copies.begin();
  std::shared_ptr<SharedCopy> next = std::move(*place);
  copies.erase(place);
  return next;
}

// The payload of an arrival, until its receive is posted.
void hold(Posting& arrived) {
  arrived.arrival->held.assign(arrived.source, arrived.source + arrived.size);
  arrived.source = arrived.arrival->held.data();
}

// That this process may run on.
int64_t num_cores() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

class NotBusy {
 public:
  explicit NotBusy(std::atomic<int64_t>& num_busy) : num_busy_(num_busy) {
    num_busy_.fetch_sub(1, std::memory_order_relaxed);
  }
  ~NotBusy() { num_busy_.fetch_add(1, std::memory_order_relaxed); }
  NotBusy(const NotBusy&) = delete;
  NotBusy& operator=(const NotBusy&) = delete;

 private:
  std::atomic<int64_t>& num_busy_;
};

}  // namespace

LocalState::LocalState(int64_t num_ranks, RemoteSide* remote)
    : bells_(num_ranks),
      remote_(remote),
      looks_first_(remote == nullptr && num_ranks > 1),
      num_cores_(num_cores()) {
  for (int64_t r = 0; r < num_ranks; ++r) {
    pools_.push_back(std::make_shared<RankPool>());
    mailboxes_.emplace_back(pools_.back());
  }
  for (Bell& bell : bells_) bell.copies.reserve(2 * bells_.size());
}

std::string sentence(const Failure& failure) {
  if (failure.reason.starts_with("rank ") && failure.reason.find(" (host ") != std::string::npos)
    return failure.reason;
  // What the rank said of itself need not name it again.
  const std::string own = fmt::format("rank {}: ", failure.rank.value);
  const bool named = failure.reason.starts_with(own);
  return fmt::format("rank {} failed: {}{}", failure.rank.value,
                     failure.fault == Fault::kInput ? "wrong input: " : "",
                     named ? failure.reason.substr(own.size()) : failure.reason);
}

std::string Posting::describe() const {
  const std::string what = one_line(name.what);  // a peer may have sent it
  return direction == Direction::kSend
             ? fmt::format("send '{}' to rank {}, {} bytes", what, peer.value, size)
             : fmt::format("receive '{}' from rank {}, {} bytes", what, peer.value, size);
}

void LocalState::enter(Rank rank) {
  PIPER_CHECK(rank.valid() && rank.value < size(), "rank " + std::to_string(rank.value));
  Bell& bell = bells_[rank.index()];
  const std::lock_guard lock(bell.mutex);
  PIPER_CHECK(!bell.taken, "rank " + std::to_string(rank.value) + " has an endpoint already");
  bell.taken = true;
  bell.left.clear();
  num_busy_.fetch_add(1, std::memory_order_relaxed);
}

void LocalState::leave(Rank rank) {
  std::deque<std::string> left;
  for (const Mailbox& box : mailboxes_) {
    const std::lock_guard lock(box.mutex);
    for (const auto& [key, posting] : box.waiting)
      if (posting->owner == rank) left.push_back(posting->describe());
  }
  if (remote_ != nullptr)
    for (const auto& send : remote_->unfinished_sends())
      if (send->owner == rank) left.push_back(send->describe());
  {
    Bell& bell = bells_[rank.index()];
    const std::lock_guard lock(bell.mutex);
    bell.taken = false;
    num_busy_.fetch_sub(1, std::memory_order_relaxed);
    left.insert(left.begin(), bell.left.begin(), bell.left.end());
  }
  if (!left.empty())
    fail(rank, fmt::format("left with {} unfinished request{}, among them: {}", left.size(),
                           left.size() == 1 ? "" : "s", left.front()));
}

void LocalState::post(const std::shared_ptr<Posting>& posting) {
  const bool sending = posting->direction == Direction::kSend;
  if (sending && posting->arrival == nullptr && elsewhere(posting->peer))
    return remote_->send(posting);
  const bool from_elsewhere = !sending && elsewhere(posting->peer);
  if (from_elsewhere) remote_->expect(1);
  const std::shared_ptr<Posting> other = match(posting);
  if (other == nullptr) return;
  if (from_elsewhere || posting->arrival != nullptr) remote_->expect(-1);
  transfer(sending ? posting : other, sending ? other : posting);
}

// The counterpart, if it waits; otherwise the posting waits now.
std::shared_ptr<Posting> LocalState::match(const std::shared_ptr<Posting>& posting) {
  Mailbox& box = mailboxes_[posting->receiver().index()];
  const std::lock_guard lock(box.mutex);
  // From the match on withdraw() waits for us.
  posting->state.store(PostingState::kWaiting, std::memory_order_relaxed);
  const auto [place, first] =
      box.waiting.try_emplace({posting->sender().value, posting->name.key, posting->part}, posting);
  if (first) {
    if (posting->arrival != nullptr && !posting->arrival->payload_follows) hold(*posting);
    return nullptr;
  }
  PIPER_CHECK(place->second->direction != posting->direction,
              "posted twice: " + posting->describe());
  std::shared_ptr<Posting> other = std::move(place->second);
  box.waiting.erase(place);
  other->state.store(PostingState::kCopying, std::memory_order_relaxed);
  posting->state.store(PostingState::kCopying, std::memory_order_relaxed);
  return other;
}

void LocalState::transfer(const std::shared_ptr<Posting>& send,
                          const std::shared_ptr<Posting>& receive) {
  const bool arrived = send->arrival != nullptr;
  PostingState result = PostingState::kDone;
  if (send->size != receive->size) {
    send->problem = disagreement(*send, *receive);
    receive->problem = disagreement(*receive, *send);
    result = PostingState::kMismatched;
    if (arrived) remote_->refuse(*send);
  } else if (arrived && send->arrival->payload_follows) {
    return remote_->fetch(*send, receive);
  } else if (!arrived && send->size >= kSharedBytes && send->owner != receive->owner) {
    return share(send, receive);
  } else if (send->size > 0) {
    std::memcpy(receive->target, send->source, send->size);
  }
  if (arrived && !send->arrival->payload_follows) remote_->consumed(*send);
  // Whoever posted first sleeps, perhaps.
  if (!arrived) finish(*send, result);
  finish(*receive, result);
}

void LocalState::share(const std::shared_ptr<Posting>& send,
                       const std::shared_ptr<Posting>& receive) {
  const auto shared =
      std::allocate_shared<SharedCopy>(PoolAllocator<SharedCopy>(pool(send->owner)), send, receive);
  for (const Rank rank : {send->owner, receive->owner})
    rouse(bells_[rank.index()], [&](Bell& bell) {
      bell.copies.push_back(shared);
      return true;
    });
}

void LocalState::copy(SharedCopy& shared) {
  if (shared.taken.exchange(true)) return;
  std::memcpy(shared.receive->target, shared.send->source, shared.send->size);
  finish(*shared.send, PostingState::kDone);
  finish(*shared.receive, PostingState::kDone);
}

template <class Change>
void LocalState::rouse(Bell& bell, Change change) {
  {
    const std::lock_guard lock(bell.mutex);
    if (!change(bell)) return;
    bell.num_events.fetch_add(1, std::memory_order_release);
  }
  bell.rung.notify_all();
}

void LocalState::finish(Posting& posting, PostingState state) {
  rouse(bells_[posting.owner.index()], [&](Bell& bell) {
    posting.state.store(state, std::memory_order_release);
    const bool wakes = posting.completions == nullptr || posting.completions->add(posting.number);
    if (!wakes && state == PostingState::kDone && !bell.withdraws) return false;
    ++bell.num_rings;
    return true;
  });
}

void LocalState::tell(Posting& posting, Completions& completions, int32_t number) {
  const std::lock_guard lock(bells_[posting.owner.index()].mutex);
  const PostingState state = posting.state.load(std::memory_order_relaxed);
  if (state == PostingState::kWaiting || state == PostingState::kCopying) {
    posting.completions = &completions;
    posting.number = number;
  } else {
    completions.add(number);
  }
}

void LocalState::repost(const std::shared_ptr<Posting>& receive) {
  post(receive);
  ring(receive->owner);  // withdraw() may wait for this
}

void LocalState::ring(Rank rank) {
  rouse(bells_[rank.index()], [](Bell& bell) {
    ++bell.num_rings;
    return true;
  });
}

// Removes a posting that waits; false when it does not.
bool LocalState::take_back(Posting& posting) {
  if (posting.direction == Direction::kSend && elsewhere(posting.peer))
    return remote_->withdraw(posting);
  std::shared_ptr<Posting> removed;  // outlives the lock
  {
    Mailbox& box = mailboxes_[posting.receiver().index()];
    const std::lock_guard lock(box.mutex);
    if (posting.state.load(std::memory_order_relaxed) != PostingState::kWaiting) return false;
    const auto place = box.waiting.find({posting.sender().value, posting.name.key, posting.part});
    removed = std::move(place->second);
    box.waiting.erase(place);
    posting.state.store(PostingState::kWithdrawn, std::memory_order_release);
  }
  if (posting.direction == Direction::kReceive && elsewhere(posting.peer)) remote_->expect(-1);
  return true;
}

void LocalState::withdraw(Posting& posting) {
  Bell& bell = bells_[posting.owner.index()];
  for (;;) {
    const PostingState state = posting.state.load(std::memory_order_acquire);
    if (state == PostingState::kWaiting) {
      if (!take_back(posting)) continue;
      const std::lock_guard lock(bell.mutex);
      if (bell.taken) bell.left.push_back(posting.describe());
      return;
    }
    if (state != PostingState::kCopying) {
      // Whoever gave it that state may still be telling so.
      if (posting.completions == nullptr) return;
      const std::lock_guard lock(bell.mutex);
      return;
    }
    std::shared_ptr<SharedCopy> shared;
    {
      std::unique_lock lock(bell.mutex);
      bell.withdraws = true;
      const bool over = bell.rung.wait_for(lock, kLongestCopy, [&] {
        const auto place = std::ranges::find_if(bell.copies, [&](const auto& c) {
          return c->send.get() == &posting || c->receive.get() == &posting;
        });
        if (place != bell.copies.end()) {
          shared = std::move(*place);
          bell.copies.erase(place);
        }
        return shared || posting.state.load(std::memory_order_acquire) != PostingState::kCopying;
      });
      bell.withdraws = false;
      lock.unlock();
      // A peer that does not go on with a message: the wire gives the buffer back when all is over.
      if (!over)
        fail(posting.owner,
             fmt::format("gave up {}, which has begun and does not end", posting.describe()));
    }
    if (shared) copy(*shared);
  }
}

// For about as long as a thread takes to wake, without the lock; whether something happened.
bool LocalState::look(Bell& bell, std::unique_lock<std::mutex>& lock) const {
  constexpr auto kLook = std::chrono::microseconds(20);
  const uint64_t before = bell.num_events.load(std::memory_order_relaxed);
  lock.unlock();
  const auto until = std::chrono::steady_clock::now() + kLook;
  while (bell.num_events.load(std::memory_order_acquire) == before && has_idle_core() &&
         std::chrono::steady_clock::now() < until)
    std::this_thread::yield();
  lock.lock();
  return bell.num_events.load(std::memory_order_relaxed) != before;
}

uint64_t LocalState::wait_completion(Rank rank, uint64_t seen, double timeout_seconds) {
  constexpr double kLongest = 1e7;  // a third of a year: the clock's integers do not overflow
  const auto until = std::chrono::steady_clock::now() +
                     std::chrono::duration<double>(std::min(timeout_seconds, kLongest));
  Bell& bell = bells_[rank.index()];
  const NotBusy waits(num_busy_);
  std::unique_lock lock(bell.mutex);
  for (;;) {
    while (const std::shared_ptr<SharedCopy> shared = next_copy(bell.copies, rank)) {
      lock.unlock();
      copy(*shared);
      lock.lock();
    }
    if (bell.num_rings != seen) return bell.num_rings;
    if (failed()) break;
    if (looks_first_ && has_idle_core() && look(bell, lock)) continue;
    const auto woken = [&] { return bell.num_rings != seen || failed() || !bell.copies.empty(); };
    if (!bell.rung.wait_until(lock, until, woken)) return seen;
  }
  lock.unlock();
  throw CommError(failure_for(rank, "waiting"));
}

void LocalState::wake(Rank rank) { ring(rank); }

void LocalState::fail(Rank rank, const std::string& reason, Fault fault) {
  {
    const std::lock_guard lock(failure_mutex_);
    if (failed()) return;
    failure_ = {rank, reason, fault};
    failed_.store(true, std::memory_order_release);
  }
  if (remote_ != nullptr) remote_->failed({rank, reason, fault});
  for (int64_t r = 0; r < size(); ++r) ring(Rank(static_cast<int32_t>(r)));
}

Failure LocalState::failure() const {
  const std::lock_guard lock(failure_mutex_);
  return failure_;
}

std::string LocalState::failure_for(Rank rank, const std::string& context) const {
  return fmt::format("rank {}: {}: {}", rank.value, context, sentence(failure()));
}

void LocalState::check(const Posting& posting) const {
  if (failed()) throw MessageError(failure_for(posting.owner, posting.describe()));
}

std::string LocalState::unmatched() const {
  constexpr size_t kShown = 16;
  std::map<Rank, std::vector<std::string>> by_rank;
  size_t total = 0;
  const auto add = [&](const Posting& posting) {
    if (++total <= kShown) by_rank[posting.owner].push_back(posting.describe());
  };
  for (const Mailbox& box : mailboxes_) {
    const std::lock_guard lock(box.mutex);
    for (const auto& [key, posting] : box.waiting) add(*posting);
  }
  if (remote_ != nullptr)
    for (const auto& send : remote_->unfinished_sends()) add(*send);
  std::string text;
  for (const auto& [rank, postings] : by_rank)
    text += fmt::format("{}rank {}: {}", text.empty() ? "" : "; ", rank.value,
                        fmt::join(postings, ", "));
  return total > kShown ? fmt::format("{}; and {} more", text, total - kShown) : text;
}

}  // namespace piper::comm::internal
