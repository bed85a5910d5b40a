#include <fmt/core.h>
#include <piper/base/error.h>
#include <piper/base/printable.h>
#include <piper/comm/message_protocol.h>

#include <algorithm>

namespace piper::comm::internal {
namespace {

constexpr int64_t kBookkeepingBytes = 256;  // what an early message costs besides its payload

int64_t cost_of(uint64_t size) { return static_cast<int64_t>(size) + kBookkeepingBytes; }

}  // namespace

MessageProtocol::MessageProtocol(int64_t num_ranks, int64_t num_processes, int64_t process,
                                 Callbacks callbacks)
    : ranks_per_process_(num_ranks / num_processes),
      process_(process),
      callbacks_(std::move(callbacks)),
      peers_(num_processes),
      state_(num_ranks, this) {}

void MessageProtocol::send_note(int64_t process, const MessageHead& head,
                                std::span<const std::byte> body) {
  thread_local std::vector<std::byte> buffer;  // of one note after the other
  buffer.clear();
  encode(head, buffer);
  wire().send_note(process, buffer, body);
}

void MessageProtocol::send(const std::shared_ptr<Posting>& send) {
  const int64_t process = process_of(send->peer);
  MessageHead head{.kind = NoteKind::kOffer,
                   .source = send->owner,
                   .target = send->peer,
                   .part = send->part,
                   .key = send->name.key,
                   .size = send->size,
                   .what = send->name.what};
  {
    const std::lock_guard lock(mutex_);
    Peer& peer = peers_[process];
    head.id = next_id_++;
    if (send->size + kMaxNoteHeadBytes <= wire().max_note_bytes() &&
        cost_of(send->size) <= peer.credit) {
      peer.credit -= cost_of(send->size);
      head.kind = NoteKind::kEager;
    } else {
      peer.offered[head.id] = send;
    }
  }
  if (head.kind == NoteKind::kOffer) return send_note(process, head);
  send_note(process, head, {send->source, send->size});
  state_.finish(*send, PostingState::kDone);
}

bool MessageProtocol::withdraw(Posting& send) {
  std::shared_ptr<Posting> removed;  // outlives the lock
  const std::lock_guard lock(mutex_);
  Postings& offered = peers_[process_of(send.peer)].offered;
  for (auto at = offered.begin(); at != offered.end(); ++at) {
    if (at->second.get() != &send) continue;
    removed = std::move(at->second);
    peers_[process_of(send.peer)].withdrawn.insert(at->first);
    offered.erase(at);
    send.state.store(PostingState::kWithdrawn, std::memory_order_release);
    return true;
  }
  return false;
}

std::vector<std::shared_ptr<Posting>> MessageProtocol::unfinished_sends() const {
  std::vector<std::shared_ptr<Posting>> all;
  const std::lock_guard lock(mutex_);
  for (const Peer& peer : peers_)
    for (const Postings* sends : {&peer.offered, &peer.sending})
      for (const auto& [id, send] : *sends) all.push_back(send);
  return all;
}

// The arrival and its receive have met, here or in arrive().
void MessageProtocol::fetch(const Posting& arrived, const std::shared_ptr<Posting>& receive) {
  const int64_t process = arrived.arrival->process;
  const uint64_t id = arrived.arrival->id;
  bool too_late = false, is_new = false;
  {
    const std::lock_guard lock(mutex_);
    --peers_[process].num_offers;
    too_late = abandoned_;
    if (!too_late) is_new = peers_[process].receiving.try_emplace(id, receive).second;
  }
  if (!is_new) state_.finish(*receive, PostingState::kWithdrawn);
  if (too_late) return;
  if (!is_new) return lose(process, "it gave two messages one number");
  wire().expect_payload(process, id, {receive->target, receive->size});
  answer(process, NoteKind::kAccept, arrived, id);
}

void MessageProtocol::answer(int64_t process, NoteKind kind, const Posting& about, uint64_t id) {
  send_note(process, {.kind = kind,
                      .source = about.sender(),
                      .target = about.receiver(),
                      .part = about.part,
                      .key = about.name.key,
                      .size = about.size,
                      .id = id,
                      .what = kind == NoteKind::kRefuse ? about.problem : ""});
}

void MessageProtocol::refuse(const Posting& arrived) {
  if (arrived.arrival->payload_follows) {
    const std::lock_guard lock(mutex_);
    --peers_[arrived.arrival->process].num_offers;
  }
  answer(arrived.arrival->process, NoteKind::kRefuse, arrived, arrived.arrival->id);
}

void MessageProtocol::consumed(const Posting& arrived) {
  constexpr int64_t kWorthTelling = kEagerCredit / 4;
  int64_t owed = 0;
  {
    const std::lock_guard lock(mutex_);
    Peer& peer = peers_[arrived.arrival->process];
    peer.owed += cost_of(arrived.size);
    if (peer.owed >= kWorthTelling) std::swap(owed, peer.owed);
    peer.held -= owed;
  }
  if (owed > 0)
    send_note(arrived.arrival->process, {.kind = NoteKind::kCredit,
                                         .source = arrived.sender(),
                                         .target = arrived.receiver(),
                                         .size = static_cast<uint64_t>(owed)});
}

void MessageProtocol::failed(const Failure& failure) {
  if (Wire* const wire = wire_) wire->abandon();
  callbacks_.failed(failure);
}

void MessageProtocol::note_arrived(int64_t process, std::span<const std::byte> note) {
  {
    const std::lock_guard lock(mutex_);
    if (peers_[process].is_lost) return;
  }
  const std::optional<ParsedMessage> message = parse_message(note, state_.size());
  if (!message) return lose(process, "what came is no message");
  const MessageHead& head = message->head;
  switch (head.kind) {
    case NoteKind::kEager:
    case NoteKind::kOffer:
      if (admit(process, head)) arrive(process, *message);
      return;
    case NoteKind::kAccept:
      return accepted(process, head.id, head);
    case NoteKind::kRefuse:
      return refused(process, head);
    case NoteKind::kGone:
      return gone(process, head.id);
    case NoteKind::kCredit:
      return credited(process, head.size);
  }
}

bool MessageProtocol::admit(int64_t process, const MessageHead& head) {
  std::string wrong;
  {
    const std::lock_guard lock(mutex_);
    Peer& peer = peers_[process];
    const bool eager = head.kind == NoteKind::kEager;
    if (process_of(head.source) != process || !is_local(head.target))
      wrong = "a message came that is not for this process";
    else if (eager && cost_of(head.size) > kEagerCredit - peer.held)
      wrong = "more bytes came at once than it may send";
    else if (!eager && peer.num_offers >= kMaxWaitingOffers)
      wrong = "too many messages are offered";
    else if (eager)
      peer.held += cost_of(head.size);
    else
      ++peer.num_offers;
  }
  if (!wrong.empty()) lose(process, wrong);
  return wrong.empty();
}

void MessageProtocol::credited(int64_t process, uint64_t size) {
  bool right = false;
  {
    const std::lock_guard lock(mutex_);
    int64_t& credit = peers_[process].credit;
    right = size <= static_cast<uint64_t>(kEagerCredit - credit);
    if (right) credit += static_cast<int64_t>(size);
  }
  if (!right) lose(process, "it gave back more bytes than it was sent");
}

void MessageProtocol::lose(int64_t process, const std::string& why) {
  {
    const std::lock_guard lock(mutex_);
    peers_[process].is_lost = true;
  }
  process_lost(process, why);
}

void MessageProtocol::arrive(int64_t process, const ParsedMessage& message) {
  const MessageHead& head = message.head;
  auto posting = std::make_shared<Posting>();
  posting->owner = head.source;
  posting->peer = head.target;
  posting->direction = Direction::kSend;
  posting->name = {head.key, head.what};
  posting->part = head.part;
  posting->source = message.payload.data();
  posting->size = head.size;
  posting->arrival =
      std::make_unique<Arrival>(Arrival{process, head.id, head.kind == NoteKind::kOffer, {}});
  try {
    state_.post(posting);
  } catch (const InternalError& error) {  // posted twice, there
    state_.fail(head.source, error.what());
  }
}

std::shared_ptr<Posting> MessageProtocol::take(int64_t process, Postings Peer::*from, uint64_t id) {
  const std::lock_guard lock(mutex_);
  Postings& postings = peers_[process].*from;
  const auto place = postings.find(id);
  if (place == postings.end()) return nullptr;
  std::shared_ptr<Posting> taken = std::move(place->second);
  postings.erase(place);
  return taken;
}

void MessageProtocol::accepted(int64_t process, uint64_t id, const MessageHead& head) {
  std::span<const std::byte> bytes;
  bool found = false, was_withdrawn = false;
  {
    const std::lock_guard lock(mutex_);
    if (abandoned_) return;
    Peer& peer = peers_[process];
    const auto place = peer.offered.find(id);
    found = place != peer.offered.end();
    was_withdrawn = peer.withdrawn.erase(id) > 0;
    if (found) {
      // From here on its owner waits for us before it lets go of the buffer.
      place->second->state.store(PostingState::kCopying, std::memory_order_release);
      bytes = {place->second->source, place->second->size};
      peer.sending.insert(peer.offered.extract(place));
    }
  }
  if (found) return wire().send_payload(process, id, bytes);
  if (!was_withdrawn) return lose(process, "it accepts what it was not offered");
  MessageHead answer = head;
  answer.kind = NoteKind::kGone;
  send_note(process, answer);
}

void MessageProtocol::refused(int64_t process, const MessageHead& head) {
  const std::shared_ptr<Posting> send = take(process, &Peer::offered, head.id);
  const std::string problem = one_line(head.what);
  // An eager message was done when it was sent: its rank hears of it at its next call.
  if (send == nullptr) return state_.fail(head.source, problem);
  send->problem = problem;
  state_.finish(*send, PostingState::kMismatched);
}

// The sender gave up: as if nothing had arrived yet.
void MessageProtocol::gone(int64_t process, uint64_t id) {
  if (!wire().cancel_payload(process, id))
    return lose(process, "it withdraws a message of which it has sent a part");
  const std::shared_ptr<Posting> receive = take(process, &Peer::receiving, id);
  if (receive == nullptr) return;
  try {
    state_.repost(receive);
  } catch (const InternalError& error) {  // its owner has posted the same meanwhile
    state_.finish(*receive, PostingState::kWithdrawn);
    state_.fail(receive->owner, error.what());
  }
}

void MessageProtocol::payload_sent(int64_t process, uint64_t id) {
  const std::shared_ptr<Posting> send = take(process, &Peer::sending, id);
  if (send != nullptr) state_.finish(*send, PostingState::kDone);
}

void MessageProtocol::payload_received(int64_t process, uint64_t id) {
  const std::shared_ptr<Posting> receive = take(process, &Peer::receiving, id);
  if (receive != nullptr) state_.finish(*receive, PostingState::kDone);
}

void MessageProtocol::process_lost(int64_t process, const std::string& why) {
  if (!state_.failed()) callbacks_.lost(process, why);
}

void MessageProtocol::abandoned() {
  std::vector<std::shared_ptr<Posting>> in_use;
  {
    const std::lock_guard lock(mutex_);
    abandoned_ = true;
    for (Peer& peer : peers_)
      for (Postings* postings : {&peer.sending, &peer.receiving}) {
        for (auto& [id, posting] : *postings) in_use.push_back(std::move(posting));
        postings->clear();
      }
  }
  for (const auto& posting : in_use) state_.finish(*posting, PostingState::kWithdrawn);
}

}  // namespace piper::comm::internal
