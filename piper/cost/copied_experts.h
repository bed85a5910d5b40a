// What copies of experts (schedule/expert_copies.h) send: weights from home before a layer's first
// forward, gradients home behind its last backward.
#pragma once

#include <piper/balance/expert_placement.h>
#include <piper/base/strong_id.h>
#include <piper/cluster/cluster.h>
#include <piper/model/model.h>
#include <piper/strategy/strategy.h>

#include <cstdint>
#include <span>
#include <vector>

namespace piper::cost {

// Bytes of a layer's copies between the members of an expert group, row-major; `homeward`: of the
// gradients. Requires placement.has_homes_first().
std::vector<int64_t> copied_bytes(const model::Model& model, const strategy::Strategy& strategy,
                                  int32_t layer, const balance::ExpertPlacement& placement,
                                  bool homeward);

// Seconds of that exchange; `members`: devices, ascending.
double copied_seconds(const cluster::Cluster& cluster, std::span<const Rank> members,
                      std::span<const int64_t> bytes);

// Beside the gradients that come home: of the member that needs most.
int64_t copied_scratch(const model::Model& model, const strategy::Strategy& strategy, int32_t layer,
                       const balance::ExpertPlacement& placement);

}  // namespace piper::cost
