#include <piper/comm/counted_transport.h>

#include <utility>

namespace piper::comm {

void CountedTransport::note(uint64_t key, Rank peer, bool is_sent, size_t bytes) {
  Sum& sum = sums_[{key, peer.value, is_sent}];
  ++sum.num_messages;
  sum.bytes += static_cast<int64_t>(bytes);
}

std::shared_ptr<Request> CountedTransport::post_send(Rank peer, const OperationName& name,
                                                     uint32_t part,
                                                     std::span<const std::byte> bytes) {
  auto request = inner_.post_send(peer, name, part, bytes);
  note(name.key, peer, true, bytes.size());
  return request;
}

std::shared_ptr<Request> CountedTransport::post_receive(Rank peer, const OperationName& name,
                                                        uint32_t part, std::span<std::byte> bytes) {
  auto request = inner_.post_receive(peer, name, part, bytes);
  note(name.key, peer, false, bytes.size());
  return request;
}

std::vector<CountedBytes> CountedTransport::take() {
  std::vector<CountedBytes> counted;
  counted.reserve(sums_.size());
  for (const auto& [place, sum] : std::exchange(sums_, {}))
    counted.push_back({.key = std::get<0>(place),
                       .peer = Rank(std::get<1>(place)),
                       .is_sent = std::get<2>(place),
                       .num_messages = sum.num_messages,
                       .bytes = sum.bytes});
  return counted;
}

}  // namespace piper::comm
