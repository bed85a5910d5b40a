// What a placement of experts is worth and what changing it costs: the prices that balance/ decides
// by.
#pragma once

#include <piper/balance/rebalance.h>
#include <piper/cluster/cluster.h>
#include <piper/model/model.h>
#include <piper/strategy/strategy.h>

#include <cstdint>
#include <map>

namespace piper::cost {

// By layer, for every layer with experts:
//   bytes               moved_expert_bytes(), of one copy
//   seconds_per_row     what a row adds to the experts' forward (with its recomputation) and
//                       backward on the rank that computes it, at the rows of a balanced load. Loads
//                       are counted over all replicas of an expert, which share them: the price is
//                       of such a row
//   seconds_per_expert  take, message and put on neighbouring ranks of an expert group, of what a
//                       rank has of the states (a part under ZeRO and where etp ranks share it)
// Throws InvalidInput where the cluster has no figures for the precision (cost::unpriced).
std::map<int32_t, balance::ExpertPrice> expert_prices(const model::Model& model,
                                                      const strategy::Strategy& strategy,
                                                      const cluster::Cluster& cluster);
// How many copies of an expert's states travel when it moves: one a replica, or under ZeRO, where
// the replicas divide them, one in all.
int64_t copies_of_states(const strategy::Strategy& strategy);
// The bytes alone, which need no figures.
std::map<int32_t, balance::ExpertPrice> expert_bytes(const model::Model& model,
                                                     strategy::Precision precision);

}  // namespace piper::cost
