#include <piper/base/error.h>
#include <piper/comm/local.h>
#include <piper/comm/local_state.h>
#include <piper/comm/local_transport.h>

namespace piper::comm {

LocalWorld::LocalWorld(int64_t num_ranks) {
  PIPER_CHECK(num_ranks >= 1, std::to_string(num_ranks) + " ranks");
  state_ = std::make_shared<internal::LocalState>(num_ranks);
}

int64_t LocalWorld::size() const { return state_->size(); }

std::vector<Rank> LocalWorld::local_ranks() const {
  std::vector<Rank> ranks;
  for (int64_t r = 0; r < size(); ++r) ranks.emplace_back(r);
  return ranks;
}

std::unique_ptr<Transport> LocalWorld::endpoint(Rank rank) {
  return internal::make_local_transport(state_, rank);
}

Rank LocalWorld::failed_rank() const { return state_->failure().rank; }
std::string LocalWorld::failure_reason() const { return state_->failure().reason; }
Fault LocalWorld::failure_fault() const { return state_->failure().fault; }

std::vector<std::string> LocalWorld::share(const std::string&, const std::string& text) {
  return {text};
}

}  // namespace piper::comm
