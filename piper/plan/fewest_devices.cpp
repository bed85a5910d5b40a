#include <piper/base/error.h>
#include <piper/plan/device_walk.h>
#include <piper/plan/fewest_devices.h>
#include <piper/plan/ranking.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <utility>

namespace piper::plan {

namespace {

std::optional<Candidate> smallest_of(const Request& request) {
  const Plan plan = search(request);
  const Candidate* nearest = nearest_of(plan);
  return nearest == nullptr ? std::nullopt : std::optional(*nearest);
}

}  // namespace

Candidate least_memory(const Request& request) {
  Request r = request;
  r.memory_limit_bytes = 0;  // so that nothing fits, and the smallest of each family is kept
  r.prunes = false;
  r.num_kept = 1;
  r.progress = {};
  FixedAxes& f = r.fixed;
  if (!f.micro_batch_sequences) f.micro_batch_sequences = 1;
  if (!f.placement) f.placement = strategy::Placement::kDataInside;
  if (!f.recompute) f.recompute = strategy::Recompute::kFull;
  if (!f.exchange.algorithm) f.exchange.algorithm = strategy::AllToAll::kFlat;  // has no scratch
  std::optional<Candidate> least;
  if (f.runnable && !f.offload) f.offload = strategy::Offload::kNone;
  if (f.offload) {
    least = smallest_of(r);
  } else {
    // Activations leave where there is a pipeline.
    const std::optional<int64_t> pp = f.pp;
    std::exception_ptr refused;
    for (const strategy::Offload offload :
         {strategy::Offload::kOptimizerAndActivations, strategy::Offload::kOptimizer}) {
      f.offload = offload;
      f.pp = pp;
      if (offload == strategy::Offload::kOptimizer && pp.value_or(1) == 1) f.pp = 1;
      try {
        std::optional<Candidate> one = smallest_of(r);
        if (one && (!least || one->estimate.peak_bytes < least->estimate.peak_bytes))
          least = std::move(one);
      } catch (const InvalidInput&) {
        if (!refused) refused = std::current_exception();
      }
    }
    if (!least && refused) std::rethrow_exception(refused);
  }
  if (!least) throw InvalidInput("no strategy is left by what is fixed");
  // The search asked for no more than its bytes.
  return {least->strategy,
          r.estimator()->estimate(least->strategy, r.imbalance_at(least->strategy.mesh.ep))};
}

FewestDevices fewest_devices(const cluster::Cluster& extended,
                             const std::function<Request(int64_t)>& request_of,
                             const std::function<void(int64_t)>& progress) {
  FewestDevices result;
  std::exception_ptr refused;
  result.num_not_looked_at =
      walk_device_counts(extended, [&](int64_t num_devices) -> std::optional<bool> {
        try {
          const Request request = request_of(num_devices);
          DeviceCount at{.num_devices = num_devices, .smallest = least_memory(request)};
          if (progress) progress(num_devices);
          if (at.smallest.estimate.peak_bytes <= request.memory_limit_bytes) {
            Plan plan = search(request);
            rank(request, plan);
            if (!plan.ranked.empty()) at.best = std::move(plan.ranked.front());
          }
          result.counts.push_back(std::move(at));
          return result.counts.back().best.has_value();
        } catch (const InvalidInput&) {
          refused = std::current_exception();
          return std::nullopt;
        }
      });
  if (result.counts.empty() && refused) std::rethrow_exception(refused);
  std::ranges::sort(result.counts, {}, &DeviceCount::num_devices);
  for (const DeviceCount& at : result.counts)
    if (at.best && !result.num_devices) result.num_devices = at.num_devices;
  return result;
}

}  // namespace piper::plan
