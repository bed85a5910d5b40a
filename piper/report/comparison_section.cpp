// Predicted against measured, figure by figure.
#include <fmt/format.h>
#include <piper/base/units.h>
#include <piper/report/html.h>
#include <piper/report/sections.h>

#include <algorithm>
#include <cmath>

namespace piper::report {
namespace {

// Beyond this relative error a figure is marked: the bound that predictions of a step's time are
// held to. A part of the step is marked when it moves the step by more than kLargeShare besides.
constexpr double kLargeError = 0.2;
constexpr double kLargeShare = 0.05;
constexpr size_t kMaxComparedRanks = 16;

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
    add_row(quantity, predicted, measured, format, std::nullopt);
  }
  // Seconds of a step that takes `step` seconds.
  void add_part(const std::string& quantity, std::optional<double> predicted,
                std::optional<double> measured, std::optional<double> step) {
    std::optional<double> share;
    if (predicted && measured && step.value_or(0) > 0) share = (*predicted - *measured) / *step;
    add_row("  " + quantity, predicted, measured, format_seconds, share);
  }
  const HtmlTable& table() const { return table_; }

 private:
  void add_row(const std::string& quantity, std::optional<double> predicted,
               std::optional<double> measured, Format format, std::optional<double> share) {
    if (!predicted && !measured) return;
    const auto percent = [](std::optional<double> value) {
      return value ? fmt::format("{:+.1f} %", *value * 100) : "–";
    };
    const std::optional<double> error = relative_error(predicted, measured);
    const bool large =
        error && std::abs(*error) > kLargeError && (!share || std::abs(*share) > kLargeShare);
    table_.rows.push_back({.cells = {{quantity},
                                     {shown(predicted, format)},
                                     {shown(measured, format)},
                                     {percent(error), large ? "large-error" : ""},
                                     {share ? percent(share) : ""}}});
  }

  HtmlTable table_{.columns = {{"quantity"},
                               {"predicted", Align::kRight},
                               {"measured", Align::kRight},
                               {"relative error", Align::kRight},
                               {"of the step", Align::kRight}}};
};

// The predicted bytes of the parts that a measured part lists by name ("weights, gradients"); none
// when one of them was not predicted.
std::optional<double> predicted_of(const ByteComponents& predicted, std::string_view names) {
  double sum = 0;
  while (!names.empty()) {
    const size_t end = std::min(names.find(", "), names.size());
    const auto part = std::find_if(predicted.begin(), predicted.end(), [&](const auto& component) {
      return component.first == names.substr(0, end);
    });
    if (part == predicted.end()) return std::nullopt;
    sum += static_cast<double>(part->second);
    names.remove_prefix(std::min(end + 2, names.size()));
  }
  return sum;
}

void add_memory(Rows& rows, const RankComparison& rank) {
  const std::string label = fmt::format("rank {}", rank.rank);
  rows.add("peak memory, " + label, real(rank.predicted_peak_bytes), real(rank.measured_peak_bytes),
           format_bytes);
  for (const auto& [names, bytes] : rank.measured_components) {
    rows.add(fmt::format("  {}, {}", names, label), predicted_of(rank.predicted_components, names),
             static_cast<double>(bytes), format_bytes);
  }
}

std::string speed_of_machine(const Comparison& comparison) {
  if (!comparison.machine_slowdown) return "";
  return paragraph(fmt::format(
      "During the run this machine took {:.2f} times as long for the reference layers as in its "
      "profile; the predicted times count it.",
      *comparison.machine_slowdown));
}

std::string why_unpredicted(const Comparison& comparison) {
  if (comparison.no_prediction.empty()) return "";
  return paragraph("Nothing was predicted for this run: " + comparison.no_prediction + ".");
}

std::string load_of_experts(const Comparison& c) {
  if (!c.measured_load_imbalance || !c.expected_step_seconds) return "";
  return paragraph(fmt::format(
      "The predicted times are made with the routes of this step, in which the busiest "
      "expert had {:.2f} times the mean load; at the load that was planned for{} the "
      "prediction is {}.",
      *c.measured_load_imbalance,
      c.expected_load_imbalance ? fmt::format(" ({:.2f} times)", *c.expected_load_imbalance) : "",
      format_seconds(*c.expected_step_seconds)));
}

// What the run did otherwise than assumed, if anything.
std::string deviations_table(const Comparison& comparison) {
  const std::vector<Deviation> found = deviations(comparison, kLargeError);
  if (found.empty()) return "";
  HtmlTable table{.columns = {{"what left the prediction"},
                              {"assumed", Align::kRight},
                              {"measured", Align::kRight},
                              {"deviation", Align::kRight}}};
  for (const Deviation& d : found)
    table.rows.push_back(
        {.cells = {
             {d.name}, {d.assumed}, {d.measured}, {fmt::format("{:+.0f} %", d.relative * 100)}}});
  return to_html(table) +
         paragraph(
             "Listed: figures that moved the step by more than 20 % of it, and memory beyond 5 %.");
}

}  // namespace

std::string comparison_section(const Comparison* comparison) {
  if (comparison == nullptr) return absent("Nothing was measured to compare the prediction with.");
  Rows rows;
  rows.add("step time", comparison->predicted_step_seconds, comparison->measured_step_seconds,
           format_seconds);
  for (const TimeComponent& time : comparison->time_components)
    rows.add_part(time.name, time.predicted_seconds, time.measured_seconds,
                  comparison->measured_step_seconds);
  rows.add("MFU", comparison->predicted_mfu, comparison->measured_mfu, format_percent);
  const size_t num_shown = std::min(comparison->ranks.size(), kMaxComparedRanks);
  for (size_t i = 0; i < num_shown; ++i) add_memory(rows, comparison->ranks[i]);
  if (rows.table().rows.empty()) return absent("Neither side of the comparison has a figure.");
  return why_unpredicted(*comparison) + to_html(rows.table()) +
         paragraph(
             "Relative error: (predicted − measured) / measured. Errors above 20 % are marked; of "
             "the parts of a step, where they are more than 5 % of it, too. The parts add up to "
             "the "
             "step: communication counts where nothing is computed meanwhile.") +
         load_of_experts(*comparison) + speed_of_machine(*comparison) +
         deviations_table(*comparison);
}

}  // namespace piper::report
