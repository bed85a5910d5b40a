#include <doctest/doctest.h>
#include <piper/cost/trainer/mixture_order.h>

#include <algorithm>

namespace piper::cost {
namespace {

// Seconds; what starts up is left out where nothing else is said.
MixtureParts layer_of_chunks(int64_t num_chunks) {
  return {.num_chunks = num_chunks, .there = {0, 4}, .back = {0, 4}, .experts = 8};
}

TEST_CASE("parts of a mixture in one piece follow one another") {
  MixtureParts all = layer_of_chunks(1);
  all.in = {0, 1};
  all.sum = {0, 2};
  all.out = {0.5, 3};
  CHECK(seconds_together(all) == doctest::Approx(4 + 1 + 8 + 2 + 4 + 3.5));
  all.beside = 3;  // fits beside the first exchange
  CHECK(seconds_together(all) == doctest::Approx(22.5));
  all.beside = 7;  // does not
  CHECK(seconds_together(all) == doctest::Approx(24.5));
}

// By hand: dispatches end at 1, 2, 3, 4; experts at 3, 5, 7, 9; combines at 5, 6, 8, 10.
TEST_CASE("chunks travel beside the experts of others") {
  CHECK(seconds_together(layer_of_chunks(4)) == doctest::Approx(10));
  // Bound by computing: all but the first dispatch and the last combine hides.
  for (const int64_t n : {2, 4, 8, 16})
    CHECK(seconds_together(layer_of_chunks(n)) ==
          doctest::Approx(8 + 8.0 / static_cast<double>(n)));
}

TEST_CASE("chunks never take less than the busiest of exchange, collectives and compute") {
  MixtureParts all = layer_of_chunks(8);
  all.in = {0, 5};
  all.out = {0, 6};
  for (const bool one_link : {false, true}) {
    all.is_one_link = one_link;
    const double links = one_link ? 19 : 11;
    CHECK(seconds_together(all) >= std::max(links, 8.0));
  }
  all.experts = 100;
  CHECK(seconds_together(all) >= 100);
  CHECK(seconds_together(all) <= 100 + 19);
}

TEST_CASE("every chunk starts up") {
  MixtureParts all = layer_of_chunks(4);
  const double without = seconds_together(all);
  all.there.latency = all.back.latency = 1;
  CHECK(seconds_together(all) > without);
  CHECK(of_chunks(all.there, 4).total() == doctest::Approx(4 + 4));
  // So long that one piece is faster.
  all.there.latency = all.back.latency = 100;
  MixtureParts one = all;
  one.num_chunks = 1;
  CHECK(seconds_together(one) < seconds_together(all));
}

TEST_CASE("two collectives need one link where a level has too little for both") {
  const LevelUtilization none, inside{{1.0, 0.25}}, half{{0.5, 0.75}}, across{{0.0, 0.75}};
  CHECK(need_one_link(inside, half));
  CHECK(need_one_link(half, across));
  CHECK_FALSE(need_one_link(inside, across));  // all of a level is not too much
  CHECK_FALSE(need_one_link(inside, none));
}

}  // namespace
}  // namespace piper::cost
