#include <piper/stack/estimator.h>
#include <piper/stack/outside.h>

#include <memory>

namespace piper::stack {

std::vector<cluster::Outside> outside_measured(const model::Model& model,
                                               const cluster::Cluster& cluster, const Stack& stack,
                                               const strategy::Strategy& strategy,
                                               double imbalance) {
  const auto watch = std::make_shared<cluster::Watch>();
  const cluster::Cluster watched = cluster::watched(cluster, watch);
  Estimator(model, watched, stack, strategy.precision, strategy.sequence)
      .estimate(strategy, imbalance);
  return watch->outside();
}

}  // namespace piper::stack
