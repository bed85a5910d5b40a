// Prices every strategy of every family, keeps what fits, ranks by MFU.
#pragma once

#include <piper/plan/space.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace piper::plan {

// A priced strategy: enough to rank by, without the breakdown.
struct Candidate {
  strategy::Strategy strategy;
  double seconds = 0;
  int64_t peak_bytes = 0;
  bool simulated = false;
  std::optional<cost::UnderLoad> under_load = {};
};

// What became of one family.
struct FamilyResult {
  Family family;
  int64_t num_strategies = 0;
  int64_t num_feasible = 0;
  std::optional<Candidate> smallest;  // the strategy with the lowest peak
};

struct SearchResult {
  std::vector<Candidate> ranked;  // feasible, fastest first
  std::vector<FamilyResult> families;
  int64_t num_considered = 0;
};

// For one batch the order by seconds is the order by MFU. Equal ones: lower peak, fewer stages,
// smaller ep, no recomputation, smaller micro-batches, 1F1B before GPipe, the even split first.
SearchResult search(const Setting& setting, const Space& space, cost::Estimator& estimator);

// Seconds of a step by simulation, the load being balanced and equal tasks scattering as the
// machine's do (sim::play_scattered): of one pipeline (dp index 0) where it provably stands for all
// (sim/symmetry.h; nothing scatters), else of all ranks. nullopt when the graph would be larger
// than `max_tasks`.
std::optional<double> simulated_seconds(const model::Model& model, const cluster::Cluster& cluster,
                                        const strategy::Strategy& strategy, int64_t max_tasks);

// Which ranks a simulation plays: {} = all (see above).
std::vector<Rank> simulated_ranks(const cluster::Cluster& cluster,
                                  const strategy::Strategy& strategy);

// Simulates the first `count`, sorts all, and again with those that came up, for a few rounds;
// returns how many were simulated.
int64_t rerank_by_simulation(const Setting& setting, std::vector<Candidate>& ranked, int64_t count);

}  // namespace piper::plan
