// The loss over the steps, the validation loss where it was looked at, and what stands beside them
// in charts of their own.
#include <piper/report/html.h>
#include <piper/report/metric_charts.h>
#include <piper/report/sections.h>

#include <algorithm>

namespace piper::report {

std::string loss_section(const std::vector<StepMetrics>& metrics) {
  const auto has_loss = [](const StepMetrics& step) { return step["loss"].has_value(); };
  if (std::ranges::none_of(metrics, has_loss))
    return absent("No loss was recorded: the model was not trained here.");
  return metric_charts(MetricChart::kLoss, metrics) +
         metric_charts(MetricChart::kOfItsOwn, metrics);
}

}  // namespace piper::report
