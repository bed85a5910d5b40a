// The report's sections: each a function from its data to the HTML between its heading and the
// next. One file a section; report.cpp puts them in order. None throws for missing or strange
// figures: it says what is missing.
#pragma once

#include <piper/report/report.h>

#include <string>
#include <vector>

namespace piper::report {

std::string header_section(const Report& report);
// A table of what was ranked; at most `max_rows` rows, and what was refused.
std::string strategies_section(const PlanDocument* strategies, size_t max_rows = 12);
// The measured step in words: "step 37 of 60, the median"; "" when unknown.
std::string measured_step_text(const Comparison* comparison);
// Two charts over one time axis; either may be null.
std::string simulated_section(const Gantt& gantt);  // of a plan, which nobody has run
std::string timeline_section(const Gantt* predicted, const Gantt* measured,
                             const Comparison* comparison);
std::string memory_section(const Comparison* comparison);
std::string loss_section(const std::vector<StepMetrics>& metrics);
std::string experts_section(const ExpertRows* rows, const std::vector<StepMetrics>& metrics);
std::string comparison_section(const Comparison* comparison);
std::string plans_section(const std::vector<PlanDocument>& plans);
// The measured curves of a machine as charts, links with their fits, and every point with its
// interval and outliers; "" when there is none.
std::string curve_charts(const cluster::Cluster& machine);
std::string machine_section(const cluster::Cluster* machine);

}  // namespace piper::report
