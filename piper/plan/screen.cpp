#include <piper/plan/screen.h>
#include <piper/plan/shapes.h>

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>

namespace piper::plan {
namespace {

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
  return r.has_exact_costs() && r.cluster->kind == "gpu" && r.num_devices > r.most_unscreened_gpus;
}

std::vector<ShapeScore> scores_of(const Request& r, cost::Estimator& estimator, size_t shape,
                                  const Strategy& strategy) {
  const std::optional<Strategy> with = with_schedule(r, strategy);
  const std::vector<strategy::Recompute> recomputes = recomputes_of(r);
  if (!with || recomputes.empty()) return {};
  const double imbalance = r.imbalance_at(with->mesh.ep);
  // Less is known of other schedules and of an uneven load: these bytes are 1F1B's, and no less
  // than under an even load.
  const auto bytes_of = [&](Strategy s) {
    s.schedule = PipelineSchedule::k1F1B;
    s.mesh.vpp = 1;
    s.layers_per_stage = strategy::even_split(r.model->num_layers(), s.mesh.pp);
    return std::max(estimator.least_bytes(s, 1), estimator.least_bytes(s, imbalance));
  };
  std::vector<ShapeScore> scores;
  for (const bool is_sharded : {false, true}) {
    Strategy s = *with;
    std::vector<int64_t> zeros;
    for (int64_t zero = 0; zero <= 3; ++zero)
      if ((zero == 3) == is_sharded && tries_zero(r, s, zero)) zeros.push_back(zero);
    if (zeros.empty()) continue;
    s.zero = zeros.back();
    ShapeScore score{.shape = shape, .family = family_of(s)};
    const auto may_fit = [&](strategy::Recompute recompute, int64_t zero) {
      s.recompute = recompute;
      s.zero = zero;
      const double bytes = bytes_of(s);
      score.bytes = std::min(score.bytes, bytes);
      if (bytes > r.memory_limit_bytes) return false;
      score.seconds = std::min(score.seconds, estimator.seconds(s, imbalance));
      return true;
    };
    for (const strategy::Offload offload : strategy::kOffloads) {
      if (!tries_offload(r, s, offload)) continue;
      s.offload = offload;
      // About the smallest first: where it does not fit, hardly any does.
      if (!may_fit(recomputes.back(), zeros.back())) continue;
      for (const int64_t zero : zeros)
        for (const strategy::Recompute recompute : recomputes)
          if (may_fit(recompute, zero)) break;  // more of it is no faster
      break;
    }
    if (score.bytes < kInfinity) scores.push_back(score);
  }
  return scores;
}

std::vector<size_t> screened(std::vector<ShapeScore> scores) {
  std::ranges::sort(scores, {}, [](const ShapeScore& of) {
    return std::tuple(of.seconds, of.bytes, of.shape, of.family);
  });
  std::map<Family, size_t> of_family;
  std::vector<size_t> taken;
  for (const ShapeScore& of : scores) {
    if (taken.size() >= kMostScreened && of_family[of.family] >= kMostOfFamily) continue;
    ++of_family[of.family];
    if (std::ranges::find(taken, of.shape) == taken.end()) taken.push_back(of.shape);
  }
  return taken;
}

}  // namespace piper::plan
