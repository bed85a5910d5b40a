// What carries bytes between the processes of a run. A wire knows processes, not ranks; what the
// bytes mean is message_protocol.h's business. Internal to the world of several processes.
//
// Two things travel: notes, copied when they are given; and payloads of any size, which go from the
// sender's buffer into the receiver's. Notes of up to a few KB arrive in order between two
// processes; everything else may overtake.
//
// Implementations: tcp_wire.h, mpi_wire.cpp (a plug-in, see mpi_plugin.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace piper::comm {

constexpr size_t kMaxNoteHeadBytes = 2048;

// Whom a wire tells. Called in the wire's thread; never while the wire holds a lock.
class WireEvents {
 public:
  virtual ~WireEvents() = default;
  virtual void note_arrived(int64_t process, std::span<const std::byte> note) = 0;
  virtual void payload_sent(int64_t process, uint64_t id) = 0;      // its buffer is free
  virtual void payload_received(int64_t process, uint64_t id) = 0;  // its buffer is filled
  // Nothing will come from there any more. May come for a process that left in peace.
  virtual void process_lost(int64_t process, const std::string& why) = 0;
  // No buffer is in use any more; follows abandon().
  virtual void abandoned() = 0;
  // Whether a rank of this process waits for a message from another one: a wire that has to look
  // for messages looks more often then.
  virtual bool expects_messages() const = 0;
};

// Thread-safe. Destroying it ends its thread; no buffer is touched afterwards.
class Wire {
 public:
  virtual ~Wire() = default;

  // From here on events come. Called once, when every process is ready.
  virtual void start(WireEvents& events) = 0;

  // How large a note may be: head (at most kMaxNoteHeadBytes) and body together.
  virtual size_t max_note_bytes() const = 0;
  virtual void send_note(int64_t process, std::span<const std::byte> head,
                         std::span<const std::byte> body) = 0;

  // Both sides name a payload by the sender's `id`. The receiver expects it before it tells the
  // sender to send. Buffers stay untouched until the event.
  virtual void send_payload(int64_t process, uint64_t id, std::span<const std::byte> bytes) = 0;
  virtual void expect_payload(int64_t process, uint64_t id, std::span<std::byte> bytes) = 0;

  // An expected payload will not come: the sender has said so. False when a part of it has come, so
  // that the sender contradicts itself: its buffer stays in use then until abandoned().
  virtual bool cancel_payload(int64_t process, uint64_t id) = 0;

  // The run has failed: every buffer is given up, soon; abandoned() says when. What is posted later
  // is ignored. Does not block.
  virtual void abandon() = 0;

  // The run is over in peace, and all processes know; what is unsent is no longer wanted.
  virtual void close() = 0;
};

}  // namespace piper::comm
