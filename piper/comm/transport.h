// Moves bytes between ranks. One Transport object is one rank's endpoint; only its rank's thread
// may call it.
//
// Implementations: local.h (every rank a thread of one process), process_world.h (ranks of several
// processes). All waits are bounded: a timeout or a peer's failure is a CommError naming rank,
// operation and peer.
//
// A send may be done before its receive is posted (small messages between processes are): if the
// sizes then differ, the sender hears of it at its next call.
#pragma once

#include <piper/base/error.h>
#include <piper/base/strong_id.h>
#include <piper/comm/fault.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace piper::comm {

// What stopped a message, and which: its text names the operation, the peer and the bytes.
class MessageError : public CommError {
  using CommError::CommError;
};

// Names one operation of the whole run: the same on every member, never reused (e.g. step << 32 |
// operation id). `what` is for people: "F3 L2 dispatch".
struct OperationName {
  uint64_t key = 0;
  std::string what;
};

// Which of many requests have completed, by numbers that their owner gave them: so that nobody asks
// each of thousands. Thread-safe.
class Completions {
 public:
  // `wakes`: by number, whether the owner has something to do as soon as that request is done; of
  // the others only the last one that is expected wakes it. A number beyond it wakes.
  explicit Completions(std::vector<bool> wakes = {}) : wakes_(std::move(wakes)) {
    numbers_.reserve(wakes_.size());
  }
  // Before a request is to tell; the owner's thread.
  void expect() {
    const std::lock_guard lock(mutex_);
    ++num_expected_;
  }
  // Whether the owner is to be woken, if it waits.
  bool add(int32_t number) {
    const std::lock_guard lock(mutex_);
    numbers_.push_back(number);
    has_any_.store(true, std::memory_order_release);
    const auto index = static_cast<size_t>(number);
    return --num_expected_ <= 0 || index >= wakes_.size() || wakes_[index];
  }
  // Into `numbers`, which is emptied first: those added since the last call, in their order.
  void take(std::vector<int32_t>& numbers) {
    numbers.clear();
    if (!has_any_.load(std::memory_order_acquire)) return;
    const std::lock_guard lock(mutex_);
    std::swap(numbers, numbers_);
    has_any_.store(false, std::memory_order_release);
  }

 private:
  std::mutex mutex_;
  const std::vector<bool> wakes_;
  std::vector<int32_t> numbers_;
  int64_t num_expected_ = 0;  // and not added; below zero where nobody said so, or one adds twice
  std::atomic<bool> has_any_{false};
};

// One posted send or receive. Dropping it unfinished withdraws it: its buffer is not touched
// afterwards.
class Request {
 public:
  virtual ~Request() = default;
  virtual bool done()
      const = 0;  // thread-safe, never blocks; throws CommError when the transport has failed
  // Adds `number` to `completions`, which outlive the request, once it is done or has gone wrong:
  // now, or when that happens. It may do so before, where done() has something to do on the way. At
  // most once a request, behind Completions::expect(); its owner's thread.
  virtual void tell(Completions& completions, int32_t number) = 0;
};

class DeviceMemory;

class Transport {
 public:
  virtual ~Transport() = default;
  virtual Rank rank() const = 0;
  virtual int64_t world_size() const = 0;

  // Buffers stay alive and untouched until the request is done. A send and its receive agree on
  // (key, part) and on the size; a difference is a CommError on both sides showing both. `part`
  // distinguishes several messages of one operation between the same two ranks. Zero bytes are a
  // message too. To itself: allowed.
  virtual std::shared_ptr<Request> post_send(Rank peer, const OperationName& name, uint32_t part,
                                             std::span<const std::byte> bytes) = 0;
  virtual std::shared_ptr<Request> post_receive(Rank peer, const OperationName& name, uint32_t part,
                                                std::span<std::byte> bytes) = 0;

  // Sleeps until one of this rank's requests completes that its Completions, if it has any, wake
  // the rank for (or the world fails): returns a counter of such; returns at once when it already
  // differs from `seen`. Gives up after `timeout_seconds` by returning `seen`.
  virtual uint64_t wait_completion(uint64_t seen, double timeout_seconds) = 0;
  // Counts as a completion: ends such a sleep for what is no message. From any thread.
  virtual void wake() = 0;

  // Tells every other rank that this one has failed, and whose fault it is: their pending and later
  // calls throw CommError naming it.
  virtual void fail(const std::string& reason, Fault fault) = 0;

  // Bytes this rank has posted to each peer so far.
  virtual std::vector<int64_t> bytes_sent() const = 0;

  // What stands in the way, for messages: posted sends and receives of any rank without their
  // counterpart, as far as this transport can know. "rank 0: receive 'F3 L2 dispatch' from rank 1;
  // rank 1: ...", or "".
  virtual std::string unmatched() const { return {}; }

  // Where the buffers are, when that is a device's memory, which the host does not touch
  // (device_transport.h); null: the host's.
  virtual DeviceMemory* memory() { return nullptr; }
};

}  // namespace piper::comm
