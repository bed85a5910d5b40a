#include <piper/cost/segment_time.h>
#include <piper/plan/simulated_step.h>
#include <piper/schedule/step.h>
#include <piper/sim/disturbance.h>
#include <piper/sim/symmetry.h>
#include <piper/strategy/rank_layout.h>

#include <cstdint>
#include <vector>

namespace piper::plan {
namespace {

using strategy::Strategy;

// The most tasks of a simulated step: by a trainer's profile, where one pipeline of ranks stands
// for all; and by exact costs, where all ranks may be simulated, eight times over.
constexpr int64_t kMostTasks = 1'000'000, kMostExactTasks = 400'000;
constexpr int64_t kMostRanks = 64;

// Where equal tasks scatter, no pipeline is like another.
cost::Scatter scatter_of(const cost::Estimator& estimator) {
  return estimator.is_exact() ? cost::scatter(estimator.cluster()) : cost::Scatter{};
}

// {}: all ranks.
std::vector<Rank> ranks_to_simulate(const cost::Estimator& estimator, const Strategy& s) {
  if (estimator.is_exact() &&
      (!scatter_of(estimator).none() || !sim::why_not_symmetric(s, estimator.cluster()).empty()))
    return {};
  return strategy::RankLayout(s).group(strategy::Axis::kPipeline, Rank(0));
}

}  // namespace

bool may_simulate(const cost::Estimator& estimator, const Strategy& s) {
  if (estimator.is_exact() && s.mesh.world() > kMostRanks) return false;
  const std::vector<Rank> ranks = ranks_to_simulate(estimator, s);
  const int64_t num_ranks = ranks.empty() ? s.mesh.world() : std::ssize(ranks);
  return schedule::num_tasks(estimator.model(), s, num_ranks, estimator.style()) <=
         (estimator.is_exact() ? kMostExactTasks : kMostTasks);
}

double simulated_seconds(cost::Estimator& estimator, const Strategy& s, double imbalance) {
  const cost::PricedStep priced =
      estimator.priced_step(s, ranks_to_simulate(estimator, s), imbalance);
  return sim::simulate_scattered(priced.step, priced.prices, scatter_of(estimator), false)
      .seconds();
}

}  // namespace piper::plan
