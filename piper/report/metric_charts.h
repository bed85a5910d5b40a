// The charts of a run's metrics over its steps, as the table in metrics.h places them.
#pragma once

#include <piper/report/metrics.h>

#include <string>
#include <vector>

namespace piper::report {

// The metrics of this chart in one chart; those of MetricChart::kOfItsOwn one after another, each
// in its own.
// "" where nothing was recorded.
std::string metric_charts(MetricChart chart, const std::vector<StepMetrics>& steps);

}  // namespace piper::report
