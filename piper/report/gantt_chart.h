// Draws a Gantt: per rank a thick lane for compute and thin ones for exchanges and transfers. What
// stays of the lane's ground is idle: the pipeline's bubble.
#pragma once

#include <piper/report/gantt.h>

#include <string>
#include <vector>

namespace piper::report {

struct GanttChartOptions {
  std::string description;
  double axis_seconds =
      0;                  // right end of the time axis; the same for charts that are to be compared
  size_t max_ranks = 16;  // of more, this many are drawn, evenly chosen; >= 2
};

std::string gantt_chart(const Gantt& gantt, const GanttChartOptions& options);

// "bar-forward-experts": the CSS class of a bar.
std::string css_class(BarClass bar_class);

// What is drawn as one.
struct DrawnBar {
  Bar bar;
  double busy_seconds = 0;  // of its length: of its tasks
};

// Bars too narrow to be seen one by one become one, and so do those of one class with gaps of a
// pixel or so between them: a lane `pixels` wide holds at most about two bars a pixel
// whatever the number of tasks. Bars of one lane, ascending, in; ascending out.
std::vector<DrawnBar> merge_narrow(const std::vector<Bar>& bars, double pixels_per_second);

// A chart has at most so many bars that say what they are when the pointer rests on them: the
// widest. The others are strokes. Beyond so many bars in all, the narrow ones are drawn coarser.
inline constexpr size_t kMostNamedBars = 2000, kMostBars = 40'000;

}  // namespace piper::report
