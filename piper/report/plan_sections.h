// The sections of a plan's page: each a function from the plan to the HTML between its heading and
// the next. None throws for missing figures: it says in a sentence what is missing.
#pragma once

#include <piper/report/plan_document.h>

#include <optional>
#include <string>

namespace piper::report {

std::string plan_header(const PlanDocument& plan);
// At most `max_rows` rows.
std::string ranking_section(const PlanDocument& plan, size_t max_rows = 16);
// Stacked bars of the ranked strategies' memory against the limit, and of the time of the best of
// each family.
std::string plan_memory_section(const PlanDocument& plan);
std::string plan_time_section(const PlanDocument& plan);
std::string families_section(const PlanDocument& plan);
std::string front_section(const PlanDocument& plan);        // scatter of memory and MFU
std::string sensitivity_section(const PlanDocument& plan);  // tornado
std::string roofline_section(const PlanDocument& plan);
std::string plan_timeline_section(const PlanDocument& plan);
std::string map_section(const std::optional<StrategyMap>& map);
// Those of a plan that have anything to show, each under its heading: what a run's page has of the
// plan that it followed.
std::string weighed_sections(const PlanDocument& plan);

// "pp 4 · ep 8 · dp 16, 1f1b, 16 × 1, recompute none"
std::string words_of(const PlanRow& row);

}  // namespace piper::report
