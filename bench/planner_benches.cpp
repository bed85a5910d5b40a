// The benches of a planner built without libtorch.
#include <bench/benches.h>

namespace piper::cli {

const std::vector<Command>& benches() {
  static const std::vector<Command> list{
      {"alltoall", kAllToAllSummary, add_bench_alltoall},
      {"dedup", kDedupSummary, add_bench_dedup},
      {"sim", kSimSummary, add_bench_sim},
      {"flows", kFlowsSummary, add_bench_flows},
      {"collectives", kCollectivesSummary, add_bench_collectives},
      {"plan", kPlanSummary, add_bench_plan},
      {"balance", kBalanceSummary, add_bench_balance}};
  return list;
}

}  // namespace piper::cli
