// The page about a plan over every axis: one self-contained HTML file, readable without a network
// and without scripts.
#pragma once

#include <piper/report/plan_document.h>

#include <string>

namespace piper::report {

// The whole page as UTF-8 text. Thread-safe. The same plan gives the same bytes.
std::string render(const PlanDocument& plan);

}  // namespace piper::report
