// A rank's endpoint for buffers on a device. Among ranks that are threads of one process only where
// the bytes are travels between the threads; the receiver's stream copies them:
//
//   sender    mark in its stream, post_send    --- number of the offer --->   post_receive
//             its stream waits for the copy    <--- nothing, copied  -----    its stream waits for
//                                                                             the mark, copies,
//                                                                             marks
//
// Bytes for a rank of another process go through the memory of both hosts, over the wire that the
// world has:
//
//   sender    copies to its host, marks           --- bytes --->   post_receive on its host
//             (a thread sees the mark reached)                     its stream copies
//
// A request is done once the host has put all of this into the streams (and the wire has taken the
// bytes): no rank's thread waits for a device. Which stream that is, the calling thread says
// (DeviceMemory): it must be the same, or one behind it, when a request is posted and when done()
// first says true.
#pragma once

#include <piper/comm/device_memory.h>
#include <piper/comm/transport.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace piper::comm {

// What the endpoints of a process offer each other. Thread-safe.
class DeviceOffers {
 public:
  // `ranks` are those of this process; empty means that all ranks are.
  explicit DeviceOffers(std::vector<Rank> ranks = {}) : ranks_(std::move(ranks)) {}
  bool is_here(Rank rank) const {
    return ranks_.empty() || std::ranges::find(ranks_, rank) != ranks_.end();
  }

  struct Offer {
    const std::byte* source = nullptr;
    size_t size = 0;
    std::shared_ptr<const DeviceMemory::Mark> ready, copied;
    std::string problem;  // the sizes differ
  };

  uint64_t add(Offer offer);
  // Calls take(offer) unless it was withdrawn; false then.
  template <class Take>
  bool take(uint64_t number, Take take) {
    const std::lock_guard lock(mutex_);
    const auto found = offers_.find(number);
    if (found == offers_.end()) return false;
    take(found->second);
    return true;
  }
  // Nobody reads its buffer afterwards but what is already in a stream.
  void withdraw(uint64_t number);

 private:
  std::vector<Rank> ranks_;
  std::mutex mutex_;
  std::map<uint64_t, Offer> offers_;
  uint64_t next_ = 0;
};

class DeviceTransport final : public Transport {
 public:
  // `inner` and `memory` outlive it; `offers` is one object for all ranks of the process. Parts of
  // messages are below 2^30, or have only bit 31 besides.
  DeviceTransport(Transport& inner, DeviceMemory& memory, std::shared_ptr<DeviceOffers> offers);

  Rank rank() const override { return inner_.rank(); }
  int64_t world_size() const override { return inner_.world_size(); }
  std::shared_ptr<Request> post_send(Rank peer, const OperationName& name, uint32_t part,
                                     std::span<const std::byte> bytes) override;
  std::shared_ptr<Request> post_receive(Rank peer, const OperationName& name, uint32_t part,
                                        std::span<std::byte> bytes) override;
  uint64_t wait_completion(uint64_t seen, double timeout_seconds) override {
    return inner_.wait_completion(seen, timeout_seconds);
  }
  void wake() override { inner_.wake(); }
  void fail(const std::string& reason, Fault fault) override { inner_.fail(reason, fault); }
  // Counts only the bytes that lie on the device.
  std::vector<int64_t> bytes_sent() const override { return bytes_sent_; }
  std::string unmatched() const override { return inner_.unmatched(); }
  DeviceMemory* memory() override { return &memory_; }

 private:
  Transport& inner_;
  DeviceMemory& memory_;
  std::shared_ptr<DeviceOffers> offers_;
  std::vector<int64_t> bytes_sent_;
};

}  // namespace piper::comm
