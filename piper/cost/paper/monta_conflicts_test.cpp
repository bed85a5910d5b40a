// MoNTA's conflicts, and what its priorities decide about them.
#include <doctest/doctest.h>
#include <piper/cost/paper/monta_conflicts.h>

#include <algorithm>

using namespace piper;
using namespace piper::cost::paper::monta;
using strategy::Axis;

TEST_CASE("three of the four conflicts are with the synchronisation of gradients") {
  CHECK(std::ranges::count(kConflicts, Axis::kData, &Conflict::against) == 3);
  for (const Conflict& c : kConflicts)
    CHECK((c.against == Axis::kData) == (c.cause == Asynchronous::kGradients));
}

TEST_CASE("priorities order EP, PP, CP, DP: gradients wait in each of the three conflicts") {
  CHECK(priority(Axis::kExpert) < priority(Axis::kPipeline));
  CHECK(priority(Axis::kPipeline) < priority(Axis::kContext));
  CHECK(priority(Axis::kContext) < priority(Axis::kData));
  CHECK(priority(Axis::kTensor) > priority(Axis::kData));
  for (const Conflict& c : kConflicts)
    CHECK((priority(c.axis) < priority(c.against)) == (c.cause == Asynchronous::kGradients));
}
