// `piper bench NAME`: measurements against a limit or an opponent. One file a bench: <name>.cpp
// defines add_bench_<name>(), listed in planner_benches.cpp (no torch) or full_benches.cpp, one of
// which is linked.
#pragma once

#include <piper/cli/command.h>

#include <vector>

namespace piper::cli {

// The benches of this program, in the order of `piper bench --help`.
const std::vector<Command>& benches();

// Without libtorch:
inline constexpr const char* kAllToAllSummary =
    "all-to-all algorithms side by side, against the least time and the prediction";
Run add_bench_alltoall(Subcommand command);
inline constexpr const char* kDedupSummary =
    "tokens for several experts: a row for each, or one for each node";
Run add_bench_dedup(Subcommand command);
inline constexpr const char* kSimSummary =
    "tasks a second of the simulator, on every rank of a large world";
Run add_bench_sim(Subcommand command);
inline constexpr const char* kFlowsSummary =
    "messages and steps a second of the simulator of collectives, on one core";
Run add_bench_flows(Subcommand command);
inline constexpr const char* kCollectivesSummary =
    "all-to-alls side by side in virtual time on a described cluster";
Run add_bench_collectives(Subcommand command);
inline constexpr const char* kPlanSummary =
    "strategies a second of the search over every axis, on one core and on all";
Run add_bench_plan(Subcommand command);
inline constexpr const char* kBalanceSummary =
    "searches for a placement of experts side by side: imbalance left, migrations, time to decide";
Run add_bench_balance(Subcommand command);

}  // namespace piper::cli
