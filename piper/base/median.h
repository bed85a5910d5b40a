#pragma once

#include <piper/base/error.h>

#include <algorithm>
#include <cstddef>
#include <vector>

namespace piper {

// Returns the mean of the two middle values where their number is even. Requires values
// (PIPER_CHECK).
inline double median(std::vector<double> values) {
  PIPER_CHECK(!values.empty(), "the median of nothing");
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

}  // namespace piper
