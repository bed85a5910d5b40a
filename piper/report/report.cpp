#include <piper/report/html.h>
#include <piper/report/plan_sections.h>
#include <piper/report/report.h>
#include <piper/report/sections.h>

namespace piper::report {
namespace {

template <class T>
const T* pointer(const std::optional<T>& value) {
  return value ? &*value : nullptr;
}

}  // namespace

std::string render(const Report& report) {
  const Comparison* comparison = pointer(report.comparison);
  std::string body = header_section(report);
  body +=
      section("timeline", "One step, predicted and measured",
              timeline_section(pointer(report.predicted), pointer(report.measured), comparison));
  body += section("comparison", "Predicted against measured", comparison_section(comparison));
  body += section("loss", "Loss", loss_section(report.metrics));
  body += section("strategies", "Ranked strategies", strategies_section(pointer(report.plan)));
  body += section("memory", "Memory of every rank", memory_section(comparison));
  body += section("experts", "Load of the experts",
                  experts_section(pointer(report.expert_rows), report.metrics));
  if (report.plan) body += weighed_sections(*report.plan);
  if (report.map) body += section("map", "Strategy map", map_section(report.map));
  body += section("plans", "Other models, other machines", plans_section(report.further_plans));
  body += section("machine", "The machine", machine_section(pointer(report.machine)));
  const std::string& model = report.header.model;
  return page(model.empty() ? "Piper" : "Piper · " + model, body);
}

std::string render_machine(const cluster::Cluster& machine) {
  return page("Piper · " + machine.name,
              section("machine", "The machine", machine_section(&machine)));
}

}  // namespace piper::report
