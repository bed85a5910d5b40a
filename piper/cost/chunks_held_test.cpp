#include <doctest/doctest.h>
#include <piper/cost/bubble.h>
#include <piper/cost/chunks_held.h>

#include <numeric>

namespace piper::cost {
namespace {

using strategy::PipelineSchedule;

int64_t most(const std::vector<ChunksHeld>& moments, bool in_pairs) {
  int64_t found = 0;
  for (const ChunksHeld& m : moments)
    if (m.is_in_pair == in_pairs)
      found = std::max(found, std::reduce(m.forwards.begin(), m.forwards.end()));
  return found;
}

double most_layers(const std::vector<ChunksHeld>& moments, const std::vector<double>& layers) {
  double most = 0;
  for (const ChunksHeld& m : moments)
    most = std::max(most, std::inner_product(layers.begin(), layers.end(), m.forwards.begin(),
                                             m.is_in_pair ? 1.0 : 0.0));
  return most;
}

TEST_CASE("without turns the most chunks held are those of the closed form") {
  for (const PipelineSchedule schedule : strategy::kPipelineSchedules)
    for (const int64_t vpp : {1, 2, 3}) {
      if (strategy::is_v(schedule) ? vpp != 2 : (vpp > 1) != strategy::interleaves(schedule))
        continue;
      for (const int64_t pp : {1, 2, 4, 7})
        for (int64_t m = 1; m <= 6 * pp + 1; ++m)
          for (int64_t rank = 0; rank < pp; ++rank) {
            CAPTURE(std::string(strategy::name(schedule)));
            CAPTURE(pp);
            CAPTURE(vpp);
            CAPTURE(m);
            CAPTURE(rank);
            CHECK(most(chunks_held(schedule, pp, vpp, m, rank, false, false), false) ==
                  chunk_forwards_in_flight(schedule, pp, vpp, rank, m));
          }
    }
}

// Rank 0 of 2: three forwards of chunk 0 and one of chunk 1 fill the V, then a forward of chunk 0
// takes turns with the backward of chunk 1. The rank at the V's end begins with a forward alone.
TEST_CASE("a pair of DualPipeV holds a layer more than the full V, not a chunk") {
  const auto turns = chunks_held(PipelineSchedule::kDualPipeV, 2, 2, 16, 0, true, false);
  CHECK(most(turns, true) == 4);
  CHECK(most(turns, false) == 0);  // each of these is in a pair as well
  CHECK(most(chunks_held(PipelineSchedule::kDualPipeV, 2, 2, 16, 0, false, false), false) == 5);
  CHECK(most(chunks_held(PipelineSchedule::kDualPipeV, 2, 2, 16, 1, true, false), false) == 5);
  // Behind the pair 4 of chunk 0 and none of chunk 1, before it 3 and 1; and the layer.
  CHECK(most_layers(turns, {7, 4}) == 4 * 7 + 1);
  CHECK(most_layers(turns, {4, 7}) == 3 * 4 + 7 + 1);
}

// Rank 0 of 2 with two chunks: forwards of chunk 0, 0, 1, 1 and 0 before the first backward (3 and
// 2 are held), then a backward of chunk 1 and a forward of chunk 0 (4 and 1).
TEST_CASE("interleaved chunks that differ are held by their own number") {
  const auto moments = chunks_held(PipelineSchedule::kInterleaved, 2, 2, 16, 0, false, false);
  CHECK(most_layers(moments, {1, 0}) == 4);
  CHECK(most_layers(moments, {0, 1}) == 2);
  CHECK(most_layers(moments, {1, 1}) == 5);
}

// ZB-H1 puts a micro-batch's weights' part `rank` backwards behind its input's part, so rank + 1
// wait at once; 1F1B divides nothing.
TEST_CASE("what was computed again waits for the weights' parts") {
  const auto most_waiting = [](const std::vector<ChunksHeld>& moments) {
    int64_t most = 0;
    for (const ChunksHeld& m : moments)
      most = std::max(most, std::reduce(m.waiting.begin(), m.waiting.end()));
    return most;
  };
  for (const int64_t m : {1, 2, 3, 4, 9})
    for (int64_t rank = 0; rank < 4; ++rank) {
      CAPTURE(m);
      CAPTURE(rank);
      const auto held = [&](bool recomputes) {
        return chunks_held(PipelineSchedule::kZbH1, 4, 1, m, rank, false, recomputes);
      };
      CHECK(most_waiting(held(true)) == std::min(m, rank + 1));
      CHECK(most_waiting(held(false)) == 0);
    }
  CHECK(most_waiting(chunks_held(PipelineSchedule::k1F1B, 4, 1, 9, 0, false, true)) == 0);
}

}  // namespace
}  // namespace piper::cost
