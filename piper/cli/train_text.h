// What `piper train` says on the console, and as JSON, before its steps and after them.
#pragma once

#include <piper/base/json_fwd.h>
#include <piper/train/run.h>

#include <string>
#include <vector>

namespace piper::cli {

// Model, strategy and corpus, with warnings on stderr; `said`: lines that came up before the start.
void announce(const train::RunRequest& request, const std::vector<std::string>& said);

// A table of step time, MFU and memory of every rank. Requires a result with both sides of each.
void print_comparison(const train::RunResult& result);

// Where the run left what was assumed by more than `bound` (a part of the step), component by
// component; nothing for a bound of 0, or when nothing did.
void print_deviations(const report::Comparison& comparison, double bound);

Json result_json(const train::RunResult& result);

}  // namespace piper::cli
