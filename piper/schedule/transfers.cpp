#include <piper/schedule/transfers.h>

namespace piper::schedule {
namespace {

int64_t neighbour(int64_t pp, int64_t stage, int64_t step) {
  const int64_t other = stage + step;
  return other >= 0 && other < pp ? other : -1;
}

}  // namespace

int64_t stage_received_from(const Action& action, int64_t pp, int64_t stage) {
  return neighbour(pp, stage, action.kind == Action::Kind::kForward ? -1 : 1);
}

int64_t stage_sent_to(const Action& action, int64_t pp, int64_t stage) {
  return neighbour(pp, stage, action.kind == Action::Kind::kForward ? 1 : -1);
}

std::vector<Item> insert_transfers(const std::vector<Action>& actions, int64_t pp, int64_t stage) {
  std::vector<Item> items;
  const auto receive = [&](size_t j) {
    if (j < actions.size() && stage_received_from(actions[j], pp, stage) >= 0)
      items.push_back({Item::Kind::kReceive, actions[j]});
  };
  receive(0);
  receive(1);
  for (size_t j = 0; j < actions.size(); ++j) {
    items.push_back({Item::Kind::kCompute, actions[j]});
    if (stage_sent_to(actions[j], pp, stage) >= 0) items.push_back({Item::Kind::kSend, actions[j]});
    receive(j + 2);
  }
  return items;
}

}  // namespace piper::schedule
