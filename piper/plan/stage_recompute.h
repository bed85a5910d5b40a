// Recomputation chosen stage by stage. Under 1F1B the first stage holds p micro-batches and the
// last one: where the first must recompute to fit, the last need not, and layers may move towards
// it.
#pragma once

#include <piper/cost/estimator.h>
#include <piper/strategy/strategy.h>

#include <array>
#include <optional>
#include <vector>

namespace piper::plan {

// What stages come to, by recomputation (in the order of strategy::kRecomputes).
using LoadsByRecompute = std::array<std::vector<cost::StageLoad>, strategy::kRecomputes.size()>;

// On each stage the recomputation that takes the least time of those that fit.
struct StageChoice {
  std::vector<strategy::Recompute> per_stage;
  double slowest = 0, mean = 0;  // seconds of a stage's pass
  bool is_uniform() const;
};
// Nothing when some stage does not fit whatever it recomputes.
std::optional<StageChoice> choose_by_stage(const LoadsByRecompute& loads, double limit_bytes);

// The strategy with that choice, and with layers moved to where passes are short as long as that
// helps and all still fits. Nothing when all stages take the same in the end: then `recompute` says
// it.
std::optional<strategy::Strategy> with_stage_recompute(cost::Estimator& estimator,
                                                       const strategy::Strategy& strategy,
                                                       StageChoice choice, double limit_bytes,
                                                       double imbalance);

}  // namespace piper::plan
