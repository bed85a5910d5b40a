#include <doctest/doctest.h>
#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/schedule/action.h>

#include <algorithm>

using namespace piper;
using namespace piper::schedule;
using strategy::PipelineSchedule;

namespace {

// Capitals: chunk 0; small letters: chunk 1; +: the first of a pair.
std::string text_of_actions(const std::vector<Action>& list) {
  std::string out;
  for (const Action& action : list) {
    const char kind = (action.chunk == 0 ? "FBIW" : "fbiw")[static_cast<size_t>(action.kind)];
    out += fmt::format("{}{}{} ", kind, action.micro_batch, action.pairs_with_next ? "+" : "");
  }
  return out;
}

// The most chunk-forwards that have run and whose weights' gradient has not.
int64_t peak(const std::vector<Action>& list) {
  int64_t live = 0, most = 0;
  for (const Action& action : list) {
    live += action.kind == Action::Kind::kForward ? 1 : 0;
    most = std::max(most, live);
    live -= makes_weight_gradients(action.kind) ? 1 : 0;
  }
  return most;
}

}  // namespace

TEST_CASE("GPipe runs all forwards, then all backwards") {
  CHECK(text_of_actions(actions(PipelineSchedule::kGPipe, 2, 0, 3)) == "F0 F1 F2 B0 B1 B2 ");
}

TEST_CASE("1F1B runs ahead by the stages behind it, then alternates") {
  CHECK(text_of_actions(actions(PipelineSchedule::k1F1B, 3, 0, 4)) == "F0 F1 F2 B0 F3 B1 B2 B3 ");
  CHECK(text_of_actions(actions(PipelineSchedule::k1F1B, 3, 1, 4)) == "F0 F1 B0 F2 B1 F3 B2 B3 ");
  CHECK(text_of_actions(actions(PipelineSchedule::k1F1B, 3, 2, 4)) == "F0 B0 F1 B1 F2 B2 F3 B3 ");
}

