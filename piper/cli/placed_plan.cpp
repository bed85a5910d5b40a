#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/base/units.h>
#include <piper/cli/console.h>
#include <piper/cli/placed_plan.h>
#include <piper/plan/search.h>
#include <piper/report/table.h>

namespace piper::cli {
namespace {

using report::Align;

PlaceReport report_of(const PlacedPlan& plan, const model::Model& model) {
  const placement::OnNodes& best = plan.ranked.front();
  PlaceReport report{.allocation = plan.allocation, .strategy = best.strategy};
  fill_in(report, model, placement::rank_traffic(model, best.strategy), best.step);
  return report;
}

}  // namespace

void check(const NodesQuestion& q) {
  std::vector<std::string> problems;
  add_problems(q.allocation, problems);
  if (!q.is_asked()) {
    const AllocationFlags& a = q.allocation;
    if (!a.topology.empty() || !a.slots.empty() || a.first_number != 0)
      problems.emplace_back(
          "--topology, --first-number and --ranks-per-node say where --nodes are; give --nodes "
          "too");
    if (!q.files.rankfile.empty() || !q.files.hostfile.empty())
      problems.emplace_back(
          "--rankfile and --hostfile say which rank is on which node; give --nodes too");
  }
  if (!problems.empty()) throw InvalidInput(problems);
}

void print_on_nodes(const PlacedPlan& plan, const model::Model& model, const NodesQuestion& q) {
  report::Table table;
  table.columns = {{"", Align::kRight},
                   {"on these nodes"},
                   {"step as searched", Align::kRight},
                   {"ranks as listed", Align::kRight},
                   {"ranks placed", Align::kRight}};
  for (size_t i = 0; i < plan.ranked.size(); ++i) {
    const placement::OnNodes& c = plan.ranked[i];
    table.rows.push_back({std::to_string(i + 1), plan::describe(c.strategy),
                          format_seconds(c.predicted_seconds), format_seconds(c.step.given_seconds),
                          format_seconds(c.step.seconds)});
  }
  table.max_width = report::console_width();
  const PlaceReport report = report_of(plan, model);
  say("\n{}\n{}{}", Lines{report::to_text(table)}, Lines{to_text(report)},
      Lines{launch_text(report, q.files)});
}

Json to_json(const PlacedPlan& plan, const model::Model& model) {
  Json json = to_json(report_of(plan, model));
  json["ranked"] = Json::array();
  for (const placement::OnNodes& c : plan.ranked)
    json["ranked"].push_back({{"strategy", plan::describe(c.strategy)},
                              {"step_seconds_as_searched", c.predicted_seconds},
                              {"step_seconds_as_listed", c.step.given_seconds},
                              {"step_seconds_placed", c.step.seconds}});
  return json;
}

void write_launch_files(const PlacedPlan& plan, const model::Model& model, const NodesQuestion& q) {
  if (!q.files.rankfile.empty() || !q.files.hostfile.empty())
    write_launch_files(report_of(plan, model), q.files);
}

}  // namespace piper::cli
