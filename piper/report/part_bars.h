// Horizontal bars, each stacked of its parts, over a common axis from zero: memory by component,
// time by component.
#pragma once

#include <piper/report/plan_document.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace piper::report {

struct PartBar {
  std::string label, title;  // at the left; when the pointer rests on the label's bar
  Parts parts;
  std::string note;  // at the right
};

struct PartBars {
  std::string description;
  std::vector<PartBar> bars;
  std::optional<double> limit;  // a mark across all bars
  std::string limit_name;
  bool binary = false;                        // ticks at powers of two
  std::function<std::string(double)> format;  // of ticks and titles
};

// With its legend. "" when no part is above zero. A part has one colour in all bars; parts that are
// zero everywhere are left out.
std::string part_bars(const PartBars& chart);

}  // namespace piper::report