TEST_CASE("1F1B with fewer micro-batches than stages runs what there is") {
  CHECK(text_of_actions(actions(PipelineSchedule::k1F1B, 7, 0, 2)) == "F0 F1 B0 B1 ");
  CHECK(text_of_actions(actions(PipelineSchedule::k1F1B, 7, 5, 1)) == "F0 B0 ");
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

TEST_CASE("interleaved takes as many micro-batches as there are ranks through each chunk in turn") {
  // Two ranks, two chunks: (2 - 0 - 1) 2 + (2 - 1) 2 = 4 forwards ahead on the first, 2 on the
  // last.
  CHECK(text_of_actions(actions(PipelineSchedule::kInterleaved, 2, 0, 4, 2)) ==
        "F0 F1 f0 f1 F2 b0 F3 b1 f2 B0 f3 B1 b2 b3 B2 B3 ");
  CHECK(text_of_actions(actions(PipelineSchedule::kInterleaved, 2, 1, 4, 2)) ==
        "F0 F1 f0 b0 f1 b1 F2 B0 F3 B1 f2 b2 f3 b3 B2 B3 ");
  CHECK(text_of_actions(actions(PipelineSchedule::kInterleaved, 2, 0, 3, 2)) ==
        "F0 F1 f0 f1 F2 b0 b1 f2 B0 B1 b2 B2 ");
}

TEST_CASE("interleaved with one chunk is 1F1B that runs further ahead") {
  CHECK(text_of_actions(actions(PipelineSchedule::kInterleaved, 3, 2, 3)) == "F0 B0 F1 B1 F2 B2 ");
  CHECK(text_of_actions(actions(PipelineSchedule::kInterleaved, 3, 1, 3)) == "F0 F1 F2 B0 B1 B2 ");
}

TEST_CASE("ZB-H1: the weights' part of rank r lags r micro-batches behind the input's") {
  CHECK(text_of_actions(actions(PipelineSchedule::kZbH1, 3, 0, 4)) ==
        "F0 F1 F2 I0 W0 F3 I1 W1 I2 W2 I3 W3 ");
  CHECK(text_of_actions(actions(PipelineSchedule::kZbH1, 3, 1, 4)) ==
        "F0 F1 I0 F2 I1 W0 F3 I2 W1 I3 W2 W3 ");
  CHECK(text_of_actions(actions(PipelineSchedule::kZbH1, 3, 2, 4)) ==
        "F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3 ");
  CHECK(text_of_actions(actions(PipelineSchedule::kZbH1, 7, 6, 2)) == "F0 I0 F1 I1 W0 W1 ");
}

TEST_CASE("ZB-V: one of each chunk in turn, the weights' parts left for the drain") {
  CHECK(text_of_actions(actions(PipelineSchedule::kZbV, 2, 0, 4, 2)) ==
        "F0 F1 F2 f0 i0 w0 f1 i1 w1 F3 I0 W0 f2 i2 w2 I1 W1 f3 i3 w3 I2 W2 I3 W3 ");
  CHECK(text_of_actions(actions(PipelineSchedule::kZbV, 2, 1, 4, 2)) ==
        "F0 f0 F1 f1 i0 w0 F2 I0 W0 f2 i1 w1 F3 I1 W1 f3 i2 w2 I2 i3 I3 W2 w3 W3 ");
  CHECK(text_of_actions(actions(PipelineSchedule::kZbV, 2, 0, 1, 2)) == "F0 f0 i0 w0 I0 W0 ");
}

TEST_CASE("DualPipeV: the steady part is pairs, fill and drain are split") {
  CHECK(text_of_actions(actions(PipelineSchedule::kDualPipeV, 2, 0, 5, 2)) ==
        "F0 F1 F2 f0 i0 w0 f1 F3+ b1 f2+ B0 F4+ b2 f3+ B1 b3 f4+ B2 b4 I3 W3 I4 W4 ");
  CHECK(text_of_actions(actions(PipelineSchedule::kDualPipeV, 2, 1, 5, 2)) ==
        "F0 f0 F1 f1 F2 b0 f2+ B0 F3+ b1 f3+ B1 F4+ b2 f4+ B2 b3 B3 i4 I4 w4 W4 ");
  CHECK(text_of_actions(actions(PipelineSchedule::kDualPipeV, 2, 0, 1, 2)) == "F0 f0 i0 w0 B0 ");
}

TEST_CASE("1F1B and interleaved in pairs: a forward more ahead, of another micro-batch") {
  CHECK(text_of_actions(actions(PipelineSchedule::k1F1BPairs, 1, 0, 4)) ==
        "F0 F1+ B0 F2+ B1 F3+ B2 B3 ");
  CHECK(text_of_actions(actions(PipelineSchedule::k1F1BPairs, 1, 0, 1)) == "F0 B0 ");
  CHECK(text_of_actions(actions(PipelineSchedule::k1F1BPairs, 2, 0, 5)) ==
        "F0 F1 F2 F3+ B0 F4+ B1 B2 B3 B4 ");
  CHECK(text_of_actions(actions(PipelineSchedule::k1F1BPairs, 2, 1, 5)) ==
        "F0 F1+ B0 F2+ B1 F3+ B2 F4+ B3 B4 ");
  CHECK(text_of_actions(actions(PipelineSchedule::kInterleavedPairs, 2, 0, 4, 2)) ==
        "F0 F1 f0 f1 F2 F3+ b0 f2+ b1 f3+ B0 B1 b2 b3 B2 B3 ");
  CHECK(text_of_actions(actions(PipelineSchedule::kInterleavedPairs, 2, 1, 4, 2)) ==
        "F0 F1 f0 f1+ b0 F2+ b1 F3+ B0 f2+ B1 f3+ b2 b3 B2 B3 ");
}

// Huang et al. 2019, Narayanan et al. 2021, Qi et al. 2024 and DeepSeek's DualPipe, in
// chunk-forwards (the papers' figures divided by what share of a rank a chunk is): a rank's
// activations are those of a chunk until its weights' gradient.
TEST_CASE("activations peak where the papers say") {
  for (const int64_t pp : {1, 2, 4, 7, 8})
    for (const int64_t m : {2 * pp, 2 * pp + 1, 3 * pp, 8 * pp})
      for (int64_t rank = 0; rank < pp; ++rank) {
        CAPTURE(pp);
        CAPTURE(m);
        CAPTURE(rank);
        CHECK(peak(actions(PipelineSchedule::kZbH1, pp, rank, m)) == pp);
        CHECK(peak(actions(PipelineSchedule::k1F1BPairs, pp, rank, m)) ==
              std::min(m, 2 * (pp - rank)));
        CHECK(peak(actions(PipelineSchedule::kZbV, pp, rank, m, 2)) == 2 * pp);
        CHECK(peak(actions(PipelineSchedule::kDualPipeV, pp, rank, m, 2)) == 2 * pp + 1);
        for (const int64_t vpp : {1, 2, 3, 4}) {
          const int64_t warm_up = (pp - rank - 1) * 2 + (vpp - 1) * pp;
          if (m % pp == 0) {
            CHECK(peak(actions(PipelineSchedule::kInterleaved, pp, rank, m, vpp)) ==
                  std::min(warm_up + 1, m * vpp));
          }
        }
      }
}

TEST_CASE("taking out keeps the order, and dissolves pairs that lose a half") {
  std::vector<Action> list{{Action::Kind::kForward, 1, 0, true}, {Action::Kind::kBackward, 3},
                           {Action::Kind::kForward, 3, 1, true}, {Action::Kind::kBackward, 0, 1},
                           {Action::Kind::kForward, 0, 1, true}, {Action::Kind::kBackward, 2}};
  drop_micro_batches_from(list, 3);
  CHECK(text_of_actions(list) == "F1 b0 f0+ B2 ");
}

TEST_CASE("chunks that a schedule does not have are our own mistake") {
  CHECK_THROWS_AS(actions(PipelineSchedule::kZbV, 2, 0, 1, 1), InternalError);
  CHECK_THROWS_AS(actions(PipelineSchedule::kZbH1, 2, 0, 1, 2), InternalError);
  CHECK_THROWS_AS(actions(PipelineSchedule::kInterleaved, 2, 0, 1, 0), InternalError);
}
