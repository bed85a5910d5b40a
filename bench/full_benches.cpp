// All benches: the planner's and those that need libtorch.
#include <bench/benches.h>

namespace piper::cli {

Run add_bench_moe(Subcommand command);
Run add_bench_passes(Subcommand command);
Run add_bench_pipeline(Subcommand command);

const std::vector<Command>& benches() {
  static const std::vector<Command> list{
      {"alltoall", kAllToAllSummary, add_bench_alltoall},
      {"dedup", kDedupSummary, add_bench_dedup},
      {"moe", "one mixture layer, forward and backward, against its own GEMMs", add_bench_moe},
      {"passes", "the element-wise work of a layer, against a copy of as many bytes",
       add_bench_passes},
      {"pipeline", "steps of a pipeline of linear layers, against their own GEMMs",
       add_bench_pipeline},
      {"sim", kSimSummary, add_bench_sim},
      {"flows", kFlowsSummary, add_bench_flows},
      {"collectives", kCollectivesSummary, add_bench_collectives},
      {"plan", kPlanSummary, add_bench_plan},
      {"balance", kBalanceSummary, add_bench_balance}};
  return list;
}

}  // namespace piper::cli
