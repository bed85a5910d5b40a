#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/base/units.h>
#include <piper/report/html.h>
#include <piper/report/style.h>

namespace piper::report {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

// Length of the well-formed UTF-8 sequence at text[at]; 0 when broken.
size_t sequence_length(std::string_view text, size_t at) {
  const auto lead = static_cast<unsigned char>(text[at]);
  if (lead < 0x80) return 1;
  const size_t length = lead >= 0xF5   ? 0
                        : lead >= 0xF0 ? 4
                        : lead >= 0xE0 ? 3
                        : lead >= 0xC2 ? 2
                                       : 0;
  if (length == 0 || at + length > text.size()) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((static_cast<unsigned char>(text[at + i]) & 0xC0) != 0x80) return 0;
  }
  return length;
}

std::string_view entity(char c) {
  switch (c) {
    case '&':
      return "&amp;";
    case '<':
      return "&lt;";
    case '>':
      return "&gt;";
    case '"':
      return "&quot;";
    case '\'':
      return "&#39;";
  }
  const bool is_control = static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t';
  return is_control || c == 0x7F ? kReplacement : std::string_view{};
}

std::string class_attribute(std::string_view name) {
  return name.empty() ? "" : fmt::format(" class=\"{}\"", escape(name));
}

std::string cell(const char* element, const HtmlCell& cell, Align align) {
  std::string classes = cell.css_class;
  if (align == Align::kRight) classes += classes.empty() ? "number" : " number";
  return fmt::format("<{0}{1}>{2}</{0}>", element, class_attribute(classes), escape(cell.text));
}

}  // namespace

std::string escape(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const size_t length = sequence_length(text, at);
    if (length == 0) {
      out += kReplacement;
      ++at;
      continue;
    }
    const std::string_view replaced = length == 1 ? entity(text[at]) : std::string_view{};
    out += replaced.empty() ? text.substr(at, length) : replaced;
    at += length;
  }
  return out;
}

std::string paragraph(std::string_view text) { return "<p>" + escape(text) + "</p>\n"; }

std::string absent(std::string_view sentence) {
  return "<p class=\"absent\">" + escape(sentence) + "</p>\n";
}

std::string tile(std::string_view label, std::string_view value, std::string_view note) {
  return fmt::format("<div class=\"tile\"><span>{}</span><b>{}</b><small>{}</small></div>\n",
                     escape(label), escape(value), escape(note));
}

std::string percent(std::optional<double> value) { return value ? format_percent(*value) : "–"; }
std::string seconds(std::optional<double> value) { return value ? format_seconds(*value) : "–"; }
std::string bytes(std::optional<double> value) { return value ? format_bytes(*value) : "–"; }

std::string page(std::string_view title, std::string_view html) {
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"generator\" content=\"written by piper\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, "
      "initial-scale=1\">\n<title>{}</title>\n"
      "<style>\n{}</style>\n</head>\n<body>\n<main>\n{}</main>\n</body>\n</html>\n",
      escape(title), style_sheet(), html);
}

std::string section(std::string_view id, std::string_view title, std::string_view html) {
  return fmt::format("<section id=\"{}\">\n<h2>{}</h2>\n{}</section>\n", escape(id), escape(title),
                     html);
}

std::string to_html(const HtmlTable& table) {
  std::string out = "<div class=\"scroll\"><table>\n<thead><tr>";
  for (const Column& column : table.columns) out += cell("th", {column.header}, column.align);
  out += "</tr></thead>\n<tbody>\n";
  for (const HtmlTable::Row& row : table.rows) {
    PIPER_CHECK(row.cells.size() <= table.columns.size(), "a row has too many cells");
    out += "<tr" + class_attribute(row.css_class) + ">";
    for (size_t i = 0; i < table.columns.size(); ++i) {
      out += cell("td", i < row.cells.size() ? row.cells[i] : HtmlCell{}, table.columns[i].align);
    }
    out += "</tr>\n";
  }
  return out + "</tbody>\n</table></div>\n";
}

std::string legend(const std::vector<LegendEntry>& entries) {
  std::string out = "<p class=\"legend\">";
  for (const LegendEntry& entry : entries) {
    out += fmt::format("<span><i class=\"{}\"></i>{}</span>", escape(entry.css_class),
                       escape(entry.text));
  }
  return out + "</p>\n";
}

}  // namespace piper::report
