// A transport that notes what passes through it: which bytes each operation sent to, and received
// from, each peer. For holding the bytes of a real run against their prediction.
#pragma once

#include <piper/comm/transport.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <vector>

namespace piper::comm {

// All messages of one operation from one rank to another, as one of the two posted them.
struct CountedBytes {
  uint64_t key = 0;  // OperationName::key
  Rank peer;
  bool is_sent = true;  // else received
  int64_t num_messages = 0;
  int64_t bytes = 0;
};

// Everything is done by `inner`, which outlives it. Belongs to the rank's thread, as any endpoint.
// Messages to itself count too.
class CountedTransport final : public Transport {
 public:
  explicit CountedTransport(Transport& inner) : inner_(inner) {}

  // What was posted since the last call, by key, peer and direction, and forgets it.
  std::vector<CountedBytes> take();

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
  std::vector<int64_t> bytes_sent() const override { return inner_.bytes_sent(); }
  std::string unmatched() const override { return inner_.unmatched(); }
  DeviceMemory* memory() override { return inner_.memory(); }

 private:
  struct Sum {
    int64_t num_messages = 0, bytes = 0;
  };
  void note(uint64_t key, Rank peer, bool is_sent, size_t bytes);

  Transport& inner_;
  std::map<std::tuple<uint64_t, int64_t, bool>, Sum> sums_;  // key, peer, is sent
};

}  // namespace piper::comm
