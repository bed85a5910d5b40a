#include <fmt/core.h>
#include <piper/base/error.h>
#include <piper/comm/device_transport.h>

#include <utility>

namespace piper::comm {
namespace {

// Marks the part number of the message that says that the bytes were copied.
constexpr uint32_t kCopied = uint32_t{1} << 30;

class DeviceSend final : public Request {
 public:
  DeviceSend(Transport& inner, DeviceMemory& memory, std::shared_ptr<DeviceOffers> offers,
             Rank peer, const OperationName& name, uint32_t part, std::span<const std::byte> bytes)
      : memory_(memory),
        offers_(std::move(offers)),
        number_(
            offers_->add({.source = bytes.data(), .size = bytes.size(), .ready = memory.mark()})),
        copied_(inner.post_receive(peer, name, part | kCopied, {})),
        offer_(inner.post_send(peer, name, part, std::as_bytes(std::span(&number_, 1)))) {}
  ~DeviceSend() override { offers_->withdraw(number_); }

  bool done() const override {
    if (is_done_) return true;
    if (!offer_->done() || !copied_->done()) return false;
    std::string problem;
    offers_->take(number_, [&](const DeviceOffers::Offer& offer) {
      problem = offer.problem;
      if (offer.copied) memory_.wait(*offer.copied);
    });
    if (!problem.empty()) throw MessageError(problem);
    return is_done_ = true;
  }
  void tell(Completions& completions, int32_t number) override {
    copied_->tell(completions, number);
  }

 private:
  DeviceMemory& memory_;
  std::shared_ptr<DeviceOffers> offers_;
  uint64_t number_;
  std::shared_ptr<Request> copied_, offer_;
  mutable bool is_done_ = false;
};

class DeviceReceive final : public Request {
 public:
  DeviceReceive(Transport& inner, DeviceMemory& memory, std::shared_ptr<DeviceOffers> offers,
                Rank peer, OperationName name, uint32_t part, std::span<std::byte> bytes)
      : inner_(inner),
        memory_(memory),
        offers_(std::move(offers)),
        peer_(peer),
        name_(std::move(name)),
        part_(part),
        target_(bytes),
        offer_(inner.post_receive(peer, name_, part,
                                  std::as_writable_bytes(std::span(&number_, 1)))) {}

  bool done() const override {
    if (is_done_) return true;
    if (!offer_->done()) return false;
    std::string problem;
    const bool is_there = offers_->take(number_, [&](DeviceOffers::Offer& offer) {
      if (offer.size != target_.size()) {
        problem = offer.problem = fmt::format(
            "sizes differ in '{}' (part {}): rank {} sends {} bytes, rank {} receives {} bytes",
            name_.what, part_, peer_.value, offer.size, inner_.rank().value, target_.size());
        return;
      }
      if (offer.size == 0) return;
      memory_.wait(*offer.ready);
      memory_.copy(target_.data(), offer.source, offer.size);
      offer.copied = memory_.mark();
    });
    if (!is_there)
      throw CommError(fmt::format("rank {}: rank {} withdrew its send of '{}'", inner_.rank().value,
                                  peer_.value, name_.what));
    // Its receive was posted before the offer.
    copied_ = inner_.post_send(peer_, name_, part_ | kCopied, {});
    if (!problem.empty()) throw MessageError(problem);
    return is_done_ = true;
  }
  void tell(Completions& completions, int32_t number) override {
    offer_->tell(completions, number);
  }

 private:
  Transport& inner_;
  DeviceMemory& memory_;
  std::shared_ptr<DeviceOffers> offers_;
  Rank peer_;
  OperationName name_;
  uint32_t part_;
  std::span<std::byte> target_;
  uint64_t number_ = 0;
  std::shared_ptr<Request> offer_;
  mutable std::shared_ptr<Request> copied_;
  mutable bool is_done_ = false;
};

// To a rank of another process: the bytes are copied to the host, and sent when they are there.
class HostedSend final : public Request {
 public:
  HostedSend(Transport& inner, DeviceMemory& memory, Rank peer, OperationName name, uint32_t part,
             std::span<const std::byte> bytes)
      : inner_(inner),
        peer_(peer),
        name_(std::move(name)),
        part_(part),
        host_(memory.host_bytes(bytes.size())) {
    state_->inner = &inner;
    if (bytes.empty()) {
      send();
      return;
    }
    memory.copy_to_host(*host_, bytes.data());
    memory.when_reached(memory.mark(), [state = state_](const std::string& problem) {
      const std::lock_guard lock(state->mutex);
      state->is_reached = true;
      state->problem = problem;
      if (state->inner == nullptr) return;  // the request is gone
      if (state->completions != nullptr) state->completions->add(state->number);
      state->inner->wake();
    });
  }
  ~HostedSend() override {
    const std::lock_guard lock(state_->mutex);
    state_->inner = nullptr;
  }

