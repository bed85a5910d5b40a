#include <doctest/doctest.h>
#include <piper/optim/learning_rate.h>

#include <limits>

namespace piper::optim {
namespace {

TEST_CASE("the rate rises in a line to the peak, then falls on a cosine to the minimum") {
  const LearningRateSchedule s{.peak = 1.0, .minimum = 0.2, .warmup_steps = 4, .total_steps = 12};
  CHECK(learning_rate(s, 1) == doctest::Approx(0.25));
  CHECK(learning_rate(s, 4) == doctest::Approx(1.0));
  // Half way of the cosine (step 8 of 4..12): the mean of both ends; a quarter: 0.2 + 0.4 (1 +
  // cos(pi/4)).
  CHECK(learning_rate(s, 8) == doctest::Approx(0.6));
  CHECK(learning_rate(s, 6) == doctest::Approx(0.2 + 0.4 * (1 + 0.70710678118)));
  CHECK(learning_rate(s, 12) == 0.2);
  CHECK(learning_rate(s, 1000) == 0.2);
}

TEST_CASE("without warm-up the first step is on the cosine; warm-up over all steps is allowed") {
  const LearningRateSchedule s{.peak = 1.0, .minimum = 0.0, .warmup_steps = 0, .total_steps = 2};
  CHECK(learning_rate(s, 1) == doctest::Approx(0.5));
  CHECK(learning_rate({.peak = 1.0, .minimum = 0.0, .warmup_steps = 3, .total_steps = 3}, 3) ==
        doctest::Approx(1.0));
  CHECK(problems(s).empty());
}

TEST_CASE("each nonsensical setting is one line") {
  const auto lines = problems({.peak = -1, .minimum = 2, .warmup_steps = -3, .total_steps = 0});
  REQUIRE(lines.size() == 4);
  CHECK(lines[0] == "learning rate -1; allowed: a finite number above 0");
  CHECK(lines[3] == "-3 warm-up steps; allowed: from 0 to the number of steps 0");
  CHECK(problems({.peak = std::numeric_limits<double>::infinity(), .minimum = 0, .total_steps = 1})
            .size() == 1);
}

}  // namespace
}  // namespace piper::optim
