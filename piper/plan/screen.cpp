#include <piper/plan/screen.h>
#include <piper/plan/shapes.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <tuple>

namespace piper::plan {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

using strategy::PipelineSchedule;
using strategy::Strategy;

// With the plainest of the schedules that are tried, and the fewest chunks.
std::optional<Strategy> with_schedule(const Request& r, Strategy s) {
  std::vector<PipelineSchedule> schedules(strategy::kPipelineSchedules.begin(),
                                          strategy::kPipelineSchedules.end());
  std::ranges::stable_partition(schedules,
                                [](PipelineSchedule of) { return of == PipelineSchedule::k1F1B; });
  for (const PipelineSchedule schedule : schedules) {
    if (!tries_schedule(r, s, schedule)) continue;
    s.schedule = schedule;
    for (int64_t vpp = 1; vpp <= kMostChunks; ++vpp) {
      if (!tries_chunks(r, s, vpp)) continue;
      s.mesh.vpp = vpp;
      s.layers_per_stage = strategy::even_split(r.model->num_layers(), s.mesh.num_virtual_stages());
      return s;
    }
  }
  return std::nullopt;
}

std::vector<strategy::Recompute> recomputes_of(const Request& r) {
  std::vector<strategy::Recompute> tried;
  for (const strategy::Recompute recompute : strategy::kRecomputes)
    if (wanted(r.fixed.recompute, recompute) && r.offers().has(recompute))
      tried.push_back(recompute);
  return tried;
}

}  // namespace

bool screens(const Request& r) {
  return r.has_exact_costs() && r.cluster->kind == "gpu" && r.num_devices > r.most_searched_gpus;
}

ShapeScore score_shape(const Request& r, cost::Estimator& estimator, const Strategy& shape) {
  ShapeScore score{.family = family_of(shape)};
  const std::optional<Strategy> with = with_schedule(r, shape);
  if (!with) return score;
  Strategy s = *with;
  const double imbalance = r.imbalance_at(s.mesh.ep);
  std::vector<int64_t> zeros;
  for (int64_t zero = 0; zero <= 3; ++zero)
    if (tries_zero(r, s, zero)) zeros.push_back(zero);
  const std::vector<strategy::Recompute> recomputes = recomputes_of(r);
  if (zeros.empty() || recomputes.empty()) return score;
  // Whether it may fit; what fits with less is no faster with more.
  const auto looks_at = [&](strategy::Recompute recompute, int64_t zero) {
    s.recompute = recompute;
    s.zero = zero;
    const double bytes = estimator.least_bytes(s, imbalance);
    const bool fits = bytes <= r.memory_limit_bytes;
    if (bytes < score.bytes) {
      score.bytes = bytes;
      if (score.seconds == kInfinity) score.family = family_of(s);
    }
    if (!fits) return false;
    const double seconds = estimator.least_seconds(s, imbalance);
    if (seconds < score.seconds) {
      score.seconds = seconds;
      score.family = family_of(s);
    }
    return true;
  };
  for (const strategy::Offload offload : strategy::kOffloads) {
    if (!tries_offload(r, s, offload)) continue;
    s.offload = offload;
    // The smallest first: where it does not fit, none does.
    if (!looks_at(recomputes.back(), zeros.back())) continue;
    for (const int64_t zero : zeros)
      for (const strategy::Recompute recompute : recomputes)
        if (looks_at(recompute, zero)) break;
    break;
  }
  return score;
}

std::vector<size_t> screened(std::span<const ShapeScore> scores) {
  std::vector<size_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(
      order, {}, [&](size_t i) { return std::tuple(scores[i].seconds, scores[i].bytes); });
  std::map<Family, size_t> of_family;
  std::vector<size_t> taken;
  for (const size_t i : order) {
    const bool may_fit = scores[i].seconds < kInfinity;
    if ((may_fit && taken.size() < kMostScreened) || of_family[scores[i].family] < kMostOfFamily) {
      taken.push_back(i);
      ++of_family[scores[i].family];
    }
  }
  return taken;
}

}  // namespace piper::plan
