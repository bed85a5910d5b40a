#include <fmt/core.h>
#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/comm/local_state.h>

#include <algorithm>
#include <chrono>
#include <cstring>

namespace piper::comm::internal {
namespace {

std::string disagreement(const Posting& mine, const Posting& other) {
  const Posting& send = mine.direction == Direction::kSend ? mine : other;
  const Posting& receive = mine.direction == Direction::kSend ? other : mine;
  return fmt::format(
      "rank {}: sizes differ in '{}' (part {}): rank {} sends {} bytes{}, rank {} receives {} "
      "bytes{}",
      mine.owner.value, mine.name.what, mine.part, send.owner.value, send.size,
      send.name.what == mine.name.what ? "" : fmt::format(" ('{}')", send.name.what),
      receive.owner.value, receive.size,
      receive.name.what == mine.name.what ? "" : fmt::format(" ('{}')", receive.name.what));
}

// The payload of an arrival, until its receive is posted.
void hold(Posting& arrived) {
  arrived.arrival->held.assign(arrived.source, arrived.source + arrived.size);
  arrived.source = arrived.arrival->held.data();
}

}  // namespace

std::string sentence(const Failure& failure) {
  if (failure.reason.starts_with("rank ") && failure.reason.find(" (host ") != std::string::npos)
    return failure.reason;
  return fmt::format("rank {} failed: {}", failure.rank.value, failure.reason);
}

std::string Posting::describe() const {
  return direction == Direction::kSend
             ? fmt::format("send '{}' to rank {}, {} bytes", name.what, peer.value, size)
             : fmt::format("receive '{}' from rank {}, {} bytes", name.what, peer.value, size);
}

void LocalState::enter(Rank rank) {
  PIPER_CHECK(rank.valid() && rank.value < size(), "rank " + std::to_string(rank.value));
  Bell& bell = bells_[rank.index()];
  const std::lock_guard lock(bell.mutex);
  PIPER_CHECK(!bell.taken, "rank " + std::to_string(rank.value) + " has an endpoint already");
  bell.taken = true;
  bell.left.clear();
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
  } else if (send->size > 0) {
    std::memcpy(receive->target, send->source, send->size);
  }
  if (arrived && !send->arrival->payload_follows) remote_->consumed(*send);
  // Whoever posted first sleeps, perhaps.
  if (!arrived) finish(*send, result);
  finish(*receive, result);
}

void LocalState::finish(Posting& posting, PostingState state) {
  Bell& bell = bells_[posting.owner.index()];
  {
    const std::lock_guard lock(bell.mutex);
    posting.state.store(state, std::memory_order_release);
    ++bell.num_rings;
  }
  bell.rung.notify_all();
}

void LocalState::repost(const std::shared_ptr<Posting>& receive) {
  post(receive);
  ring(receive->owner);  // withdraw() may wait for this
}

void LocalState::ring(Rank rank) {
  Bell& bell = bells_[rank.index()];
  {
    const std::lock_guard lock(bell.mutex);
    ++bell.num_rings;
  }
  bell.rung.notify_all();
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
    if (state != PostingState::kCopying) return;
    std::unique_lock lock(bell.mutex);
    bell.rung.wait(lock, [&] {
      return posting.state.load(std::memory_order_acquire) != PostingState::kCopying;
    });
  }
}

uint64_t LocalState::wait_completion(Rank rank, uint64_t seen, double timeout_seconds) {
  constexpr double kLongest = 1e7;  // a third of a year: the clock's integers do not overflow
  Bell& bell = bells_[rank.index()];
  std::unique_lock lock(bell.mutex);
  bell.rung.wait_for(lock, std::chrono::duration<double>(std::min(timeout_seconds, kLongest)),
                     [&] { return bell.num_rings != seen || failed(); });
  if (bell.num_rings != seen) return bell.num_rings;
  lock.unlock();
  check(rank, "waiting");
  return seen;
}

void LocalState::fail(Rank rank, const std::string& reason) {
  {
    const std::lock_guard lock(failure_mutex_);
    if (failed()) return;
    failure_ = {rank, reason};
    failed_.store(true, std::memory_order_release);
  }
  if (remote_ != nullptr) remote_->failed({rank, reason});
  for (Bell& bell : bells_) {
    const std::lock_guard lock(bell.mutex);
    ++bell.num_rings;
    bell.rung.notify_all();
  }
}

Failure LocalState::failure() const {
  const std::lock_guard lock(failure_mutex_);
  return failure_;
}

void LocalState::check(Rank rank, const std::string& context) const {
  if (!failed()) return;
  throw CommError(fmt::format("rank {}: {}: {}", rank.value, context, sentence(failure())));
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
