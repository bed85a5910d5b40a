// Memory and time of a plan's strategies by component.
#include <fmt/format.h>
#include <piper/base/units.h>
#include <piper/report/html.h>
#include <piper/report/part_bars.h>
#include <piper/report/plan_sections.h>

#include <algorithm>

namespace piper::report {
namespace {

constexpr size_t kMaxBars = 8;

// A bar for every family: of its best, or with `nearest` of what lacks least too.
std::vector<PartBar> family_bars(const PlanDocument& plan, bool nearest,
                                 PartBar (*bar)(const std::string& label, const PlanRow& row)) {
  std::vector<PartBar> bars;
  for (const PlanFamily& f : plan.families) {
    if (f.best)
      bars.push_back(bar(f.family, *f.best));
    else if (nearest && f.nearest)
      bars.push_back(bar(f.family + " (no)", *f.nearest));
  }
  return bars;
}

PartBar memory_bar(const std::string& label, const PlanRow& row) {
  return {.label = label,
          .title = words_of(row),
          .parts = row.bytes,
          .note = row.peak_bytes ? format_bytes(*row.peak_bytes) : "–"};
}

PartBar time_bar(const std::string& label, const PlanRow& row) {
  return {.label = label,
          .title = words_of(row),
          .parts = row.seconds,
          .note = row.step_seconds ? format_seconds(*row.step_seconds) : "–"};
}

std::string rank_label(size_t i) { return fmt::format("strategy {}", i + 1); }

}  // namespace

std::string plan_memory_section(const PlanDocument& plan) {
  PartBars ranked{.description = "Memory of the fullest stage by component",
                  .limit = plan.memory_limit_bytes,
                  .limit_name = "usable memory of a device",
                  .binary = true,
                  .format = format_bytes};
  PartBars families = ranked;
  for (size_t i = 0; i < std::min(plan.ranked.size(), kMaxBars); ++i)
    ranked.bars.push_back(memory_bar(rank_label(i), plan.ranked[i]));
  families.bars = family_bars(plan, true, memory_bar);
  std::string out = part_bars(ranked);
  const std::string of_families = part_bars(families);
  if (!of_families.empty())
    out +=
        "<h3>" + escape("The best of each family; (no): it does not fit") + "</h3>\n" + of_families;
  return out.empty() ? absent("This document keeps no memory by component.") : out;
}

std::string plan_time_section(const PlanDocument& plan) {
  PartBars chart{.description = "Seconds of a step by component, the best of each family",
                 .format = format_seconds};
  chart.bars = family_bars(plan, false, time_bar);
  if (chart.bars.empty())
    for (size_t i = 0; i < std::min(plan.ranked.size(), kMaxBars); ++i)
      chart.bars.push_back(time_bar(rank_label(i), plan.ranked[i]));
  const std::string out = part_bars(chart);
  return out.empty() ? absent("This document keeps no time by component.") : out;
}

}  // namespace piper::report