  bool done() const override {
    if (sent_ == nullptr) {
      const std::lock_guard lock(state_->mutex);
      if (!state_->is_reached) return false;
      if (!state_->problem.empty()) throw CommError(state_->problem);
      send();
      if (state_->completions != nullptr) sent_->tell(*state_->completions, state_->number);
    }
    return sent_->done();
  }
  // Twice: when the bytes are on the host, where the owner's question sends them, and when they are
  // sent.
  void tell(Completions& completions, int32_t number) override {
    if (sent_ != nullptr) return sent_->tell(completions, number);
    const std::lock_guard lock(state_->mutex);
    state_->completions = &completions;
    state_->number = number;
    if (state_->is_reached) completions.add(number);
  }

 private:
  // Shared with the thread that sees the mark reached.
  struct State {
    std::mutex mutex;
    bool is_reached = false;
    std::string problem;
    Transport* inner = nullptr;
    Completions* completions = nullptr;
    int32_t number = 0;
  };
  void send() const { sent_ = inner_.post_send(peer_, name_, part_, host_->bytes()); }

  Transport& inner_;
  Rank peer_;
  OperationName name_;
  uint32_t part_;
  std::shared_ptr<DeviceMemory::HostBytes> host_;
  std::shared_ptr<State> state_ = std::make_shared<State>();
  mutable std::shared_ptr<Request> sent_;  // before its bytes
};

// From a rank of another process.
class HostedReceive final : public Request {
 public:
  HostedReceive(Transport& inner, DeviceMemory& memory, Rank peer, const OperationName& name,
                uint32_t part, std::span<std::byte> bytes)
      : memory_(memory),
        target_(bytes),
        host_(memory.host_bytes(bytes.size())),
        received_(inner.post_receive(peer, name, part, host_->bytes())) {}

  bool done() const override {
    if (is_done_) return true;
    if (!received_->done()) return false;
    if (!target_.empty()) memory_.copy_from_host(target_.data(), *host_);
    return is_done_ = true;
  }
  void tell(Completions& completions, int32_t number) override {
    received_->tell(completions, number);
  }

 private:
  DeviceMemory& memory_;
  std::span<std::byte> target_;
  std::shared_ptr<DeviceMemory::HostBytes> host_;
  std::shared_ptr<Request> received_;  // before its bytes
  mutable bool is_done_ = false;
};

}  // namespace

uint64_t DeviceOffers::add(Offer offer) {
  const std::lock_guard lock(mutex_);
  offers_.emplace(next_, std::move(offer));
  return next_++;
}

void DeviceOffers::withdraw(uint64_t number) {
  const std::lock_guard lock(mutex_);
  offers_.erase(number);
}

DeviceTransport::DeviceTransport(Transport& inner, DeviceMemory& memory,
                                 std::shared_ptr<DeviceOffers> offers)
    : inner_(inner),
      memory_(memory),
      offers_(std::move(offers)),
      bytes_sent_(static_cast<size_t>(inner.world_size())) {}

std::shared_ptr<Request> DeviceTransport::post_send(Rank peer, const OperationName& name,
                                                    uint32_t part,
                                                    std::span<const std::byte> bytes) {
  PIPER_CHECK((part & kCopied) == 0, name.what);
  std::shared_ptr<Request> request;
  if (offers_->is_here(peer))
    request = std::make_shared<DeviceSend>(inner_, memory_, offers_, peer, name, part, bytes);
  else
    request = std::make_shared<HostedSend>(inner_, memory_, peer, name, part, bytes);
  bytes_sent_.at(peer.index()) += static_cast<int64_t>(bytes.size());
  return request;
}

std::shared_ptr<Request> DeviceTransport::post_receive(Rank peer, const OperationName& name,
                                                       uint32_t part, std::span<std::byte> bytes) {
  PIPER_CHECK((part & kCopied) == 0, name.what);
  if (offers_->is_here(peer))
    return std::make_shared<DeviceReceive>(inner_, memory_, offers_, peer, name, part, bytes);
  return std::make_shared<HostedReceive>(inner_, memory_, peer, name, part, bytes);
}

}  // namespace piper::comm
