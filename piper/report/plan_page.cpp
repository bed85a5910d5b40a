#include <piper/report/html.h>
#include <piper/report/plan_page.h>
#include <piper/report/plan_sections.h>

namespace piper::report {

std::string render(const PlanDocument& plan) {
  std::string body = plan_header(plan);
  body += section("ranked", "Ranked strategies", ranking_section(plan));
  body += section("memory", "Memory by component, against the limit", plan_memory_section(plan));
  body += section("time", "Time of a step by component", plan_time_section(plan));
  body +=
      section("families", "Families: why each lost, what would revive it", families_section(plan));
  body += section("pareto", "Faster or smaller, not both", front_section(plan));
  body += section("sensitivity", "What the MFU hangs on", sensitivity_section(plan));
  body += section("roofline", "The layers against the device's roofs", roofline_section(plan));
  return page(plan.model.empty() ? "Piper · plan" : "Piper · plan of " + plan.model, body);
}

}  // namespace piper::report
