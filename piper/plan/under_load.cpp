#include <piper/plan/threads.h>
#include <piper/plan/under_load.h>

#include <algorithm>
#include <memory>
#include <utility>

namespace piper::plan {
Imbalances sampled_imbalances(const cost::LoadSamples& samples, const model::Model& model,
                              const std::vector<int64_t>& eps) {
  Imbalances by_ep;
  const bool hot_rank = samples.load.kind == cost::LoadKind::kHotRank;
  for (int64_t i = 0; i < samples.num_samples; ++i) {
    cost::ExpertLoad drawn;
    if (!hot_rank)
      drawn = cost::sample_load(samples.load, model, 1, samples.seed, i, samples.num_samples);
    for (const int64_t ep : eps) {
      if (hot_rank) {  // who is hot depends on who holds the experts
        cost::LoadDistribution load = samples.load;
        load.parameter = std::min(load.parameter, static_cast<double>(ep));
        drawn = cost::sample_load(load, model, ep, samples.seed, i, samples.num_samples);
      }
      by_ep[ep].push_back(cost::imbalance_of(drawn, ep));
    }
  }
  return by_ep;
}

std::map<int64_t, double> statistic_of(const Imbalances& imbalances, cost::Statistic statistic) {
  std::map<int64_t, double> by_ep;
  for (const auto& [ep, values] : imbalances)
    by_ep[ep] = cost::value(cost::spread_of(values), statistic);
  return by_ep;
}

void play_under_load(const Request& r, const cost::LoadSamples& samples,
                     const Imbalances& imbalances, int64_t count, Plan& plan) {
  play_ranked(r, plan, count);
  const auto end = plan.ranked.begin() + std::min(count, std::ssize(plan.ranked));
  share_items(threads_of(r), end - plan.ranked.begin(), [&](int64_t, int64_t item) {
    Candidate& c = plan.ranked[static_cast<size_t>(item)];
    const std::vector<double>& of_ep = imbalances.at(c.strategy.mesh.ep);
    cost::SampledEstimate sampled = r.estimator()->sampled(c.strategy, samples, of_ep);
    for (double& seconds : sampled.seconds)  // the sample that it was ranked by: to the digit
      seconds = seconds == c.estimate.seconds ? c.step_seconds()
                                              : seconds * (c.step_seconds() / c.estimate.seconds);
    c.under_load = {cost::spread_of(sampled.seconds), cost::spread_of(sampled.peak_bytes)};
  });
  std::stable_sort(plan.ranked.begin(), end, [&](const Candidate& a, const Candidate& b) {
    return cost::value(a.under_load->seconds, samples.statistic) <
           cost::value(b.under_load->seconds, samples.statistic);
  });
}

}  // namespace piper::plan
