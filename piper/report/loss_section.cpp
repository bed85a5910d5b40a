// The loss over the steps.
#include <fmt/format.h>
#include <piper/report/html.h>
#include <piper/report/line_chart.h>
#include <piper/report/sections.h>

namespace piper::report {

std::string loss_section(const std::vector<MetricsRow>& metrics) {
  Series loss{.name = "loss", .css_class = "series-a"};
  for (const MetricsRow& row : metrics) {
    if (row.loss) loss.points.emplace_back(static_cast<double>(row.step), *row.loss);
  }
  if (loss.points.empty()) return absent("No loss was recorded: the model was not trained here.");
  return line_chart({.description = fmt::format("Loss over {} steps", loss.points.size()),
                     .x_label = "step",
                     .y_label = "Mean loss of a token (nats)",
                     .series = {loss},
                     .height = 300});
}

}  // namespace piper::report
