#include <piper/schedule/transfers.h>

#include <span>

namespace piper::schedule {
namespace {

// `step` virtual stages further in the action's direction.
int64_t neighbour(const Action& action, const PipelineLayout& placing, int64_t rank, int64_t step) {
  if (action.kind == Action::Kind::kBackwardWeights) return -1;
  const int64_t direction = action.kind == Action::Kind::kForward ? step : -step;
  const int64_t other = virtual_stage(placing.schedule, placing.pp, rank, action.chunk) + direction;
  return other < placing.pp * placing.vpp ? other : -1;
}

int64_t other_rank(int64_t stage, const PipelineLayout& placing, int64_t rank) {
  if (stage < 0) return -1;
  const int64_t other = rank_of_stage(placing.schedule, placing.pp, stage);
  return other == rank ? -1 : other;
}

}  // namespace

int64_t virtual_stage_before(const Action& action, const PipelineLayout& placing, int64_t rank) {
  return neighbour(action, placing, rank, -1);
}

int64_t virtual_stage_after(const Action& action, const PipelineLayout& placing, int64_t rank) {
  return neighbour(action, placing, rank, 1);
}

int64_t rank_received_from(const Action& action, const PipelineLayout& placing, int64_t rank) {
  return other_rank(virtual_stage_before(action, placing, rank), placing, rank);
}

int64_t rank_sent_to(const Action& action, const PipelineLayout& placing, int64_t rank) {
  return other_rank(virtual_stage_after(action, placing, rank), placing, rank);
}

std::vector<Item> insert_transfers(const std::vector<Action>& actions,
                                   const PipelineLayout& placing, int64_t rank) {
  std::vector<std::span<const Action>> turns;  // of one action, or of the two of a pair
  for (size_t j = 0; j < actions.size(); j += turns.back().size())
    turns.emplace_back(actions.begin() + static_cast<std::ptrdiff_t>(j),
                       actions[j].pairs_with_next ? 2 : 1);
  std::vector<Item> items;
  const auto receive = [&](size_t turn) {
    if (turn >= turns.size()) return;
    for (const Action& action : turns[turn])
      if (rank_received_from(action, placing, rank) >= 0)
        items.push_back({Item::Kind::kReceive, action});
  };
  receive(0);
  receive(1);
  for (size_t turn = 0; turn < turns.size(); ++turn) {
    for (const Action& action : turns[turn]) {
      items.push_back({Item::Kind::kCompute, action});
      if (rank_sent_to(action, placing, rank) >= 0) items.push_back({Item::Kind::kSend, action});
    }
    receive(turn + 2);
  }
  return items;
}

std::vector<Item> insert_transfers(const std::vector<Action>& actions, int64_t pp, int64_t stage) {
  return insert_transfers(actions, {.pp = pp}, stage);
}

}  // namespace piper::schedule
