// Which strategies there are: Piper eq. 7-10 over PP x EP x DP, times micro-batch size and count,
// recompute, schedule, the split of the layers and, chosen by price for each micro-batch size and
// EP, the exchange (exchange_axis.h).
//
//   eq. 7   PP x DP = devices, EP | DP        (the paper's form: DP = EP, no replicas of experts)
//   eq. 8   EP | E
//   eq. 9   PP <= L                           (the paper's form: PP | L)
//   eq. 10  EP within the fast domain         priced, not forbidden; a filter in the paper's form only
//   batch   DP x micro-batch x count = global batch
#pragma once

#include <piper/cost/step_time.h>
#include <piper/plan/setting.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace piper::plan {

struct Family {
  int64_t pp = 1, ep = 1, dp = 1;
};

struct Space {
  std::vector<Family> families;    // by pp, then ep
  std::vector<Rejected> excluded;  // with the equation that excludes them
};

// Families that hold at least one strategy, and why the others do not.
Space make_space(const Setting& setting);

// Devices of the paper's fast domain, g x N_h of eq. 10: a unit of the level "switch_group" where
// the cluster has one, else a node.
int64_t fast_domain(const cluster::Cluster& cluster);

// Ways to split the layers: evenly and, where it differs, balanced by price (not in the paper's
// form). strategy.layers_per_stage is not read.
std::vector<std::vector<int64_t>> splits(const Setting& setting, const strategy::Strategy& strategy,
                                         cost::Estimator& estimator);

class ExchangeAxis;

// Calls `visit` for every strategy of a family: micro-batch sizes (divisors of what a rank gets, at
// most 64 sequences), recompute, schedules (one stage: 1F1B only, the two are the same), splits().
// Deterministic order.
void for_each_strategy(const Setting& setting, const Family& family, cost::Estimator& estimator,
                       ExchangeAxis& exchange,
                       const std::function<void(const strategy::Strategy&)>& visit);

}  // namespace piper::plan
