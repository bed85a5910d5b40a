#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/base/units.h>
#include <piper/report/html.h>
#include <piper/report/strategy_map.h>
#include <piper/report/svg.h>

#include <algorithm>
#include <limits>

namespace piper::report {
namespace {

constexpr double kMapLeft = 170, kMapTop = 34, kMapRow = 58, kMapGap = 3;
constexpr int kShades = 10;

struct MfuBounds {
  double low = std::numeric_limits<double>::infinity(), high = 0;
};

MfuBounds bounds_of(const StrategyMap& map) {
  MfuBounds bounds;
  for (const StrategyMap::Row& row : map.rows)
    for (const MapCell& cell : row.cells) {
      if (!cell.mfu) continue;
      bounds.low = std::min(bounds.low, *cell.mfu);
      bounds.high = std::max(bounds.high, *cell.mfu);
    }
  return bounds;
}

std::string shade(double mfu, const MfuBounds& bounds) {
  const double part =
      bounds.high > bounds.low ? (mfu - bounds.low) / (bounds.high - bounds.low) : 1.0;
  return fmt::format("shade-{}", std::clamp(static_cast<int>(part * kShades), 0, kShades - 1));
}

// Words on at most two lines of `width` characters, broken at ", ".
std::vector<std::string> two_lines(const std::string& text, size_t width) {
  if (text.size() <= width) return {text};
  size_t at = text.rfind(", ", width);
  if (at == std::string::npos) at = text.find(", ");
  if (at == std::string::npos) return {text};
  return {text.substr(0, at + 1), text.substr(at + 2)};
}

void draw_cell(Svg& svg, const MapCell& cell, const MfuBounds& bounds, double x, double y,
               double width) {
  const std::string css_class = cell.mfu ? shade(*cell.mfu, bounds) : "idle";
  svg.rect(x, y, width, kMapRow - kMapGap, css_class, cell.mfu ? cell.detail : cell.why_not);
  const double middle = x + width / 2;
  if (!cell.mfu) {
    svg.text(middle, y + kMapRow / 2 + 2, "nothing fits", Anchor::kMiddle, "tick");
    return;
  }
  svg.text(middle, y + 18, format_percent(*cell.mfu), Anchor::kMiddle, "label");
  double line = y + 33;
  for (const std::string& words : two_lines(cell.mesh, static_cast<size_t>(width / 6.2))) {
    svg.text(middle, line, words, Anchor::kMiddle, "cell");
    line += 13;
  }
}

std::string table(const StrategyMap& map) {
  HtmlTable table{.columns = {{"model"},
                              {"devices", Align::kRight},
                              {"MFU", Align::kRight},
                              {"step time", Align::kRight},
                              {"best strategy"}}};
  for (const StrategyMap::Row& row : map.rows)
    for (size_t i = 0; i < row.cells.size(); ++i) {
      const MapCell& c = row.cells[i];
      table.rows.push_back({.cells = {{row.model, "strong"},
                                      {std::to_string(map.devices[i])},
                                      {c.mfu ? format_percent(*c.mfu) : "–"},
                                      {c.mfu ? format_seconds(c.step_seconds) : "–"},
                                      {c.mfu ? c.detail : c.why_not}}});
    }
  return to_html(table);
}

std::string head(const StrategyMap& map) {
  std::string out = "<header>\n<p class=\"brand\">Piper</p>\n<h1>Strategy map <span>on</span> " +
                    escape(map.cluster) + "</h1>\n<dl>\n";
  for (const auto& [label, text] : map.facts)
    out += "<dt>" + escape(label) + "</dt><dd>" + escape(text) + "</dd>\n";
  return out + "</dl>\n</header>\n";
}

}  // namespace

StrategyMap parse_strategy_map(const Json& json, const std::string& source) {
  constexpr double kMaxSeconds = 1e30;
  Problems problems(source);
  ObjectReader reader(json, "", &problems);
  StrategyMap map{
      .cluster = reader.text("cluster"),
      .facts = {{"trainer", reader.text(reader.has("stack") ? "stack" : "trainer", "")}},
      .devices = reader.integers("devices", 1, int64_t{1} << 24)};
  const Json* models = reader.array("models");
  if (models == nullptr) reader.problem("models", "is missing: this is no map (piper map --json)");
  for (size_t m = 0; models != nullptr && m < models->size(); ++m) {
    ObjectReader model((*models)[m], fmt::format("models[{}]", m), &problems);
    StrategyMap::Row row{.model = model.text("model"), .cells = {}};
    const Json* cells = model.array("cells");
    if (cells == nullptr || cells->size() != map.devices.size()) {
      model.problem(
          "cells", fmt::format("allowed: {} of them, one a number of devices", map.devices.size()));
      continue;
    }
    for (size_t c = 0; c < cells->size(); ++c) {
      ObjectReader cell((*cells)[c], fmt::format("models[{}].cells[{}]", m, c), &problems);
      MapCell read{.mesh = cell.text("mesh_in_short", ""),
                   .detail = cell.text("in_words", ""),
                   .why_not = cell.text("why_not", "")};
      if (cell.has("mfu")) read.mfu = cell.number("mfu", 0, 1e6);
      read.step_seconds = cell.number("step_seconds", 0, kMaxSeconds, 0);
      row.cells.push_back(std::move(read));
    }
    map.rows.push_back(std::move(row));
  }
  problems.finish();
  return map;
}

std::string map_svg(const StrategyMap& map) {
  const auto columns = static_cast<double>(std::max<size_t>(map.devices.size(), 1));
  const double width = (kChartWidth - kMapLeft) / columns;
  Svg svg(kChartWidth, kMapTop + kMapRow * static_cast<double>(map.rows.size()) + 4,
          "Highest predicted MFU by model and number of devices");
  const MfuBounds bounds = bounds_of(map);
  for (size_t i = 0; i < map.devices.size(); ++i)
    svg.text(kMapLeft + width * (static_cast<double>(i) + 0.5), kMapTop - 12,
             fmt::format("{} devices", map.devices[i]), Anchor::kMiddle, "tick");
  for (size_t r = 0; r < map.rows.size(); ++r) {
    const StrategyMap::Row& row = map.rows[r];
    PIPER_CHECK(row.cells.size() == map.devices.size(), "a row of the map misses cells");
    const double y = kMapTop + kMapRow * static_cast<double>(r);
    svg.text(kMapLeft - 10, y + kMapRow / 2 + 2, row.model, Anchor::kEnd, "label");
    for (size_t i = 0; i < row.cells.size(); ++i)
      draw_cell(svg, row.cells[i], bounds, kMapLeft + width * static_cast<double>(i), y,
                width - kMapGap);
  }
  return svg.finish();
}

std::string render(const StrategyMap& map) {
  std::string body = head(map);
  body += section("map", "Highest predicted MFU",
                  map.rows.empty() ? absent("No model was asked for.")
                                   : "<div class=\"scroll\">" + map_svg(map) + "</div>\n");
  body += section("table", "The same as a table", table(map));
  return page("Piper · strategy map of " + map.cluster, body);
}

}  // namespace piper::report
