#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/model/count.h>
#include <piper/plan/contradictions.h>
#include <piper/plan/device_walk.h>
#include <piper/plan/fewest_devices.h>
#include <piper/plan/ranking.h>
#include <piper/plan/shapes.h>
#include <piper/strategy/state_bytes.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <utility>
#include <vector>

namespace piper::plan {

namespace {

std::optional<Candidate> smallest_of(const Request& request) {
  const Plan plan = search(request);
  const Candidate* nearest = nearest_of(plan);
  return nearest == nullptr ? std::nullopt : std::optional(*nearest);
}

bool leaves_any(const Request& request) { return leaves_any(request, shapes_of(request)); }

// What the model's parameters cost all devices together, however they are divided: each lies
// somewhere once, with its states unless those may be with the host.
double least_state_bytes(const Request& r) {
  const FixedAxes& f = r.fixed;
  const bool may_leave = std::ranges::any_of(strategy::kOffloads, [&](strategy::Offload offload) {
    return strategy::offloads_optimizer(offload) && wanted(f.offload, offload) &&
           r.offers().has(offload);
  });
  double each = 0;
  if (r.has_exact_costs()) {
    const strategy::StateBytes bytes = strategy::state_bytes(r.precision);
    each = static_cast<double>(may_leave ? bytes.weight : bytes.total());
  } else {
    constexpr double kOptimizer = 12;  // as cost/trainer/stage_memory.cpp has it
    each = r.trainer->state_alone;
    for (const cost::DividedState& state : r.trainer->state)
      each = std::min(each, state.replicated + state.sharded);
    if (may_leave) each = std::max(0.0, each - kOptimizer);
  }
  return each * static_cast<double>(model::count_parameters(*r.model).total());
}

// Throws: nothing is left on any number of devices.
[[noreturn]] void refuse_all(const std::vector<int64_t>& refused,
                             const std::function<Request(int64_t)>& request_of,
                             const std::exception_ptr& unasked) {
  if (refused.empty()) {
    if (unasked) std::rethrow_exception(unasked);
    throw InvalidInput("no strategy is left by what is fixed");
  }
  // On one node, or on as many as there are: a count that a reader would try.
  const Request request = request_of(refused[std::min<size_t>(3, refused.size() - 1)]);
  try {
    refuse_contradictions(request, shapes_of(request));
  } catch (const InvalidInput& error) {
    std::vector<std::string> problems = error.problems();
    problems.back() += fmt::format("; {} numbers of devices were tried, {} to {}", refused.size(),
                                   std::ranges::min(refused), std::ranges::max(refused));
    throw InvalidInput(problems);
  }
  throw InvalidInput("no strategy is left by what is fixed");
}

}  // namespace

Candidate least_memory(const Request& request) {
  Request r = request;
  r.memory_limit_bytes = 0;  // so that nothing fits, and the smallest of each family is kept
  r.prunes = false;
  r.num_kept = 1;
  r.progress = {};
  FixedAxes& f = r.fixed;
  // What nobody fixed is set to what needs least, where that leaves anything.
  const auto prefer = [&](bool is_open, auto set) {
    if (!is_open) return;
    Request with = r;
    set(with.fixed);
    if (leaves_any(with)) f = with.fixed;
  };
  prefer(!f.micro_batch_sequences && !f.num_micro_batches,
         [](FixedAxes& axes) { axes.micro_batch_sequences = 1; });
  prefer(!f.placement, [](FixedAxes& axes) { axes.placement = strategy::Placement::kDataInside; });
  prefer(!f.recompute, [](FixedAxes& axes) { axes.recompute = strategy::Recompute::kFull; });
  if (!f.exchange.algorithm) f.exchange.algorithm = strategy::AllToAll::kFlat;  // has no scratch
  std::optional<Candidate> least;
  const auto try_one = [&](const Request& one) {
    if (!leaves_any(one)) return false;
    const std::optional<Candidate> found = smallest_of(one);
    if (found && (!least || found->estimate.peak_bytes < least->estimate.peak_bytes)) least = found;
    return found.has_value();
  };
  if (f.offload) {
    try_one(r);
  } else {
    Request away = r;
    away.fixed.offload = strategy::Offload::kOptimizerAndActivations;
    // Activations leave where there is a pipeline.
    const bool both = try_one(away);
    away.fixed.offload = strategy::Offload::kOptimizer;
    if (both && !f.pp) away.fixed.pp = 1;
    if (!both || away.fixed.pp == 1) try_one(away);
    away.fixed = f;
    away.fixed.offload = strategy::Offload::kNone;
    if (!least) try_one(away);
  }
  if (!least) {
    refuse_contradictions(request, shapes_of(request));
    throw InvalidInput("no strategy is left by what is fixed");
  }
  // The search asked for no more than its bytes.
  return {least->strategy,
          r.estimator()->estimate(least->strategy, r.imbalance_at(least->strategy.mesh.ep))};
}

FewestDevices fewest_devices(const cluster::Cluster& extended,
                             const std::function<Request(int64_t)>& request_of,
                             const std::function<void(int64_t)>& progress) {
  FewestDevices result;
  std::vector<int64_t> refused;
  std::exception_ptr unasked;  // of a count that no request can be made for
  const auto could_fit = [&](int64_t num_devices) {
    try {
      const Request request = request_of(num_devices);
      return least_state_bytes(request) <=
                 static_cast<double>(num_devices) * request.memory_limit_bytes &&
             leaves_any(request);
    } catch (const InvalidInput&) {
      return false;
    }
  };
  const auto fits = [&](int64_t num_devices) -> std::optional<bool> {
    try {
      const Request request = request_of(num_devices);
      if (!leaves_any(request)) {
        refused.push_back(num_devices);
        return std::nullopt;
      }
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
      unasked = std::current_exception();
      return std::nullopt;
    }
  };
  result.num_not_looked_at = walk_device_counts(extended, could_fit, fits);
  if (result.counts.empty()) refuse_all(refused, request_of, unasked);
  std::ranges::sort(result.counts, {}, &DeviceCount::num_devices);
  for (const DeviceCount& at : result.counts)
    if (at.best && !result.num_devices) result.num_devices = at.num_devices;
  return result;
}

}  // namespace piper::plan
