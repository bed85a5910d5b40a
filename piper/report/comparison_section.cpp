// Predicted against measured, figure by figure.
#include <fmt/format.h>
#include <piper/base/units.h>
#include <piper/report/html.h>
#include <piper/report/sections.h>

#include <cmath>

namespace piper::report {
namespace {

// Beyond this relative error a figure is marked: the bound that predictions of a step's time are
// held to.
constexpr double kLargeError = 0.2;

using Format = std::string (*)(double);

std::string shown(std::optional<double> value, Format format) {
  return value ? format(*value) : "–";
}

std::optional<double> real(std::optional<int64_t> value) {
  return value ? std::optional(static_cast<double>(*value)) : std::nullopt;
}

class Rows {
 public:
  // A row only for what is known on one side at least.
  void add(const std::string& quantity, std::optional<double> predicted,
           std::optional<double> measured, Format format) {
    if (!predicted && !measured) return;
    const std::optional<double> error = relative_error(predicted, measured);
    const bool large = error && std::abs(*error) > kLargeError;
    table_.rows.push_back({.cells = {{quantity},
                                     {shown(predicted, format)},
                                     {shown(measured, format)},
                                     {error ? fmt::format("{:+.1f} %", *error * 100) : "–",
                                      large ? "large-error" : ""}}});
  }
  const HtmlTable& table() const { return table_; }

 private:
  HtmlTable table_{.columns = {{"quantity"},
                               {"predicted", Align::kRight},
                               {"measured", Align::kRight},
                               {"relative error", Align::kRight}}};
};

int64_t component(const ByteComponents& components, const std::string& name) {
  for (const auto& [key, bytes] : components) {
    if (key == name) return bytes;
  }
  return 0;
}

void add_memory(Rows& rows, const RankComparison& rank) {
  const std::string label = fmt::format("rank {}", rank.rank);
  rows.add("peak memory, " + label, real(rank.predicted_peak_bytes), real(rank.measured_peak_bytes),
           format_bytes);
  if (rank.measured_components.empty()) return;
  for (const auto& [name, predicted] : rank.predicted_components) {
    rows.add("  " + name + ", " + label, static_cast<double>(predicted),
             static_cast<double>(component(rank.measured_components, name)), format_bytes);
  }
}

}  // namespace

std::string comparison_section(const Comparison* comparison) {
  if (comparison == nullptr) return absent("Nothing was measured to compare the prediction with.");
  Rows rows;
  rows.add("step time", comparison->predicted_step_seconds, comparison->measured_step_seconds,
           format_seconds);
  for (const TimeComponent& time : comparison->time_components) {
    rows.add("  " + time.name, time.predicted_seconds, time.measured_seconds, format_seconds);
  }
  rows.add("MFU", comparison->predicted_mfu, comparison->measured_mfu, format_percent);
  for (const RankComparison& rank : comparison->ranks) add_memory(rows, rank);
  if (rows.table().rows.empty()) return absent("Neither side of the comparison has a figure.");
  return to_html(rows.table()) +
         paragraph(
             "Relative error: (predicted − measured) / measured. Errors above 20 % are marked.");
}

}  // namespace piper::report
