#include <piper/cost/executor_estimator.h>
#include <piper/cost/outside_measured.h>
#include <piper/cost/rank_parameters.h>
#include <piper/cost/segment_time.h>
#include <piper/schedule/rank_chunks.h>

#include <memory>
#include <optional>

namespace piper::cost {

std::vector<cluster::Outside> outside_measured(const model::Model& model,
                                               const cluster::Cluster& cluster,
                                               std::span<const strategy::Strategy> strategies) {
  const auto watch = std::make_shared<cluster::Watch>();
  const cluster::Cluster watched = cluster::watched(cluster, watch);
  std::optional<ExecutorEstimator> estimator;  // the strategies of a plan share one
  const strategy::Strategy* of = nullptr;
  for (const strategy::Strategy& strategy : strategies) {
    if (of == nullptr || of->precision != strategy.precision || of->sequence != strategy.sequence) {
      // It prices the update per parameter, from the far end of the curves: asked before the watch
      // begins, and below with the parameters that there are.
      const std::vector<cluster::Outside> before = watch->outside();
      estimator.emplace(model, watched, strategy.precision, strategy.sequence);
      watch->restart_from(before);
      of = &strategy;
    }
    estimator->exact(strategy);
    for (int64_t pp_rank = 0; pp_rank < strategy.mesh.pp; ++pp_rank) {
      RankParameters held;
      int64_t optimized = 0;
      for (const schedule::RankChunk& chunk : schedule::chunks_of(strategy, pp_rank)) {
        const RankParameters more = rank_parameters(model, strategy, chunk.stage);
        held.dense += more.dense;
        held.experts += more.experts;
        optimized += optimized_parameters(model, strategy, chunk.stage, 0);
      }
      update_seconds(schedule::SegmentKind::kGradientNorm, held.of_norm(strategy.mesh), watched,
                     strategy.precision);
      update_seconds(schedule::SegmentKind::kOptimizer, static_cast<double>(optimized), watched,
                     strategy.precision);
    }
  }
  return watch->outside();
}

}  // namespace piper::cost
