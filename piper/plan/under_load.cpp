#include <piper/plan/frontier.h>
#include <piper/plan/threads.h>
#include <piper/plan/under_load.h>
#include <piper/sim/rebalanced_load.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <utility>

namespace piper::plan {
namespace {

// One rank an expert rank, each with its share of the batch.
strategy::Strategy experts_alone(const Request& r, int64_t ep) {
  strategy::Strategy s;
  s.mesh.ep = s.mesh.dp = ep;
  s.precision = r.precision;
  s.sequence = r.sequence;
  s.global_batch_sequences = r.global_batch_sequences;
  s.micro_batch_sequences = r.fixed.micro_batch_sequences.value_or(1);
  s.num_micro_batches = std::max<int64_t>(1, r.global_batch_sequences / r.num_devices);
  s.capacity = r.fixed.capacity;
  return s;
}

std::vector<sim::RebalancedStep> rebalanced(const Request& r, const cost::LoadSamples& samples,
                                            const strategy::Strategy& s) {
  return sim::rebalanced_steps(samples.rebalance, cost::load_at(samples.load, s.mesh.ep), *r.model,
                               s, *r.cluster, samples.seed, samples.num_samples);
}

cost::UnderLoad under_load(const Request& r, const cost::LoadSamples& samples, const Candidate& c) {
  const strategy::Strategy& s = c.strategy;
  const std::unique_ptr<cost::Estimator> estimator = r.estimator();
  // The sample that it was ranked by: to the digit.
  const auto as_simulated = [&](cost::SampledEstimate sampled) {
    for (double& seconds : sampled.seconds)
      seconds = seconds == c.estimate.seconds ? c.step_seconds()
                                              : seconds * (c.step_seconds() / c.estimate.seconds);
    return sampled;
  };
  const auto staying =
      as_simulated(estimator->sampled(s, sampled_loads(samples, *r.model, s.mesh.ep)));
  cost::UnderLoad of{cost::spread_of(staying.seconds), cost::spread_of(staying.peak_bytes), {}};
  if (!samples.rebalance.is_on()) return of;
  std::vector<sim::RebalancedStep> steps = rebalanced(r, samples, s);
  std::vector<cost::ExpertLoad> loads;
  for (sim::RebalancedStep& step : steps) loads.push_back(std::move(step.load));
  cost::SampledEstimate moving = as_simulated(estimator->sampled(s, loads));
  cost::RebalancingGain gain = sim::gain_of(steps, moving.seconds, *r.model, s, *r.cluster);
  gain.seconds_without = of.seconds;
  gain.pays =
      cost::value(gain.seconds, samples.statistic) < cost::value(of.seconds, samples.statistic);
  if (gain.pays) of = {gain.seconds, cost::spread_of(moving.peak_bytes), {}};
  of.rebalancing = gain;
  return of;
}

}  // namespace

std::vector<cost::ExpertLoad> sampled_loads(const cost::LoadSamples& samples,
                                            const model::Model& model, int64_t ep) {
  std::vector<cost::ExpertLoad> loads;
  for (int64_t i = 0; i < samples.num_samples; ++i)
    loads.push_back(cost::sample_load(cost::load_at(samples.load, ep), model, ep, samples.seed, i,
                                      samples.num_samples));
  return loads;
}

Imbalances sampled_imbalances(const Request& r, const cost::LoadSamples& samples,
                              const std::vector<int64_t>& eps) {
  Imbalances by_ep;
  if (samples.rebalance.is_on()) {
    for (const int64_t ep : eps)
      for (const sim::RebalancedStep& step : rebalanced(r, samples, experts_alone(r, ep)))
        by_ep[ep].push_back(cost::imbalance_of(step.load, ep));
    return by_ep;
  }
  // Who is hot depends on who holds the experts; everything else is drawn alike for every ep.
  const bool hot_rank = samples.load.kind == cost::LoadKind::kHotRank;
  std::vector<cost::ExpertLoad> loads;
  if (!hot_rank) loads = sampled_loads(samples, *r.model, 1);
  for (const int64_t ep : eps) {
    if (hot_rank) loads = sampled_loads(samples, *r.model, ep);
    for (const cost::ExpertLoad& load : loads) by_ep[ep].push_back(cost::imbalance_of(load, ep));
  }
  return by_ep;
}

std::map<int64_t, double> statistic_of(const Imbalances& imbalances, cost::Statistic statistic) {
  std::map<int64_t, double> by_ep;
  for (const auto& [ep, values] : imbalances)
    by_ep[ep] = cost::value(cost::spread_of(values), statistic);
  return by_ep;
}

LoadedStep step_at(const Request& r, const Candidate& c, const cost::LoadDistribution& load) {
  const int64_t ep = c.strategy.mesh.ep;
  const double imbalance = cost::expected_imbalances(load, *r.model, {ep}).at(ep);
  const cost::Estimate e = r.estimator()->estimate(c.strategy, imbalance);
  return {e.seconds * (c.step_seconds() / c.estimate.seconds), e.peak_bytes};
}

void simulate_under_load(const Request& r, const cost::LoadSamples& samples, int64_t count,
                         Plan& plan) {
  std::vector<Candidate>& ranked = plan.ranked;
  const auto seconds = [&](const Candidate& c) {
    return cost::value(c.under_load->seconds, samples.statistic);
  };
  // Those that take the place of who does not fit are judged in their turn. Simulating may rank
  // anew, from the front and the families, who was judged not to fit.
  std::vector<Candidate> unfit;
  for (bool any_judged = true; any_judged;) {
    simulate_ranked(r, plan, count);
    std::erase_if(ranked, [&](const Candidate& c) { return has_twin(unfit, c); });
    std::vector<Candidate*> unjudged;
    for (int64_t i = 0; i < std::min(count, std::ssize(ranked)); ++i)
      if (Candidate& c = ranked[static_cast<size_t>(i)]; !c.under_load) unjudged.push_back(&c);
    share_items(threads_of(r), std::ssize(unjudged), [&](int64_t, int64_t item) {
      Candidate& c = *unjudged[static_cast<size_t>(item)];
      c.under_load = under_load(r, samples, c);
    });
    any_judged = !unjudged.empty();
    const auto is_unfit = [&](const Candidate& c) {
      return c.under_load && c.under_load->peak_bytes.p95 > r.memory_limit_bytes;
    };
    std::ranges::copy_if(ranked, std::back_inserter(unfit), is_unfit);
    std::erase_if(ranked, is_unfit);
  }
  for (std::vector<Candidate>* list : {&plan.pareto, &plan.schedules})
    std::erase_if(*list, [&](const Candidate& c) { return has_twin(unfit, c); });
  std::stable_sort(ranked.begin(), ranked.begin() + std::min(count, std::ssize(ranked)),
                   [&](const Candidate& a, const Candidate& b) { return seconds(a) < seconds(b); });
}

}  // namespace piper::plan
