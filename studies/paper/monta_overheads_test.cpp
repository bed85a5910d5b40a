// MoNTA's measured choice, and what its model would need to give it.
#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <studies/paper/monta_overheads.h>
#include <testing/cost/relative_approx.h>

#include <map>

using namespace piper;
using namespace piper::studies::paper::monta;
using cost::near;

namespace {

constexpr int64_t kChunks = 4;  // Fig. 14

Exchange tokens(int64_t thousands) {  // Table 8 is 8K
  return {.bytes = kTable8.bytes / 8 * static_cast<double>(thousands), .tp = 8, .ep = 2};
}

// I = 840, t 7, e 3, N 4: a chunk of 210 sends 20 and receives 180.
const Exchange kOddExchange{.bytes = 840, .tp = 7, .ep = 3};
const Overheads kRound{.exchange = {1000, 2},
                       .gather = {300, 10},
                       .memory_bytes_per_second = 21,
                       .chunk_seconds = 5,
                       .stall_seconds = 7,
                       .skew_seconds = 1e6};

}  // namespace

TEST_CASE("the three levels, by hand, where the exchange decides") {
  // AA_j 1000 + 20/2, AG_j 300 + 18, D2D_j 10, M_j 360/21, c 5.
  CHECK(extended_seconds(Level::kO1, kOddExchange, kChunks, kRound) ==
        1e6 + (1000 + 40) + (300 + 72));
  CHECK(extended_seconds(Level::kO2, kOddExchange, kChunks, kRound) ==
        1e6 + 1010 + 3 * 1010 + (318 + 10 + 5));
  CHECK(extended_seconds(Level::kO3, kOddExchange, kChunks, kRound) ==
        1e6 + 1010 + 3 * (1010 + 7) + (318 + 10 + 5));
}

TEST_CASE("the same where the gather decides, and where copies and gathers fill the memory") {
  Overheads fast = kRound;
  fast.exchange = {1, 20};  // AA_j 2
  CHECK(extended_seconds(Level::kO2, kOddExchange, kChunks, fast) == 1e6 + 2 + 4 * 333);
  CHECK(extended_seconds(Level::kO3, kOddExchange, kChunks, fast) == 1e6 + 2 + 3 * (323 + 7) + 333);
  fast.memory_bytes_per_second = 1;  // D2D_j 210, M_j 360
  CHECK(extended_seconds(Level::kO3, kOddExchange, kChunks, fast) ==
        1e6 + 2 + 3 * (210 + 360 + 5 + 7) + (318 + 210 + 5));
}

TEST_CASE("the printed efficiencies are two lines: 164 us and 18.9 GB/s, 36 us and 160 GB/s") {
  const Overheads o = published_overheads();
  CHECK(o.exchange.latency_seconds == near(164e-6, 0.02));
  CHECK(o.exchange.bytes_per_second == near(18.9e9, 0.01));
  CHECK(o.gather.latency_seconds == near(36e-6, 0.1));
  CHECK(o.gather.bytes_per_second == near(160e9, 0.01));
  CHECK(o.chunk_seconds == near(45e-6));
  // They give Table 8's milliseconds back.
  CHECK(o.exchange.seconds(4e6) == near(0.3747e-3, 0.01));
  CHECK(o.exchange.seconds(128e6) == near(6.909e-3, 0.01));
  CHECK(o.gather.seconds(224e6) == near(1.443e-3, 0.01));
}

TEST_CASE("skew is alike in every level, so it changes no choice") {
  for (const int64_t k : {4, 8, 16, 32, 64, 128, 256}) {
    Overheads late = published_overheads();
    const Level on_time = extended_level(tokens(k), kChunks, late);
    late.skew_seconds = 1e-3;
    CHECK(extended_level(tokens(k), kChunks, late) == on_time);
  }
}

TEST_CASE("with published constants alone O1 at 4K and O3 at 256K follow, O1 at 8K and O2 do not") {
  const Overheads o = published_overheads();
  CHECK(extended_level(tokens(4), kChunks, o) == Level::kO1);    // measured: O1
  CHECK(extended_level(tokens(8), kChunks, o) == Level::kO3);    // O1
  CHECK(extended_level(tokens(32), kChunks, o) == Level::kO3);   // O2
  CHECK(extended_level(tokens(128), kChunks, o) == Level::kO3);  // O2
  CHECK(extended_level(tokens(256), kChunks, o) == Level::kO3);  // O3
}

TEST_CASE(
    "one set of constants gives the whole choice: 0.08 to 0.41 ms a chunk, a stall of 0.8 to 1.6 "
    "ms") {
  const Overheads o = published_overheads();
  // A larger cost makes O1 the choice: at 8K it must be, at 32K it must not.
  const double least_chunk = equal_chunk_seconds(tokens(8), kChunks, o);
  const double most_chunk = equal_chunk_seconds(tokens(32), kChunks, o);
  CHECK(least_chunk == near(0.0812e-3, 0.01));
  CHECK(most_chunk == near(0.407e-3, 0.01));
  // A larger stall makes O2 the choice: at 128K it must be, at 256K it must not.
  const double least_stall = equal_stall_seconds(tokens(128), kChunks, o);
  const double most_stall = equal_stall_seconds(tokens(256), kChunks, o);
  CHECK(least_stall == near(0.8e-3, 0.01));
  CHECK(most_stall == near(1.6e-3, 0.01));
  Overheads inferred = o;
  inferred.chunk_seconds = (least_chunk + most_chunk) / 2;
  inferred.stall_seconds = (least_stall + most_stall) / 2;
  const std::map<int64_t, Level> measured{{4, Level::kO1},  {8, Level::kO1},   {32, Level::kO2},
                                          {64, Level::kO2}, {128, Level::kO2}, {256, Level::kO3}};
  for (const auto& [k, level] : measured) {
    CAPTURE(k);
    CHECK(extended_level(tokens(k), kChunks, inferred) == level);
  }
  CHECK_THROWS_AS(equal_stall_seconds(kOddExchange, 1, o), InternalError);
  CHECK_THROWS_AS(equal_chunk_seconds(kOddExchange, 1, o), InternalError);
}
