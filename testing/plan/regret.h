// For tests: how much longer the chosen exchanges take than the best simulated ones.
#pragma once

#include <algorithm>
#include <cstdint>

namespace piper::plan {

struct Regret {
  int64_t num = 0, num_beyond = 0;  // num_beyond: more than 5 % longer
  double worst = 0, sum = 0;
  void add(double share) {
    ++num;
    num_beyond += share > 0.05 ? 1 : 0;
    worst = std::max(worst, share);
    sum += share;
  }
};

}  // namespace piper::plan
