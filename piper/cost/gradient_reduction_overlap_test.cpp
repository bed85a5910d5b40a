// Figures that can be computed in the head: one level, everything needs the whole of it.
#include <doctest/doctest.h>
#include <piper/cost/gradient_reduction_overlap.h>
#include <testing/cost/relative_approx.h>

#include <vector>

namespace piper::cost {
namespace {

const LastBackwardNeeds kAllOfOneLevel{{{1}}, {{1}}, {{1}}, {{1}}};

BackwardTurn turn(double compute, double exchange, double dense) {
  return {.compute = compute, .exchange = {0, exchange}, .dense = {0, dense}};
}

}  // namespace

TEST_CASE("reductions that follow faster than they end queue up behind one another") {
  const LastBackward last = last_backward(1, kAllOfOneLevel, {turn(2, 0, 5), turn(2, 0, 5)}, {});
  CHECK(last.exposed == near(8));  // from 2: 10 seconds of work; the backward ends at 4
  CHECK(last.slowed == 0);
}

TEST_CASE("an exchange beside a reduction takes twice as long, and the reduction too") {
  // Turn 1 ends at 2; the exchange's first half (1) beside the reduction of 10: until 4; then 1 of
  // compute; the second half until 7; 1 of compute: 8 instead of 6. The reduction has moved
  // 1 + 1 + 1 + 1 + 2 of 10.
  const LastBackward last =
      last_backward(1, kAllOfOneLevel, {turn(2, 0, 10), {.compute = 2, .exchange = {0, 2}}}, {});
  CHECK(last.slowed == near(2));
  CHECK(last.exposed == near(6));
}

TEST_CASE("the message after it waits as well, and latency slows nobody") {
  const LastBackward last = last_backward(
      1, kAllOfOneLevel, {{.compute = 2, .dense = {.latency = 1, .transfer = 4}}}, {0, 3});
  CHECK(last.message == near(3));      // half speed for 6 seconds
  CHECK(last.exposed == near(7 + 1));  // 4 + 3 of work, and its own latency
}

TEST_CASE("levels that are not shared do not slow each other") {
  const LastBackwardNeeds apart{{{1, 0}}, {{0, 1}}, {{0, 1}}, {{1, 0}}};
  const LastBackward last =
      last_backward(2, apart, {turn(2, 0, 10), {.compute = 2, .exchange = {0, 2}}}, {});
  CHECK(last.slowed == 0);
  CHECK(last.exposed == near(6));
}

// The same two turns as above: the reduction of 10 starts when the first half of the exchange has
// ended, at 3, and has moved 1 beside compute, 1 beside the other half (until 6) and 1 more.
TEST_CASE("a reduction that yields starts when an exchange has ended") {
  const LastBackward last =
      last_backward(1, kAllOfOneLevel, {turn(2, 0, 10), {.compute = 2, .exchange = {0, 2}}}, {},
                    strategy::ReductionStart::kYielding);
  CHECK(last.slowed == near(1));
  CHECK(last.exposed == near(7));
}

// Two of 4 that wait at 2: the second starts when the first has ended. Exchanges' halves end at 3
// and, beside the first, at 6, which has moved 2 then; it ends at 8, one behind the backward; the
// second at 12.
TEST_CASE("reductions that yield follow each other") {
  const std::vector<BackwardTurn> turns = {{.compute = 2, .dense = {0, 4}, .experts = {0, 4}},
                                           {.compute = 2, .exchange = {0, 2}}};
  const LastBackward last =
      last_backward(1, kAllOfOneLevel, turns, {}, strategy::ReductionStart::kYielding);
  CHECK(last.slowed == near(1));
  CHECK(last.exposed == near(5));
}

// The same, and 4 more when the backward ends, at 7: the first has moved 3 of its 4 then.
TEST_CASE("the last of reductions that follow each other is waited for, of whatever kind") {
  const std::vector<BackwardTurn> turns = {{.compute = 2, .dense = {0, 4}, .experts = {0, 4}},
                                           {.compute = 2, .exchange = {0, 2}, .dense = {0, 4}}};
  const LastBackward last =
      last_backward(1, kAllOfOneLevel, turns, {}, strategy::ReductionStart::kYielding);
  CHECK(last.exposed == near(1 + 4 + 4));
}

TEST_CASE("where the next turn exchanges nothing, reductions that yield start at once") {
  const std::vector<BackwardTurn> turns = {turn(2, 0, 1), turn(2, 0, 1), turn(2, 0, 1)};
  const LastBackward last =
      last_backward(1, kAllOfOneLevel, turns, {}, strategy::ReductionStart::kYielding);
  CHECK(last.exposed == near(1));  // the last turn's own, at 6
}

// Each of the two takes 1 and then 2 of latency, from 3 to 6 and from 6 to 9. The backward ends at 6:
// its exchange's other half has the link for itself from 4 to 5.
TEST_CASE("a reduction that follows another waits for its latency as well") {
  const std::vector<BackwardTurn> turns = {{.compute = 2, .dense = {2, 1}, .experts = {2, 1}},
                                           {.compute = 2, .exchange = {0, 2}}};
  const LastBackward last =
      last_backward(1, kAllOfOneLevel, turns, {}, strategy::ReductionStart::kYielding);
  CHECK(last.slowed < 1e-9);
  CHECK(last.exposed == near(9 - 6));
}

TEST_CASE("reductions at the end slow nothing and are waited for") {
  const LastBackward last =
      last_backward(1, kAllOfOneLevel, {turn(2, 0, 10), {.compute = 2, .exchange = {0, 2}}}, {0, 3},
                    strategy::ReductionStart::kEnd);
  CHECK(last.slowed == 0);
  CHECK(last.message == 0);
  CHECK(last.exposed == near(3 + 10));  // behind the message
}

}  // namespace piper::cost
