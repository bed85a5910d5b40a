#include <doctest/doctest.h>
#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/schedule/step.h>

#include <algorithm>

using namespace piper;
using namespace piper::schedule;
using strategy::PipelineSchedule;

namespace {

std::string text(const std::vector<Action>& list) {
  std::string out;
  for (const Action& action : list)
    out +=
        fmt::format("{}{} ", action.kind == Action::Kind::kForward ? 'F' : 'B', action.micro_batch);
  return out;
}

// The most micro-batches whose forward has run and whose backward has not.
int64_t peak(const std::vector<Action>& list) {
  int64_t live = 0, most = 0;
  for (const Action& action : list) {
    live += action.kind == Action::Kind::kForward ? 1 : -1;
    most = std::max(most, live);
  }
  return most;
}

}  // namespace

TEST_CASE("GPipe runs all forwards, then all backwards") {
  CHECK(text(actions(PipelineSchedule::kGPipe, 2, 0, 3)) == "F0 F1 F2 B0 B1 B2 ");
}

TEST_CASE("1F1B runs ahead by the stages behind it, then alternates") {
  CHECK(text(actions(PipelineSchedule::k1F1B, 3, 0, 4)) == "F0 F1 F2 B0 F3 B1 B2 B3 ");
  CHECK(text(actions(PipelineSchedule::k1F1B, 3, 1, 4)) == "F0 F1 B0 F2 B1 F3 B2 B3 ");
  CHECK(text(actions(PipelineSchedule::k1F1B, 3, 2, 4)) == "F0 B0 F1 B1 F2 B2 F3 B3 ");
}

TEST_CASE("1F1B with fewer micro-batches than stages runs what there is") {
  CHECK(text(actions(PipelineSchedule::k1F1B, 7, 0, 2)) == "F0 F1 B0 B1 ");
  CHECK(text(actions(PipelineSchedule::k1F1B, 7, 5, 1)) == "F0 B0 ");
}

TEST_CASE("activations peak at m under GPipe and at p-i under 1F1B, never above m") {
  for (const int64_t pp : {1, 2, 4, 7})
    for (const int64_t m : {1, 2, 4, 7, 16})
      for (int64_t stage = 0; stage < pp; ++stage) {
        CHECK(peak(actions(PipelineSchedule::kGPipe, pp, stage, m)) == m);
        CHECK(peak(actions(PipelineSchedule::k1F1B, pp, stage, m)) == std::min(m, pp - stage));
      }
}

TEST_CASE("both schedules run every micro-batch once each way, forward first, in ascending order") {
  for (const PipelineSchedule schedule : {PipelineSchedule::kGPipe, PipelineSchedule::k1F1B})
    for (int64_t stage = 0; stage < 4; ++stage) {
      int32_t forwards = 0, backwards = 0;
      for (const Action& action : actions(schedule, 4, stage, 6)) {
        int32_t& next = action.kind == Action::Kind::kForward ? forwards : backwards;
        CHECK(action.micro_batch == next++);
        CHECK(backwards <= forwards);
      }
      CHECK(forwards == 6);
      CHECK(backwards == 6);
    }
}

TEST_CASE("a stage outside the pipeline is our own mistake") {
  CHECK_THROWS_AS(actions(PipelineSchedule::kGPipe, 2, 2, 1), InternalError);
  CHECK_THROWS_AS(actions(PipelineSchedule::kGPipe, 2, 0, 0), InternalError);
}
