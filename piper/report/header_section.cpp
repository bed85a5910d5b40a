// The head of the page: what was run, and its key figures at a glance.
#include <fmt/format.h>
#include <piper/base/units.h>
#include <piper/report/html.h>
#include <piper/report/sections.h>

#include <algorithm>

namespace piper::report {
namespace {

std::string step_tile(const Comparison& c) {
  if (c.measured_step_seconds) {
    const std::string note = c.predicted_step_seconds
                                 ? "predicted " + format_seconds(*c.predicted_step_seconds)
                                 : "measured";
    const std::string of = measured_step_text(&c);
    return tile("step time", format_seconds(*c.measured_step_seconds),
                of.empty() ? note : note + "; " + of);
  }
  if (!c.predicted_step_seconds) return "";
  return tile("step time", format_seconds(*c.predicted_step_seconds), "predicted");
}

std::string mfu_tile(const Comparison& c) {
  if (c.measured_mfu) {
    const std::string note =
        c.predicted_mfu ? "predicted " + format_percent(*c.predicted_mfu) : "measured";
    return tile("MFU", format_percent(*c.measured_mfu), note);
  }
  if (!c.predicted_mfu) return "";
  return tile("MFU", format_percent(*c.predicted_mfu), "predicted");
}

std::string memory_tile(const Comparison& c) {
  std::optional<int64_t> measured, predicted;
  for (const RankComparison& rank : c.ranks) {
    measured = std::max(measured, rank.measured_peak_bytes);
    predicted = std::max(predicted, rank.predicted_peak_bytes);
  }
  if (!measured && !predicted) return "";
  const auto bytes = [](int64_t b) { return format_bytes(static_cast<double>(b)); };
  if (!measured) return tile("peak memory a rank", bytes(*predicted), "predicted");
  return tile("peak memory a rank", bytes(*measured),
              predicted ? "predicted " + bytes(*predicted) : "measured");
}

std::string loss_tile(const std::vector<StepMetrics>& metrics) {
  const auto has_loss = [](const StepMetrics& row) { return row["loss"].has_value(); };
  const auto first = std::find_if(metrics.begin(), metrics.end(), has_loss);
  if (first == metrics.end()) return "";
  const auto last = std::find_if(metrics.rbegin(), metrics.rend(), has_loss);
  return tile(
      "loss", fmt::format("{:.3f}", *(*last)["loss"]),
      fmt::format("from {:.3f}, step {} to {}", *(*first)["loss"], first->step, last->step));
}

}  // namespace

std::string measured_step_text(const Comparison* c) {
  if (c == nullptr || !c->measured_step || !c->num_steps) return "";
  return fmt::format("step {}, the median of {}", *c->measured_step, *c->num_steps);
}

std::string header_section(const Report& report) {
  const Header& header = report.header;
  std::string out = "<header>\n<p class=\"brand\">Piper</p>\n<h1>";
  out += escape(header.model.empty() ? "A model that was not named" : header.model);
  if (!header.cluster.empty()) out += " <span>on</span> " + escape(header.cluster);
  out += "</h1>\n";
  if (!header.strategy.empty()) out += paragraph(header.strategy);
  std::string tiles;
  if (report.comparison) {
    tiles += step_tile(*report.comparison) + mfu_tile(*report.comparison) +
             memory_tile(*report.comparison);
  }
  tiles += loss_tile(report.metrics);
  if (!tiles.empty()) out += "<div class=\"tiles\">\n" + tiles + "</div>\n";
  if (!header.facts.empty()) {
    out += "<dl>\n";
    for (const auto& [label, text] : header.facts) {
      out += "<dt>" + escape(label) + "</dt><dd>" + escape(text) + "</dd>\n";
    }
    out += "</dl>\n";
  }
  return out + "</header>\n";
}

}  // namespace piper::report
