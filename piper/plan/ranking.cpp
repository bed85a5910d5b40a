#include <piper/plan/ranking.h>
#include <piper/plan/threads.h>
#include <piper/plan/under_load.h>
#include <piper/strategy/rank_layout.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <set>
#include <tuple>

namespace piper::plan {
namespace {

double seconds_of(const Request& r, const Candidate& c) {
  return c.under_load ? cost::value(c.under_load->seconds, r.load->statistic) : c.step_seconds();
}

// What was searched at another load than the request's, at its price under that.
void price_again(const Request& r, cost::Estimator& estimator, Candidate& c) {
  c.estimate = estimator.estimate(c.strategy, r.imbalance_at(c.strategy.mesh.ep));
}

// Where loads vary much from step to step, everything that the search kept at the expected load may
// lack memory at p95: then the search itself goes by the p95 load.
Plan search_at_quantile(const Request& r) {
  std::vector<int64_t> eps;
  for (const auto& [ep, imbalance] : r.imbalance_by_ep) eps.push_back(ep);
  Request at = r;
  at.progress = {};
  at.imbalance_by_ep = statistic_of(sampled_imbalances(r, *r.load, eps), cost::Statistic::kP95);
  Plan plan = search(at);
  const std::unique_ptr<cost::Estimator> estimator = r.estimator();
  for (Candidate& c : plan.ranked) price_again(r, *estimator, c);
  for (Candidate& c : plan.pareto) price_again(r, *estimator, c);
  for (Candidate& c : plan.schedules) price_again(r, *estimator, c);
  for (FamilyBest& family : plan.families)
    if (family.best) price_again(r, *estimator, *family.best);
  return plan;
}

double bytes_of(const Candidate& c) {
  return c.under_load ? c.under_load->peak_bytes.p95 : c.estimate.peak_bytes;
}

}  // namespace

void rank(const Request& r, Plan& plan, int64_t count) {
  if (!r.load) {
    simulate_ranked(r, plan, count);
  } else if (!plan.ranked.empty()) {
    simulate_under_load(r, *r.load, count, plan);
    if (plan.ranked.empty()) {
      plan = search_at_quantile(r);
      simulate_under_load(r, *r.load, count, plan);
    }
  }
  prefer_among_ties(r, plan);
  if (r.model->num_moe_layers() == 0) return;
  const cost::LoadDistribution heavy = cost::parse_load(cost::kHeavyLoad);
  share_items(threads_of(r), std::min(count, std::ssize(plan.ranked)), [&](int64_t, int64_t item) {
    Candidate& c = plan.ranked[static_cast<size_t>(item)];
    c.heavy = step_at(r, c, heavy);
  });
}

int64_t nodes_of_exchange(const strategy::Strategy& s, const cluster::Cluster& cluster) {
  const strategy::Members group = strategy::RankLayout(s).members(strategy::Axis::kTensorExpert, 0);
  std::set<int64_t> nodes;
  for (int64_t i = 0; i < group.size; ++i)
    nodes.insert((group.first + i * group.stride) / cluster.devices_per_node());
  return std::ssize(nodes);
}

void prefer_among_ties(const Request& r, Plan& plan) {
  std::vector<Candidate>& ranked = plan.ranked;
  if (ranked.empty()) return;
  const double most = (1 + kTieSlack) * seconds_of(r, ranked.front());
  const auto order = [&](const Candidate& c) {
    return std::tuple(std::ceil(bytes_of(c) / kTieBytes), c.strategy.mesh.ep,
                      nodes_of_exchange(c.strategy, *r.cluster), seconds_of(r, c));
  };
  // Who was not simulated has a price that nobody has checked.
  size_t best = 0;
  for (size_t i = 1; i < ranked.size(); ++i)
    if ((ranked[i].simulated_seconds > 0 || ranked.front().simulated_seconds == 0) &&
        seconds_of(r, ranked[i]) <= most && order(ranked[i]) < order(ranked[best]))
      best = i;
  std::rotate(ranked.begin(), ranked.begin() + static_cast<std::ptrdiff_t>(best),
              ranked.begin() + static_cast<std::ptrdiff_t>(best) + 1);
}

}  // namespace piper::plan
