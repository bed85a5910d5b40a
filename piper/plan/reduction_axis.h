// How and when gradients are summed. How is an axis of the search of what is trained: it depends on
// where the members of the data and expert data groups sit and on how much they sum, so that it is
// chosen once for each mesh and multiplies no other axis.
//
// Pure functions, thread-safe.
#pragma once

#include <piper/cluster/cluster.h>
#include <piper/cost/estimator.h>
#include <piper/model/model.h>
#include <piper/strategy/strategy.h>

#include <string>

namespace piper::plan {

// The reductions of one mean layer, one after another, between rank 0 and its replicas: what ranks
// hold whole, their parts of what they share, their experts. They depend on the strategy's mesh,
// placement and precision alone.
double reduction_seconds(const model::Model& model, const cluster::Cluster& cluster,
                         const strategy::Strategy& strategy, strategy::Reduction algorithm);

// The cheaper one; direct where the other gains less than kReductionTie.
inline constexpr double kReductionTie = 0.02;
strategy::Reduction cheaper_reduction(const model::Model& model, const cluster::Cluster& cluster,
                                      const strategy::Strategy& strategy);

// One line: "gradients of a layer are summed in 1.2 ms, inside nodes first; directly 8.1 ms". Empty
// where nothing is summed.
std::string explain_reduction(const model::Model& model, const cluster::Cluster& cluster,
                              const strategy::Strategy& strategy);

// One line: the step's seconds with each strategy::ReductionStart. Empty where they are the same,
// and with ZeRO 2 and 3. Where costs are exact (Request::has_exact_costs()).
std::string explain_reduction_start(cost::Estimator& estimator, const strategy::Strategy& strategy,
                                    double imbalance);

}  // namespace piper::plan
