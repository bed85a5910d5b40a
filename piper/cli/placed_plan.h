// `piper plan --nodes`: the plan for the nodes that a job has (placement/placed_plan.h).
#pragma once

#include <piper/cli/place_report.h>
#include <piper/placement/placed_plan.h>

namespace piper::cli {

struct NodesQuestion {
  AllocationFlags allocation;
  LaunchFileFlags files;
  bool is_asked() const { return !allocation.nodes.empty(); }
};
// Throws InvalidInput: what goes with --nodes only.
void check(const NodesQuestion& question);

using placement::PlacedPlan;

// These write a plan that is not empty: its table, the map of the best strategy, and that one's
// launch files.
void print_on_nodes(const PlacedPlan& plan, const model::Model& model,
                    const NodesQuestion& question);
Json to_json(const PlacedPlan& plan, const model::Model& model);
void write_launch_files(const PlacedPlan& plan, const model::Model& model,
                        const NodesQuestion& question);

}  // namespace piper::cli
