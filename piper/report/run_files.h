// What lies in a run's folder, by name; and the report that can be made of it.
//
//   strategy.json         the strategy that was trained          strategy::to_json
//   metrics.jsonl         a line a step                          metrics.h
//   predicted_trace.json  one step, simulated                    chrome_trace.h
//   measured_trace.json   one step, as it ran                    chrome_trace.h
//   comparison.json       predicted beside measured              comparison.h
//   traffic.json          bytes of a step by pair of ranks       train/traffic.h; not read
//   expert_load.json      rows of every expert                   expert_rows.h
//   run.json              names and facts for the page's head    RunFacts below
//   plan.json             what `piper plan --json` printed       plan_document.h
//   plans/*.json          the same for other models, by file name in order
//   cluster.json          what `piper profile` wrote             cluster::parse_cluster
//
// Every file may be missing.
#pragma once

#include <piper/report/report.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace piper::report {

inline constexpr const char* kStrategyFile = "strategy.json";
inline constexpr const char* kProposedStrategyFile = "proposed_strategy.json";
inline constexpr const char* kMetricsFile = "metrics.jsonl";
inline constexpr const char* kPredictedTraceFile = "predicted_trace.json";
inline constexpr const char* kMeasuredTraceFile = "measured_trace.json";
inline constexpr const char* kComparisonFile = "comparison.json";
inline constexpr const char* kTrafficFile = "traffic.json";
inline constexpr const char* kExpertLoadFile = "expert_load.json";
inline constexpr const char* kRunFile = "run.json";
inline constexpr const char* kPlanFile = "plan.json";
inline constexpr const char* kPlansFolder = "plans";
inline constexpr const char* kClusterFile = "cluster.json";

// {"model": "tiny-moe-10m", "cluster": "this machine", "facts": {"parameters": "10.2 M, 4.1 M
// active"}}
Json to_json(const Header& header);  // the strategy's words are made from strategy.json
Header parse_header(const Json& json, const std::string& source);

// Reads what is there. Without a plan the trained strategy stands alone in the ranking. The row of
// the plan that equals strategy.json is marked as chosen and gets the measured figures of
// comparison.json. Throws InvalidInput with the problems of *all* files at once; IoError when
// `folder` is no folder or holds none of these files.
Report read_run(const std::filesystem::path& folder);

// Puts a plan into the report: a ranking for the report's own model and cluster as the run's
// ranking, any other among the further plans.
void add_plan(Report& report, PlanDocument plan);

}  // namespace piper::report
