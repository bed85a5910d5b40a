// One connection of the TCP wire: two processes' notes and payloads. Internal to tcp_wire.cpp.
//
//   | size: 4 bytes | kind: 4 bytes | id: 8 bytes | size bytes: a note, or a chunk of a payload |
#pragma once

#include <piper/comm/wire.h>

#include <asio/ip/tcp.hpp>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

namespace piper::comm::internal {

// Messages up to 256 KB go without being offered first: copying one costs no more than two more
// ways between the processes, which are long where other messages wait in the same NIC.
constexpr size_t kTcpNoteBytes = (size_t{256} << 10) + kMaxNoteHeadBytes;

class TcpConnection : public std::enable_shared_from_this<TcpConnection> {
 public:
  // `socket` is connected; whatever runs its executor is "the I/O thread" below.
  TcpConnection(int64_t process, asio::ip::tcp::socket socket);

  // In any thread.
  void send_note(std::span<const std::byte> head, std::span<const std::byte> body);
  void send_payload(uint64_t id, std::span<const std::byte> bytes);
  void expect_payload(uint64_t id, std::span<std::byte> bytes);
  bool cancel_payload(uint64_t id);  // see Wire

  // In the I/O thread.
  void start(WireEvents& events);
  void close();  // no buffer is touched afterwards, and no event comes

 private:
  struct ChunkHead {
    uint32_t size = 0, kind = 0;
    uint64_t id = 0;
  };
  struct Outgoing {
    uint64_t id = 0;
    std::span<const std::byte> rest;  // not yet sent, nor in the current chunk
  };
  struct Chunk {  // being sent
    ChunkHead head;
    size_t head_sent = 0;
    std::span<const std::byte> rest;
    bool last = false;  // of its payload
    bool active = false;
  };
  struct Expected {
    std::span<std::byte> bytes;
    size_t num_received = 0;
  };
  struct Incoming {  // the chunk being read
    uint64_t id = 0;
    std::span<std::byte> rest;
  };
  enum class Progress { kBlocked, kDrained, kMore };

  bool idle() const;
  void want_to_write();  // under mutex_
  Progress write_once(std::vector<uint64_t>& sent);
  Progress write_notes();
  Progress write_chunk(std::vector<uint64_t>& sent);
  void begin_chunk();
  void on_writable();

  void wait_readable();
  void on_readable();
  bool read_once();  // false when there is nothing to read now
  bool parse();
  bool begin_payload(const ChunkHead& head);
  void take(size_t size);
  void end_chunk();
  void lose(const std::string& why);

  const int64_t process_;
  asio::ip::tcp::socket socket_;
  WireEvents* events_ = nullptr;

  std::mutex mutex_;  // of the sending side and expected_
  bool closed_ = false;
  bool writer_waits_ = false;      // the I/O thread will call on_writable()
  std::vector<std::byte> notes_;   // to be sent, framed
  size_t num_notes_sent_ = 0;      // bytes of them
  std::deque<Outgoing> payloads_;  // in turn
  Chunk chunk_;
  std::map<uint64_t, Expected> expected_;

  // Only the I/O thread uses these.
  std::vector<std::byte> input_;
  size_t begin_ = 0, end_ = 0;  // of what was read and not yet used
  Incoming incoming_;
  bool in_chunk_ = false;
};

}  // namespace piper::comm::internal
