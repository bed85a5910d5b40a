#include <piper/strategy/capacity.h>

#include <algorithm>
#include <cmath>

namespace piper::strategy {

int64_t expert_capacity(double factor, int64_t sequence, int64_t top_k, int64_t num_experts) {
  if (factor <= 0) return sequence;
  const double even =
      static_cast<double>(sequence) * static_cast<double>(top_k) / static_cast<double>(num_experts);
  constexpr double kRounding = 1e-12;
  const double rows = std::ceil(factor * even * (1 - kRounding));
  return static_cast<int64_t>(std::min(rows, static_cast<double>(sequence)));
}

}  // namespace piper::strategy
