// For tests: one process of a run of two, over connections whose other ends are in the test's hand,
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
    protocol_.attach(wire_);
    for (Line* line : {&small_, &large_}) {
      std::array<int, 2> ends{};
      if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) std::abort();
      line->other_end = ends[1];
      asio::ip::tcp::socket socket(io_);
      socket.assign(asio::ip::tcp::v4(), ends[0]);
      line->connection = std::make_shared<TcpConnection>(kPeer, std::move(socket));
      line->connection->start(protocol_);
    }
  }
  ~PeerFixture() {
    protocol_.state().fail(Rank(0), "the test is over");
    for (const Line* line : {&small_, &large_}) ::close(line->other_end);
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

  // What is said over one connection is not held up by the other; payloads take the large one.
  enum class By { kSmall, kLarge };
  void say(std::span<const std::byte> bytes, By by = By::kLarge) const {
    while (!bytes.empty()) {
      const ssize_t size = ::send((by == By::kSmall ? small_ : large_).other_end, bytes.data(),
                                  bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
      if (size <= 0) return;  // the connection has ended, or does not read
      bytes = bytes.subspan(static_cast<size_t>(size));
    }
  }
  void say_note(const MessageHead& head, std::span<const std::byte> payload = {},
                By by = By::kSmall) const {
    std::vector<std::byte> note;
    encode(head, note);
    note.insert(note.end(), payload.begin(), payload.end());
    ByteWriter frame;
    frame.number(static_cast<uint32_t>(note.size())).number(uint32_t{1}).number(uint64_t{0});
    say(frame.raw(note).take(), by);
  }
  // The head of a chunk of `size` bytes of a payload; its bytes follow with say().
  void say_chunk(uint32_t size, uint64_t id) const {
    say(ByteWriter().number(size).number(uint32_t{2}).number(id).take());
  }

  // Lets this end read and answer until there is nothing more to do.
  void execute() {
    for (int turn = 0; turn < 100; ++turn) {
      io_.restart();
      if (io_.poll() == 0 && !listen()) return;
    }
  }
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
      fixture_.small_.connection->send_note(head, body);
    }
    void send_payload(int64_t, uint64_t id, std::span<const std::byte> bytes) override {
      fixture_.large_.connection->send_payload(id, bytes);
    }
    void expect_payload(int64_t, uint64_t id, std::span<std::byte> bytes) override {
      fixture_.large_.connection->expect_payload(id, bytes);
    }
    bool cancel_payload(int64_t, uint64_t id) override {
      return fixture_.large_.connection->cancel_payload(id);
    }
    void abandon() override {
      for (const Line* line : {&fixture_.small_, &fixture_.large_}) line->connection->close();
      fixture_.protocol_.abandoned();
    }
    void close() override {}

   private:
    PeerFixture& fixture_;
  };

  // Reads what this end says, so that it goes on.
  bool listen() {
    bool any = false;
    for (const Line* line : {&small_, &large_})
      any |= recv(line->other_end, heard_.data(), heard_.size(), MSG_DONTWAIT) > 0;
    return any;
  }

  struct Line {
    std::shared_ptr<TcpConnection> connection;
    int other_end = -1;
  };

  asio::io_context io_;
  std::string lost_;
  std::vector<std::byte> heard_ = std::vector<std::byte>(65536);
  MessageProtocol protocol_;
  OneConnection wire_;
  Line small_, large_;
};

}  // namespace piper::comm::internal
