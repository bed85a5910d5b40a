// The loss over the steps, and the validation loss where it was looked at.
#include <fmt/format.h>
#include <piper/report/html.h>
#include <piper/report/line_chart.h>
#include <piper/report/sections.h>

namespace piper::report {

std::string loss_section(const std::vector<MetricsRow>& metrics) {
  Series loss{.name = "loss", .css_class = "series-a"};
  Series validation{.name = "validation loss", .css_class = "series-b"};
  for (const MetricsRow& row : metrics) {
    if (row.loss) loss.points.emplace_back(static_cast<double>(row.step), *row.loss);
    if (row.validation_loss)
      validation.points.emplace_back(static_cast<double>(row.step), *row.validation_loss);
  }
  if (loss.points.empty()) return absent("No loss was recorded: the model was not trained here.");
  std::vector<Series> series = {loss};
  if (!validation.points.empty()) series.push_back(validation);
  return line_chart({.description = fmt::format("Loss over {} steps", loss.points.size()),
                     .x_label = "step",
                     .y_label = "Mean loss of a token (nats)",
                     .series = series,
                     .height = 300});
}

}  // namespace piper::report
