// Which measured curves a stack's prices leaned on beyond their measured points, as cost/outside.h
// says it of this Piper's own costs: found by pricing the strategy once more on a watched copy of
// the cluster.
#pragma once

#include <piper/cluster/cluster.h>
#include <piper/cluster/watch.h>
#include <piper/model/model.h>
#include <piper/stack/stack.h>
#include <piper/strategy/strategy.h>

#include <vector>

namespace piper::stack {

// Requires what Estimator::estimate() requires.
std::vector<cluster::Outside> outside_measured(const model::Model& model,
                                               const cluster::Cluster& cluster, const Stack& stack,
                                               const strategy::Strategy& strategy,
                                               double imbalance = 1);

}  // namespace piper::stack
