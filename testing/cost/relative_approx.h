// For tests: a comparison by relative error, since seconds may be microseconds. doctest's own
// Approx adds 1 to the scale and accepts any two small numbers.
#pragma once

#include <doctest/doctest.h>

namespace piper::cost {

inline doctest::Approx near(double value, double relative_error = 1e-9) {
  return doctest::Approx(value).scale(0).epsilon(relative_error);
}

}  // namespace piper::cost
