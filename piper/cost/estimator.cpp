#include <piper/cost/estimator.h>
#include <piper/cost/executor_estimator.h>
#include <piper/cost/segment_time.h>
#include <piper/cost/trainer/trainer_estimator.h>
#include <piper/strategy/runnable.h>

namespace piper::cost {

std::string default_trainer(const cluster::Cluster& cluster) {
  if (is_measured(cluster)) return "piper";
  const bool is_amd = cluster.device.starts_with("MI") || cluster.device.starts_with("AMD");
  return is_amd ? "" : "megatron";
}

bool has_exact_costs(const cluster::Cluster& cluster, const TrainerProfile& trainer) {
  return is_measured(cluster) && trainer.name == "piper";
}

std::unique_ptr<Estimator> make_estimator(const model::Model& model,
                                          const cluster::Cluster& cluster,
                                          const TrainerProfile& trainer,
                                          strategy::Precision precision, int64_t sequence,
                                          bool is_exact) {
  if (is_exact) return std::make_unique<ExecutorEstimator>(model, cluster, precision, sequence);
  return std::make_unique<TrainerEstimator>(model, cluster, trainer, precision, sequence);
}

std::unique_ptr<Estimator> make_estimator_of(const strategy::Strategy& s, const model::Model& model,
                                             const cluster::Cluster& cluster,
                                             const TrainerProfile& trainer) {
  if (strategy::not_runnable(s).empty())
    return make_estimator(model, cluster, trainer, s.precision, s.sequence,
                          has_exact_costs(cluster, trainer));
  return std::make_unique<TrainerEstimator>(model, cluster, trainer, s.precision, s.sequence);
}

}  // namespace piper::cost
