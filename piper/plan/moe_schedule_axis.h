// The order of a mixture layer's tasks (strategy::MoeSchedule) and its chunks as an axis of the
// search of what this Piper executes: where its exact costs are known, and by its profile on other
// machines (TrainerProfile::schedules_mixtures). It is chosen once for each
// shape, by the seconds of one micro-batch through all layers, forward and backward, exchanges that
// nothing hides included (cost::Estimator::pass_seconds), so that it multiplies no other axis.
// Fixed costs of a chunk are in these prices: every segment and exchange is priced at the size of a
// chunk.
#pragma once

#include <piper/plan/search.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace piper::plan {

struct MoeScheduleOption {
  strategy::MoeSchedule schedule = strategy::MoeSchedule::kPlain;
  int64_t chunks = 1;
  double seconds = 0;  // of a micro-batch through all layers
};

// What is tried for this shape, plain first where it is: schedules that the mesh allows, with 2, 4,
// 8, ... chunks as long as more of them are faster. Schedules that are the same tasks (Parm's S2
// and MoNTA's O1 and O2 with etp 1) are tried once. Only what `fixed` leaves; empty where the shape
// does not allow that. `strategy`: as the search has it before it looks at schedules, with its
// exchange.
std::vector<MoeScheduleOption> moe_schedule_options(cost::Estimator& estimator,
                                                    const FixedAxes& fixed,
                                                    const strategy::Strategy& strategy,
                                                    double imbalance);

// The fastest of them; an earlier one where a later one gains less than kMoeScheduleTie. False:
// what `fixed` asks for is not among them.
inline constexpr double kMoeScheduleTie = 0.005;
bool choose_moe_schedule(cost::Estimator& estimator, const FixedAxes& fixed,
                         strategy::Strategy& strategy, double imbalance);

// Seconds of one micro-batch through all layers, as above.
double seconds_through_layers(cost::Estimator& estimator, const strategy::Strategy& strategy,
                              double imbalance);

// Simulates whole steps with the options that are priced within kMoeScheduleNear of the strategy's
// own, where that is little enough work, and returns the fastest: collectives of several axes that
// travel at once, and start-up times that overlap, are in no price of one layer. Calls `fits` for
// those that are faster; what does not fit is left out. Returns the strategy itself when nothing is
// faster by kMoeScheduleTie.
inline constexpr double kMoeScheduleNear = 1.1;
strategy::Strategy simulated_moe_schedule(
    cost::Estimator& estimator, const FixedAxes& fixed, const strategy::Strategy& strategy,
    double imbalance, const std::function<bool(const strategy::Strategy&)>& fits = {});

// One line: "a micro-batch takes 9.1 ms through all layers with chunked (4 chunks), plain 11 ms,
// ...". Empty for a strategy without an exchange.
std::string explain_moe_schedule(cost::Estimator& estimator, const FixedAxes& fixed,
                                 const strategy::Strategy& strategy, double imbalance);

}  // namespace piper::plan
