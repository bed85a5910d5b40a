#include <piper/base/error.h>
#include <piper/comm/local_transport.h>

namespace piper::comm::internal {
namespace {

class LocalRequest final : public Request {
 public:
  LocalRequest(std::shared_ptr<LocalState> state, std::shared_ptr<Posting> posting)
      : state_(std::move(state)), posting_(std::move(posting)) {
    state_->post(posting_);
  }
  ~LocalRequest() override { state_->withdraw(*posting_); }

  bool done() const override {
    switch (posting_->state.load(std::memory_order_acquire)) {
      case PostingState::kDone:
        return true;
      case PostingState::kMismatched:
        throw MessageError(posting_->problem);
      case PostingState::kWaiting:
      case PostingState::kCopying:
      case PostingState::kWithdrawn:
        if (state_->failed()) state_->check(*posting_);
        return false;
    }
    return false;
  }

  void tell(Completions& completions, int32_t number) override {
    state_->tell(*posting_, completions, number);
  }

 private:
  std::shared_ptr<LocalState> state_;
  std::shared_ptr<Posting> posting_;
};

// Counted apart: one count that all ranks' requests change would travel from core to core with
// each.
std::shared_ptr<LocalState> own_count(std::shared_ptr<LocalState> state) {
  LocalState* const at = state.get();
  return {at, [keep = std::move(state)](LocalState*) {}};
}

class LocalTransport final : public Transport {
 public:
  LocalTransport(std::shared_ptr<LocalState> state, Rank rank)
      : state_(own_count(std::move(state))), rank_(rank), bytes_sent_(state_->size()) {
    state_->enter(rank_);
  }
  ~LocalTransport() override { state_->leave(rank_); }

  Rank rank() const override { return rank_; }
  int64_t world_size() const override { return state_->size(); }

  std::shared_ptr<Request> post_send(Rank peer, const OperationName& name, uint32_t part,
                                     std::span<const std::byte> bytes) override {
    auto posting = make(Direction::kSend, peer, name, part, bytes.size());
    posting->source = bytes.data();
    auto request = make_request(std::move(posting));
    bytes_sent_[peer.index()] += static_cast<int64_t>(bytes.size());
    return request;
  }

  std::shared_ptr<Request> post_receive(Rank peer, const OperationName& name, uint32_t part,
                                        std::span<std::byte> bytes) override {
    auto posting = make(Direction::kReceive, peer, name, part, bytes.size());
    posting->target = bytes.data();
    return make_request(std::move(posting));
  }

  uint64_t wait_completion(uint64_t seen, double timeout_seconds) override {
    return state_->wait_completion(rank_, seen, timeout_seconds);
  }
  void wake() override { state_->wake(rank_); }

  void fail(const std::string& reason, Fault fault) override { state_->fail(rank_, reason, fault); }
  std::vector<int64_t> bytes_sent() const override { return bytes_sent_; }
  std::string unmatched() const override { return state_->unmatched(); }

 private:
  std::shared_ptr<LocalRequest> make_request(std::shared_ptr<Posting> posting) const {
    return std::allocate_shared<LocalRequest>(PoolAllocator<LocalRequest>(state_->pool(rank_)),
                                              state_, std::move(posting));
  }

  std::shared_ptr<Posting> make(Direction direction, Rank peer, const OperationName& name,
                                uint32_t part, size_t size) {
    PIPER_CHECK(peer.valid() && peer.value < state_->size(), "peer " + std::to_string(peer.value));
    auto posting = std::allocate_shared<Posting>(PoolAllocator<Posting>(state_->pool(rank_)));
    posting->owner = rank_;
    posting->peer = peer;
    posting->direction = direction;
    posting->name = name;
    posting->part = part;
    posting->size = size;
    if (state_->failed()) state_->check(*posting);
    return posting;
  }

  std::shared_ptr<LocalState> state_;
  Rank rank_;
  std::vector<int64_t> bytes_sent_;
};

}  // namespace

std::unique_ptr<Transport> make_local_transport(std::shared_ptr<LocalState> state, Rank rank) {
  return std::make_unique<LocalTransport>(std::move(state), rank);
}

}  // namespace piper::comm::internal
