// Ranks that are not all equally fast: stragglers, and compute times that scatter.
#pragma once

#include <piper/cost/prices.h>
#include <piper/cost/segment_time.h>
#include <piper/graph/timeline.h>
#include <piper/schedule/step.h>

#include <cstdint>
#include <vector>

namespace piper::sim {

struct Straggler {
  Rank rank;
  double factor = 1;  // its compute tasks take so much longer; > 0
};

struct Disturbance {
  std::vector<Straggler> stragglers;  // of one rank named twice, both count
  // Every compute task's time is multiplied by exp(sigma z - sigma^2 / 2), z standard normal: a
  // log-normal factor of mean 1. z is a function of seed, rank and the task's place on the rank's
  // compute stream, so that it does not depend on which other ranks are written.
  double jitter_sigma = 0;
  // All of a rank's, likewise, by one factor.
  double rank_sigma = 0;
  uint64_t seed = 0;
  bool none() const { return stragglers.empty() && jitter_sigma == 0 && rank_sigma == 0; }
};

// Changes the prices of compute tasks; communication, and memory, stay. Throws InvalidInput when a
// straggler is no rank of the step.
void disturb(const schedule::StepGraph& step, const Disturbance& disturbance, cost::Prices& prices);

// simulate() of a step on a machine whose equal tasks do not take equally long: every exchange then
// waits for the slowest of its members, which costs a pipeline little and expert parallelism much.
// It simulates kScatterDraws draws with `scatter` as the sigmas (cost::scatter of a cluster) and
// returns the one of median length, with the memory peaks of the undisturbed step; where nothing
// scatters it is simulate() itself. Deterministic.
inline constexpr int64_t kScatterDraws = 7, kScatteredSimulations = kScatterDraws + 1;
graph::Timeline simulate_scattered(const schedule::StepGraph& step, const cost::Prices& prices,
                                   const cost::Scatter& scatter, bool keep_memory = true);

}  // namespace piper::sim
