#include <doctest/doctest.h>
#include <piper/schedule/transfers.h>

using namespace piper::schedule;
using piper::strategy::PipelineSchedule;

namespace {

std::string text_of_items(const std::vector<Item>& items) {
  std::string out;
  for (const Item& item : items) {
    if (item.kind == Item::Kind::kReceive) out += "r";
    if (item.kind == Item::Kind::kSend) out += "s";
    out += item.action.kind == Action::Kind::kForward ? "F" : "B";
    out += std::to_string(item.action.micro_batch) + " ";
  }
  return out;
}

std::string items(PipelineSchedule schedule, int64_t pp, int64_t stage, int64_t m) {
  return text_of_items(insert_transfers(actions(schedule, pp, stage, m), pp, stage));
}

}  // namespace

TEST_CASE("one stage alone transfers nothing") {
  CHECK(items(PipelineSchedule::k1F1B, 1, 0, 2) == "F0 B0 F1 B1 ");
}

TEST_CASE("the ends receive from one side and send to it") {
  CHECK(items(PipelineSchedule::kGPipe, 2, 0, 2) == "F0 sF0 rB0 F1 sF1 rB1 B0 B1 ");
  CHECK(items(PipelineSchedule::kGPipe, 2, 1, 2) == "rF0 rF1 F0 F1 B0 sB0 B1 sB1 ");
}

TEST_CASE("a stage in the middle posts each receive one action ahead") {
  CHECK(items(PipelineSchedule::k1F1B, 3, 1, 3) ==
        "rF0 rF1 F0 sF0 rB0 F1 sF1 rF2 B0 sB0 rB1 F2 sF2 rB2 B1 sB1 B2 sB2 ");
}

TEST_CASE("what a pair needs is received during the pair before") {
  CHECK(items(PipelineSchedule::k1F1BPairs, 3, 1, 5) ==
        "rF0 rF1 F0 sF0 rF2 F1 sF1 rF3 rB0 F2 sF2 rF4 rB1 F3 sF3 B0 sB0 rB2 F4 sF4 B1 sB1 rB3 B2 "
        "sB2 rB4 B3 sB3 B4 sB4 ");
}

TEST_CASE("what one stage sends is what its neighbour receives, in the same order") {
  for (const PipelineSchedule schedule :
       {PipelineSchedule::kGPipe, PipelineSchedule::k1F1B, PipelineSchedule::k1F1BPairs})
    for (const int64_t m : {1, 3, 9})
      for (int64_t stage = 0; stage + 1 < 4; ++stage)
        for (const Action::Kind kind : {Action::Kind::kForward, Action::Kind::kBackward}) {
          const bool down = kind == Action::Kind::kForward;
          const auto of = [&](int64_t at, Item::Kind item_kind) {
            std::vector<Action> found;
            for (const Item& item : insert_transfers(actions(schedule, 4, at, m), 4, at))
              if (item.kind == item_kind && item.action.kind == kind)
                found.push_back({kind, item.action.micro_batch});
            return found;
          };
          const std::vector<Action> sent = of(down ? stage : stage + 1, Item::Kind::kSend);
          CHECK(sent == of(down ? stage + 1 : stage, Item::Kind::kReceive));
          CHECK(static_cast<int64_t>(sent.size()) == m);
        }
}
