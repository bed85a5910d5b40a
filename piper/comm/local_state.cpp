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

}  // namespace

std::string Posting::describe() const {
  return direction == Direction::kSend
             ? fmt::format("send '{}' to rank {}", name.what, peer.value)
             : fmt::format("receive '{}' from rank {}", name.what, peer.value);
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
  Mailbox& box = mailboxes_[posting->receiver().index()];
  std::shared_ptr<Posting> other;
  {
    const std::lock_guard lock(box.mutex);
    const Key key{posting->sender().value, posting->name.key, posting->part};
    const auto [place, first] = box.waiting.try_emplace(key, posting);
    if (first) return;
    PIPER_CHECK(place->second->direction != posting->direction,
                "posted twice: " + posting->describe());
    other = std::move(place->second);
    box.waiting.erase(place);
    // From here on withdraw() waits for us.
    other->state.store(PostingState::kCopying, std::memory_order_relaxed);
  }
  PostingState result = PostingState::kDone;
  if (posting->size != other->size) {
    posting->problem = disagreement(*posting, *other);
    other->problem = disagreement(*other, *posting);
    result = PostingState::kMismatched;
  } else if (posting->size > 0) {
    const bool sending = posting->direction == Direction::kSend;
    std::memcpy(sending ? other->target : posting->target,
                sending ? posting->source : other->source, posting->size);
  }
  finish(*other, result);
  finish(*posting, result);
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

void LocalState::withdraw(Posting& posting) {
  const auto unfinished = [&] {
    const PostingState state = posting.state.load(std::memory_order_acquire);
    return state == PostingState::kWaiting || state == PostingState::kCopying;
  };
  if (!unfinished()) return;
  std::shared_ptr<Posting> removed;  // outlives the lock
  {
    Mailbox& box = mailboxes_[posting.receiver().index()];
    const std::lock_guard lock(box.mutex);
    if (posting.state.load(std::memory_order_relaxed) == PostingState::kWaiting) {
      const auto place = box.waiting.find({posting.sender().value, posting.name.key, posting.part});
      removed = std::move(place->second);
      box.waiting.erase(place);
      posting.state.store(PostingState::kWithdrawn, std::memory_order_release);
    }
  }
  Bell& bell = bells_[posting.owner.index()];
  std::unique_lock lock(bell.mutex);
  bell.rung.wait(lock, [&] { return !unfinished(); });
  if (removed != nullptr && bell.taken) bell.left.push_back(posting.describe());
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
  const Failure first = failure();
  throw CommError(fmt::format("rank {}: {}: rank {} failed: {}", rank.value, context,
                              first.rank.value, first.reason));
}

std::string LocalState::unmatched() const {
  constexpr size_t kShown = 16;
  std::map<Rank, std::vector<std::string>> by_rank;
  size_t total = 0;
  for (const Mailbox& box : mailboxes_) {
    const std::lock_guard lock(box.mutex);
    for (const auto& [key, posting] : box.waiting)
      if (++total <= kShown) by_rank[posting->owner].push_back(posting->describe());
  }
  std::string text;
  for (const auto& [rank, postings] : by_rank)
    text += fmt::format("{}rank {}: {}", text.empty() ? "" : "; ", rank.value,
                        fmt::join(postings, ", "));
  return total > kShown ? fmt::format("{}; and {} more", text, total - kShown) : text;
}

}  // namespace piper::comm::internal
