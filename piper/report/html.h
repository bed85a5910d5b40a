// The few elements that the report's sections are written with. Every text passed in is escaped
// here; only a parameter called `html` is taken as it is.
#pragma once

#include <piper/report/table.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace piper::report {

// For text and attribute values: & < > " ' become entities; control characters and broken UTF-8
// become U+FFFD.
std::string escape(std::string_view text);

std::string paragraph(std::string_view text);
// The sentence that stands where something is not known: never an empty box.
std::string absent(std::string_view sentence);

// A whole document with the page's style sheet; `html` is what <main> holds.
std::string page(std::string_view title, std::string_view html);

// <section id=...> with a heading; `html` is its content.
std::string section(std::string_view id, std::string_view title, std::string_view html);

// One key figure.
std::string tile(std::string_view label, std::string_view value, std::string_view note);

// With their unit; a dash where there is none.
std::string percent(std::optional<double> value);
std::string seconds(std::optional<double> value);
std::string bytes(std::optional<double> value);

struct HtmlCell {
  std::string text;
  std::string css_class = {};  // of the cell; empty = by the column's alignment alone
};

struct HtmlTable {
  std::vector<Column> columns;  // `max_width` is not used
  struct Row {
    std::vector<HtmlCell> cells;
    std::string css_class = {};
  };
  std::vector<Row> rows;
};

std::string to_html(const HtmlTable& table);

struct LegendEntry {
  std::string css_class;  // colours the swatch
  std::string text;
};
std::string legend(const std::vector<LegendEntry>& entries);

}  // namespace piper::report
