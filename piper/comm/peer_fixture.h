// For tests: one process of a run of two, over a connection whose other end is in the test's hand,
// which may say anything that a process with the run's secret could say. Deterministic: everything
// happens in the calling thread.
#pragma once

#include <piper/comm/bytes.h>
#include <piper/comm/message_protocol.h>
#include <piper/comm/tcp_connection.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <asio/io_context.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace piper::comm::internal {

class PeerFixture {
 public:
  static constexpr int64_t kNumRanks = 4;  // 0 and 1 here, 2 and 3 at the other end
  static constexpr int64_t kPeer = 1;      // the other end's process

  PeerFixture()
      : protocol_(kNumRanks, 2, 0,
                  {.failed = [](const Failure&) {},
                   .lost = [this](int64_t, const std::string& why) { lost_ = why; }}),
        wire_(*this) {
    std::array<int, 2> ends{};
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) std::abort();
    other_end_ = ends[1];
    asio::ip::tcp::socket socket(io_);
    socket.assign(asio::ip::tcp::v4(), ends[0]);
    connection_ = std::make_shared<TcpConnection>(kPeer, std::move(socket));
    protocol_.attach(wire_);
    connection_->start(protocol_);
  }
  ~PeerFixture() {
    protocol_.state().fail(Rank(0), "the test is over");
    ::close(other_end_);
  }
  PeerFixture(const PeerFixture&) = delete;
  PeerFixture& operator=(const PeerFixture&) = delete;

  // A receive or a send of a rank here, in a buffer of exactly its size.
  struct Mine {
    std::shared_ptr<Posting> posting;
    std::vector<std::byte> buffer;
    PostingState state() const { return posting->state.load(); }
  };
  std::unique_ptr<Mine> post(Direction direction, Rank owner, Rank peer, uint64_t key,
                             uint32_t part, size_t size) {
    auto mine = std::make_unique<Mine>(Mine{std::make_shared<Posting>(), {}});
    mine->buffer.resize(size);
    Posting& posting = *mine->posting;
    posting.owner = owner;
    posting.peer = peer;
    posting.direction = direction;
    posting.name = {key, "exchange"};
    posting.part = part;
    posting.source = mine->buffer.data();
    posting.target = mine->buffer.data();
    posting.size = size;
    protocol_.state().post(mine->posting);
    return mine;
  }
  // Drops it with its buffer, unless a wire is in the middle of it.
  bool drop(std::unique_ptr<Mine>& mine) {
    if (mine->state() == PostingState::kCopying) return false;
    protocol_.state().withdraw(*mine->posting);
    mine.reset();
    return true;
  }

  void say(std::span<const std::byte> bytes) const {
    while (!bytes.empty()) {
      const ssize_t size =
          ::send(other_end_, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
      if (size <= 0) return;  // the connection has ended, or does not read
      bytes = bytes.subspan(static_cast<size_t>(size));
    }
  }
  void say_note(const MessageHead& head, std::span<const std::byte> payload = {}) const {
    std::vector<std::byte> note;
    encode(head, note);
    note.insert(note.end(), payload.begin(), payload.end());
    say(ByteWriter().number(static_cast<uint32_t>(note.size())).number(uint32_t{1}).take());
    say(ByteWriter().number(uint64_t{0}).raw(note).take());
  }
  // The head of a chunk of `size` bytes of a payload; its bytes follow with say().
  void say_chunk(uint32_t size, uint64_t id) const {
    say(ByteWriter().number(size).number(uint32_t{2}).number(id).take());
  }

  // Lets this end read and answer until there is nothing more to do.
  void play() {
    for (int turn = 0; turn < 100; ++turn) {
      io_.restart();
      if (io_.poll() == 0 && !listen()) return;
    }
  }
  // All that this end has said so far.
  const std::vector<std::byte>& heard() const { return heard_; }
  // Why the peer counts as lost; "" while it does not.
  const std::string& lost() const { return lost_; }
  MessageProtocol& protocol() { return protocol_; }

 private:
  class OneConnection final : public Wire {
   public:
    explicit OneConnection(PeerFixture& fixture) : fixture_(fixture) {}
    void start(WireEvents&) override {}
    size_t max_note_bytes() const override { return kTcpNoteBytes; }
    void send_note(int64_t, std::span<const std::byte> head,
                   std::span<const std::byte> body) override {
      fixture_.connection_->send_note(head, body);
    }
    void send_payload(int64_t, uint64_t id, std::span<const std::byte> bytes) override {
      fixture_.connection_->send_payload(id, bytes);
    }
    void expect_payload(int64_t, uint64_t id, std::span<std::byte> bytes) override {
      fixture_.connection_->expect_payload(id, bytes);
    }
    bool cancel_payload(int64_t, uint64_t id) override {
      return fixture_.connection_->cancel_payload(id);
    }
    void abandon() override {
      fixture_.connection_->close();
      fixture_.protocol_.abandoned();
    }
    void close() override {}

   private:
    PeerFixture& fixture_;
  };

  bool listen() {
    std::array<std::byte, 65536> bytes;  // NOLINT(cppcoreguidelines-pro-type-member-init)
    const ssize_t size = recv(other_end_, bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (size <= 0) return false;
    if (heard_.size() < kMaxHeard) heard_.insert(heard_.end(), bytes.begin(), bytes.begin() + size);
    return true;
  }

  static constexpr size_t kMaxHeard = 1 << 20;
  asio::io_context io_;
  std::string lost_;
  std::vector<std::byte> heard_;
  MessageProtocol protocol_;
  OneConnection wire_;
  int other_end_ = -1;
  std::shared_ptr<TcpConnection> connection_;
};

}  // namespace piper::comm::internal
