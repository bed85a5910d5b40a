// The searches of MoNTA, as printed and as meant.
#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <studies/paper/monta_chunks.h>

#include <algorithm>
#include <limits>

using namespace piper;
using namespace piper::studies::paper::monta;

namespace {

const Machine kA800Machine{.bandwidths = published_bandwidths(),
                           .efficiencies = published_efficiencies(),
                           .least_bytes = 8e6};  // the smallest whose efficiency is printed

double at(Level level, int64_t n) {
  const ChunkTimes times =
      chunk_times(kTable8, kA800Machine.bandwidths, kA800Machine.efficiencies.at(kTable8, n), n);
  return level == Level::kO2 ? o2_seconds(times, n) : o3_seconds(times, n);
}

}  // namespace

TEST_CASE("Algorithms 1 and 2 as printed return an infinite time and a count that was not tried") {
  // I / (N t) = 32e6 / N is at least 8e6 up to N = 4.
  for (const Level level : {Level::kO2, Level::kO3}) {
    const Chunks printed = printed_best_chunks(level, kTable8, kA800Machine);
    CHECK(printed.seconds == std::numeric_limits<double>::infinity());
    CHECK(printed.num_chunks == 5);
  }
  // So Algorithm 3 chooses O1 whatever the sizes.
  CHECK(printed_best_level(kTable8, kA800Machine).level == Level::kO1);
  CHECK(printed_best_level({.bytes = 1e12, .tp = 8, .ep = 2}, kA800Machine).level == Level::kO1);
}

TEST_CASE("corrected they keep the least time and its count") {
  for (const Level level : {Level::kO2, Level::kO3}) {
    const Chunks best = best_chunks(level, kTable8, kA800Machine);
    double least = at(level, 1);
    for (const int64_t n : {2, 3, 4}) least = std::min(least, at(level, n));
    CHECK(best.seconds == least);
    CHECK(best.seconds == at(level, best.num_chunks));
    CHECK(best.num_chunks > 1);
  }
}

TEST_CASE("a constant efficiency wants as many chunks as I_minimal allows") {
  Machine ideal = kA800Machine;
  ideal.efficiencies.all_to_all.rate = {1, 1, 1};
  ideal.efficiencies.all_gather.rate = {1, 1, 1};
  ideal.efficiencies.copy.rate = {1, 1};
  CHECK(best_chunks(Level::kO3, kTable8, ideal).num_chunks == 4);
  ideal.least_bytes = 32e6 / 7;
  CHECK(best_chunks(Level::kO3, kTable8, ideal).num_chunks == 7);
  ideal.least_bytes = 1e9;  // nothing may be divided
  CHECK(best_chunks(Level::kO3, kTable8, ideal).num_chunks == 1);
  ideal.least_bytes = 0;
  CHECK_THROWS_AS(best_chunks(Level::kO3, kTable8, ideal), InternalError);
}

TEST_CASE("Algorithm 3 with the printed model chooses O3 at 8K, where O1 was measured fastest") {
  const Choice choice = best_level(kTable8, kA800Machine);
  CHECK(choice.level == Level::kO3);
  CHECK(choice.chunks.seconds < best_chunks(Level::kO2, kTable8, kA800Machine).seconds);
  CHECK(best_chunks(Level::kO2, kTable8, kA800Machine).seconds <
        best_chunks(Level::kO1, kTable8, kA800Machine).seconds);
}

TEST_CASE("one node has nothing to send: O1's gather alone counts, and chunks only add copies") {
  const Choice choice = best_level({.bytes = 256e6, .tp = 8, .ep = 1}, kA800Machine);
  CHECK(choice.level == Level::kO1);
  CHECK(choice.chunks.num_chunks == 1);
}

TEST_CASE("latency, throughput and MFU of the chosen level, by hand") {
  const Choice choice{.level = Level::kO1, .chunks = {.num_chunks = 1, .seconds = 0.5}};
  const Outputs o = outputs(choice, {.num_exchanges = 4,
                                     .other_seconds = 6,
                                     .tokens = 32,
                                     .model_flops = 12,
                                     .peak_flops_per_second = 3});
  CHECK(o.latency_seconds == 8);
  CHECK(o.tokens_per_second == 4);
  CHECK(o.mfu == 0.5);
  CHECK_THROWS_AS(outputs({}, {}), InternalError);
}
