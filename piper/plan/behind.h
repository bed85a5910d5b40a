// For tests: how far choices are behind the best that was played.
#pragma once

#include <algorithm>
#include <cstdint>

namespace piper::plan {

struct Behind {
  int64_t num = 0, num_beyond = 0;  // 5 %
  double worst = 0, sum = 0;
  void add(double behind) {
    ++num;
    num_beyond += behind > 0.05 ? 1 : 0;
    worst = std::max(worst, behind);
    sum += behind;
  }
};

}  // namespace piper::plan
