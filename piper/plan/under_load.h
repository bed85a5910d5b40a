// What happens to a strategy under samples of a load that is not balanced. The whole search knows
// one number for every way to divide the experts, the expected rows of the busiest expert rank over
// the mean (Request::imbalance_by_ep). Drawn loads judge the strategies that it ranked: by the asked
// statistic of their steps, and by whether they fit into memory at p95 of the samples.
#pragma once

#include <piper/cost/load_distribution.h>
#include <piper/plan/search.h>

#include <cstdint>
#include <map>
#include <vector>

namespace piper::plan {

// The loads of every sample at this ep. The F of hot-rank:F is at most ep, since a rank has no more
// than all rows. Throws InvalidInput where the load does not fit the model.
std::vector<cost::ExpertLoad> sampled_loads(const cost::LoadSamples& samples,
                                            const model::Model& model, int64_t ep);

// By ep, of every sample. Where experts move between samples (LoadSamples::rebalance), as they are
// placed then by the prices of a strategy that divides nothing but experts.
using Imbalances = std::map<int64_t, std::vector<double>>;
Imbalances sampled_imbalances(const Request& request, const cost::LoadSamples& samples,
                              const std::vector<int64_t>& eps);

// The asked statistic of each. Where experts move between samples the search goes by it.
std::map<int64_t, double> statistic_of(const Imbalances& imbalances, cost::Statistic statistic);

// Simulates the first `count` that are ranked (simulate_ranked), fills in their under_load, what is
// simulated by as much slower as the simulation was than the closed form, and sorts these by the
// statistic of their seconds; those that need more memory than there is at p95 leave the ranking.
// Where experts move between samples, a strategy keeps the better of
// moving and staying by that statistic; what moves is simulated and added to the step behind it.
void simulate_under_load(const Request& request, const cost::LoadSamples& samples, int64_t count,
                         Plan& plan);

// The candidate's step under another load than the request's, its simulation being as much slower
// than the closed form as it is under that.
LoadedStep step_at(const Request& request, const Candidate& candidate,
                   const cost::LoadDistribution& load);

}  // namespace piper::plan
