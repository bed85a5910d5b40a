// The wire over TCP: two connections for each pair of processes, one thread a process that sleeps
// in the reactor, never spins.
//
//   small   notes without a body, or with one of a few KB
//   large   other notes, and payloads
//
// What a socket has taken cannot be overtaken. With one connection the answer to an offer waits for
// all that travels the same way, so that two processes that offer each other large messages send
// one after the other. Notes go out from the poster's thread when the socket takes them, else ahead
// of payloads; payloads are cut into chunks, so that several take turns, and are read straight into
// the receiver's buffer.
#pragma once

#include <piper/comm/control_frame.h>
#include <piper/comm/network.h>
#include <piper/comm/wire.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace piper::comm {

class TcpWire final : public Wire {
 public:
  // Listens on a free port of `numeric_address`, and calls others from it: where a host has several
  // NICs, that address decides which one carries this process's bytes. Throws InvalidInput.
  TcpWire(const Identity& mine, const std::string& secret, const std::string& numeric_address,
          Reach reach = Reach::kOneAddress);
  ~TcpWire() override;

  std::string address() const;  // "127.0.0.1:4711", for the others

  // Connects every pair; `addresses` by process. Returns when all of this process's connections
  // are there; throws CommError naming who is missing after `timeout_seconds`.
  void connect(const std::vector<std::string>& addresses, double timeout_seconds);

  void start(WireEvents& events) override;
  size_t max_note_bytes() const override;
  void send_note(int64_t process, std::span<const std::byte> head,
                 std::span<const std::byte> body) override;
  void send_payload(int64_t process, uint64_t id, std::span<const std::byte> bytes) override;
  void expect_payload(int64_t process, uint64_t id, std::span<std::byte> bytes) override;
  bool cancel_payload(int64_t process, uint64_t id) override;
  void abandon() override;
  void close() override;

 private:
  struct Impl;
  std::string numeric_address_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace piper::comm
