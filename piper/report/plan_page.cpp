#include <piper/report/html.h>
#include <piper/report/plan_page.h>
#include <piper/report/plan_sections.h>
#include <piper/report/sections.h>

#include <algorithm>

namespace piper::report {

std::string plan_timeline_section(const PlanDocument& plan) {
  if (!plan.timeline)
    return absent(
        "Not simulated: the model or the machine is not known by its name (give --model).");
  return simulated_section(*plan.timeline);
}

std::string map_section(const std::optional<StrategyMap>& map) {
  if (!map || map->rows.empty())
    return absent("No map: give --map what `piper map --json` printed.");
  return "<div class=\"scroll\">" + map_svg(*map) + "</div>\n" +
         paragraph("Highest predicted MFU by model and number of devices of " + map->cluster + ".");
}

std::string weighed_sections(const PlanDocument& plan) {
  std::string body;
  const auto has_bytes = [](const PlanRow& row) { return !row.bytes.empty(); };
  if (std::ranges::any_of(plan.ranked, has_bytes))
    body += section("plan-memory", "The plan: memory by component, against the limit",
                    plan_memory_section(plan));
  if (!plan.families.empty())
    body += section("families", "The plan: families, why each lost", families_section(plan));
  if (!plan.front.empty())
    body += section("pareto", "The plan: faster or smaller, not both", front_section(plan));
  if (!plan.swings.empty())
    body += section("sensitivity", "The plan: what the MFU hangs on", sensitivity_section(plan));
  if (plan.roofs)
    body += section("roofline", "The plan: the layers against the device's roofs",
                    roofline_section(plan));
  return body;
}

std::string render(const PlanDocument& plan) {
  std::string body = plan_header(plan);
  body += section("ranked", "Ranked strategies", ranking_section(plan));
  body += section("timeline", "One step of the best, as predicted", plan_timeline_section(plan));
  body += section("memory", "Memory by component, against the limit", plan_memory_section(plan));
  body += section("time", "Time of a step by component", plan_time_section(plan));
  body +=
      section("families", "Families: why each lost, what would revive it", families_section(plan));
  body += section("pareto", "Faster or smaller, not both", front_section(plan));
  body += section("sensitivity", "What the MFU hangs on", sensitivity_section(plan));
  body += section("roofline", "The layers against the device's roofs", roofline_section(plan));
  body += section("map", "Strategy map", map_section(plan.map));
  return page(plan.model.empty() ? "Piper · plan" : "Piper · plan of " + plan.model, body);
}

}  // namespace piper::report
