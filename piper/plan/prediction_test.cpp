#include <doctest/doctest.h>
#include <piper/plan/prediction.h>

using namespace piper;
using namespace piper::plan;

TEST_CASE(
    "the components of a simulated step add up to it, longer or shorter than its closed form") {
  cost::Estimate closed;
  closed.time = {.compute = 6, .tensor = 1, .exchange = 2, .bubble = 1};
  // Longer: waiting. A little shorter: a smaller bubble.
  CHECK(time_of(closed, 12).bubble == doctest::Approx(3));
  CHECK(time_of(closed, 9.5).bubble == doctest::Approx(0.5));
  CHECK(time_of(closed, 9.5).exchange == 2);
  // Shorter by more than the bubble: less communication, in proportion.
  const cost::StepSeconds hidden = time_of(closed, 7.5);
  CHECK(hidden.bubble == 0);
  CHECK(hidden.compute == 6);
  CHECK(hidden.tensor == doctest::Approx(0.5));
  CHECK(hidden.exchange == doctest::Approx(1));
  for (const double seconds : {12., 10., 9.5, 7.5, 6., 3.})
    CHECK(time_of(closed, seconds).total() == doctest::Approx(seconds));
  CHECK(limits(time_of(closed, 12)) ==
        "compute 50.0 %, bubble and waiting 25.0 %, exchange of tokens 16.7 %, tensor collectives "
        "8.3 %");
}
