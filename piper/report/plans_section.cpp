// Further models planned for further machines.
#include <fmt/format.h>
#include <piper/report/html.h>
#include <piper/report/sections.h>

namespace piper::report {
namespace {

constexpr size_t kRowsOfAPlan = 5;

}  // namespace

std::string plans_section(const std::vector<PlanDocument>& plans) {
  if (plans.empty()) return absent("No other model was planned.");
  std::string out;
  for (const PlanDocument& plan : plans) {
    std::string title = plan.model.empty() ? "A model that was not named" : plan.model;
    if (plan.num_devices > 0) title += fmt::format(" on {} devices", plan.num_devices);
    if (!plan.cluster.empty()) title += (plan.num_devices > 0 ? " of " : " on ") + plan.cluster;
    out += "<h3>" + escape(title) + "</h3>\n" + strategies_section(&plan, kRowsOfAPlan);
  }
  return out;
}

}  // namespace piper::report
