// The page about a run or a plan: one self-contained HTML file, readable without a network and
// without scripts.
//
// Fill what is known; every section whose data are missing says so in a sentence. The same report
// gives the same bytes (no dates, no host names).
#pragma once

#include <piper/cluster/cluster.h>
#include <piper/report/comparison.h>
#include <piper/report/expert_rows.h>
#include <piper/report/gantt.h>
#include <piper/report/metrics.h>
#include <piper/report/plan_document.h>
#include <piper/strategy/strategy.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace piper::report {

struct Header {
  std::string model, cluster, strategy;                    // names and words; may be empty
  std::vector<std::pair<std::string, std::string>> facts;  // further lines: label, text
};

struct Report {
  Header header;
  std::optional<strategy::Strategy> trained;  // what the run followed
  std::optional<PlanDocument> plan;           // of this run
  std::optional<Gantt> predicted, measured;   // one step each
  std::optional<Comparison> comparison;       // time, MFU and memory, predicted beside measured
  std::vector<StepMetrics> metrics;           // loss and imbalance over the steps
  std::optional<ExpertRows> expert_rows;
  std::vector<PlanDocument> further_plans;  // other models on other machines
  std::optional<StrategyMap> map;
  std::optional<cluster::Cluster> machine;  // as profiled
};

// The whole page as UTF-8 text. Thread-safe.
std::string render(const Report& report);

// A page about a machine alone: what it was measured to be, with its curves.
std::string render_machine(const cluster::Cluster& machine);

}  // namespace piper::report
