// Which measured curves a prediction leaned on beyond their measured points: there the nearest edge
// answers, and whoever reads the prediction should know. Found by pricing the strategies once more
// on a watched copy of the cluster, so that the search itself keeps no notes.
#pragma once

#include <piper/cluster/cluster.h>
#include <piper/model/model.h>
#include <piper/strategy/strategy.h>

#include <span>
#include <vector>

namespace piper::cost {

// All strategies together: each curve and axis once, with the extremes that any of them asked.
// Curves that the cluster does not have are not "outside": there peak and bandwidth price. Requires
// what ExecutorEstimator::exact() requires of each.
std::vector<cluster::Outside> outside_measured(const model::Model& model,
                                               const cluster::Cluster& cluster,
                                               std::span<const strategy::Strategy> strategies);

}  // namespace piper::cost
