#include <doctest/doctest.h>
#include <piper/cost/pipeline_time.h>
#include <piper/cost/relative_approx.h>
#include <piper/schedule/step.h>

#include <algorithm>

namespace piper::cost {
namespace {

using schedule::Action;
using strategy::PipelineSchedule;

// The plain version: every action of every stage as soon as what it waits for has ended.
double play(PipelineSchedule schedule, const std::vector<StageSeconds>& stages, int64_t m) {
  const size_t p = stages.size();
  std::vector<std::vector<Action>> lists;
  for (size_t s = 0; s < p; ++s)
    lists.push_back(
        schedule::actions(schedule, static_cast<int64_t>(p), static_cast<int64_t>(s), m));
  std::vector<std::vector<double>> ends(p),
      forward(p, std::vector<double>(static_cast<size_t>(m), -1)), backward = forward;
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t s = 0; s < p; ++s) {
      if (ends[s].size() == lists[s].size()) continue;
      const size_t j = ends[s].size();
      const Action action = lists[s][j];
      const auto k = static_cast<size_t>(action.micro_batch);
      const bool is_forward = action.kind == Action::Kind::kForward;
      double start = j > 0 ? ends[s][j - 1] : 0;
      const double asked = j > 1 ? ends[s][j - 2] : 0;  // when the message is waited for
      if (is_forward ? s > 0 : s + 1 < p) {
        const size_t from = is_forward ? s - 1 : s + 1;
        const double sent = is_forward ? forward[from][k] : backward[from][k];
        if (sent < 0) continue;
        start = std::max(start, std::max(sent, asked) + (is_forward ? stages[from].send_forward
                                                                    : stages[from].send_backward));
      }
      // The part of a backward that needs no gradient starts as soon as the stage is free.
      if (!is_forward) start = std::max(start - stages[s].ahead, j > 0 ? ends[s][j - 1] : 0);
      const double end = start + (is_forward ? stages[s].forward : stages[s].backward);
      ends[s].push_back(end);
      (is_forward ? forward : backward)[s][k] = end;
      moved = true;
    }
  }
  double last = 0;
  for (const std::vector<double>& list : ends) {
    REQUIRE(list.size() == static_cast<size_t>(2 * m));
    last = std::max(last, list.back());
  }
  return last;
}

double finish(PipelineSchedule schedule, const std::vector<StageSeconds>& stages, int64_t m) {
  return std::ranges::max(pipeline_finish(schedule, stages, m));
}

}  // namespace

TEST_CASE("equal stages and free messages: (m + p - 1)(F + B) for both schedules") {
  for (const auto schedule : {PipelineSchedule::kGPipe, PipelineSchedule::k1F1B})
    for (const int64_t p : {1, 2, 4, 7})
      for (const int64_t m : {1, 2, 7, 100}) {
        CAPTURE(p);
        CAPTURE(m);
        const std::vector<StageSeconds> stages(static_cast<size_t>(p),
                                               {.forward = 1, .backward = 2});
        CHECK(finish(schedule, stages, m) == near(3.0 * static_cast<double>(m + p - 1)));
      }
}

TEST_CASE(
    "the recurrence equals the schedules' own action lists, unequal stages and messages included") {
  for (const auto schedule : {PipelineSchedule::kGPipe, PipelineSchedule::k1F1B})
    for (const size_t p : {2, 3, 4, 7})
      for (const int64_t m : {1, 3, 8, 27, 101, 401, 1000}) {
        CAPTURE(p);
        CAPTURE(m);
        std::vector<StageSeconds> stages;
        for (size_t s = 0; s < p; ++s)
          stages.push_back({.forward = 1 + 0.1 * static_cast<double>(s * s % 5),
                            .backward = 2 + 0.2 * static_cast<double>(s * 3 % 4),
                            .send_forward = s + 1 < p ? 0.3 : 0,
                            .send_backward = s > 0 ? 0.4 : 0});
        for (size_t s = 0; s + 1 < p; ++s) stages[s].ahead = 0.2 * static_cast<double>(s % 3);
        CHECK(finish(schedule, stages, m) ==
              near(play(schedule, stages, m)).epsilon(m < 128 ? 1e-9 : 2e-3));
      }
}

TEST_CASE("micro-batches in flight: all of them in GPipe, as many as stages remain in 1F1B") {
  CHECK(micro_batches_in_flight(PipelineSchedule::kGPipe, 4, 0, 9) == 9);
  CHECK(micro_batches_in_flight(PipelineSchedule::k1F1B, 4, 0, 9) == 4);
  CHECK(micro_batches_in_flight(PipelineSchedule::k1F1B, 4, 3, 9) == 1);
  CHECK(micro_batches_in_flight(PipelineSchedule::k1F1B, 4, 0, 2) == 2);
}

}  // namespace piper::cost
