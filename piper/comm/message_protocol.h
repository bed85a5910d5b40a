// How messages between ranks of different processes find their receives, over any wire.
//
//   small:  sender --eager (head, payload)--> receiver        the send is done at once
//   large:  sender --offer (head)--> receiver                 when the receive is posted:
//           sender <--accept-- receiver, then the payload     from buffer to buffer
//
// The receiver holds payloads only of eager messages that came early: at most kEagerCredit bytes
// from each process; a sender whose credit is used up offers instead. Matching, bells and failures
// are LocalState's. Internal to process_world.cpp; thread-safe.
//
// What a peer says is checked against what it may say at that point: a peer that breaks the
// protocol is lost (WireEvents::process_lost), and nothing that it says afterwards counts.
#pragma once

#include <piper/comm/local_state.h>
#include <piper/comm/message_head.h>
#include <piper/comm/wire.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace piper::comm::internal {

constexpr int64_t kEagerCredit = 1 << 20;  // bytes on their way, or held, between two processes
constexpr int64_t kMaxWaitingOffers = 1 << 20;  // of a process, without their receives

class MessageProtocol final : public RemoteSide, public WireEvents {
 public:
  struct Callbacks {
    std::function<void(const Failure&)> failed;  // the first failure; in any thread
    std::function<void(int64_t process, const std::string& why)> lost;
  };
  // Ranks process * ranks_per_process ... live here. `wire` outlives this object's use of it.
  MessageProtocol(int64_t num_ranks, int64_t num_processes, int64_t process, Callbacks callbacks);

  // Before the first message. Failures may come before.
  void attach(Wire& wire) { wire_ = &wire; }
  LocalState& state() { return state_; }

  bool is_local(Rank rank) const override { return process_of(rank) == process_; }
  void send(const std::shared_ptr<Posting>& send) override;
  bool withdraw(Posting& send) override;
  void fetch(const Posting& arrived, const std::shared_ptr<Posting>& receive) override;
  void consumed(const Posting& arrived) override;
  void refuse(const Posting& arrived) override;
  void expect(int64_t more) override { num_expected_ += more; }
  std::vector<std::shared_ptr<Posting>> unfinished_sends() const override;
  void failed(const Failure& failure) override;

  void note_arrived(int64_t process, std::span<const std::byte> note) override;
  void payload_sent(int64_t process, uint64_t id) override;
  void payload_received(int64_t process, uint64_t id) override;
  void process_lost(int64_t process, const std::string& why) override;
  void abandoned() override;
  bool expects_messages() const override { return num_expected_ > 0; }

 private:
  using Postings = std::map<uint64_t, std::shared_ptr<Posting>>;  // by the sender's number
  struct Peer {
    int64_t credit = kEagerCredit;  // bytes that may still be sent eagerly
    int64_t owed = 0;               // bytes taken and not yet given back
    int64_t held = 0;               // bytes that came eagerly and were not given back
    int64_t num_offers = 0;         // that came and wait for their receives
    Postings offered, sending, receiving;
    std::set<uint64_t> withdrawn;  // offers that the peer may still accept
    bool is_lost = false;          // it broke the protocol
  };

  Wire& wire() const { return *wire_.load(std::memory_order_relaxed); }
  int64_t process_of(Rank rank) const { return rank.value / ranks_per_process_; }
  void send_note(int64_t process, const MessageHead& head, std::span<const std::byte> body = {});
  void answer(int64_t process, NoteKind kind, const Posting& about, uint64_t id);
  void arrive(int64_t process, const ParsedMessage& message);
  void accepted(int64_t process, uint64_t id, const MessageHead& head);
  void refused(int64_t process, const MessageHead& head);
  void gone(int64_t process, uint64_t id);
  void credited(int64_t process, uint64_t size);
  bool admit(int64_t process, const MessageHead& head);  // an eager message or an offer
  void lose(int64_t process, const std::string& why);    // what it says breaks the protocol
  std::shared_ptr<Posting> take(int64_t process, Postings Peer::*from, uint64_t id);

  const int64_t ranks_per_process_, process_;
  Callbacks callbacks_;
  std::atomic<Wire*> wire_{nullptr};
  std::atomic<int64_t> num_expected_{0};
  mutable std::mutex mutex_;  // of what follows; never held while calling anyone
  std::vector<Peer> peers_;   // by process
  uint64_t next_id_ = 1;
  bool abandoned_ = false;
  LocalState state_;
};

}  // namespace piper::comm::internal
