#include <piper/base/error.h>
#include <piper/report/table.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <span>

namespace piper::report {
namespace {

constexpr std::string_view kGap = "  ";
constexpr int kMinimumCut = 8;

struct Character {
  uint32_t code = 0;
  size_t bytes = 1;
};

// The character at text[at]; a broken sequence is one byte with code 0xFFFD.
Character character(std::string_view text, size_t at) {
  const auto lead = static_cast<unsigned char>(text[at]);
  if (lead < 0x80) return {lead, 1};
  const size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC0 ? 2 : 0;
  if (length == 0 || lead > 0xF4 || at + length > text.size()) return {0xFFFD, 1};
  uint32_t code = lead & (0xFFu >> (length + 1));
  for (size_t i = 1; i < length; ++i) {
    const auto next = static_cast<unsigned char>(text[at + i]);
    if ((next & 0xC0) != 0x80) return {0xFFFD, 1};
    code = code << 6 | (next & 0x3F);
  }
  return {code, length};
}

struct CodeRange {
  uint32_t first, last;
};

// Unicode's general categories Mn and Me (the blocks in common use), and the zero-width characters.
constexpr std::array<CodeRange, 8> kCombining{{{0x0300, 0x036F},
                                               {0x0483, 0x0489},
                                               {0x0591, 0x05BD},
                                               {0x1AB0, 0x1AFF},
                                               {0x200B, 0x200F},
                                               {0x20D0, 0x20FF},
                                               {0xFE00, 0xFE0F},
                                               {0xFE20, 0xFE2F}}};
// East Asian Width W and F (UAX #11), by block.
constexpr std::array<CodeRange, 9> kWide{{{0x1100, 0x115F},
                                          {0x2E80, 0x303E},
                                          {0x3041, 0xA4CF},
                                          {0xAC00, 0xD7A3},
                                          {0xF900, 0xFAFF},
                                          {0xFE30, 0xFE6F},
                                          {0xFF00, 0xFF60},
                                          {0x1F300, 0x1FAFF},
                                          {0x20000, 0x3FFFD}}};

bool in(uint32_t code, std::span<const CodeRange> ranges) {
  return std::any_of(ranges.begin(), ranges.end(),
                     [&](const CodeRange& r) { return r.first <= code && code <= r.last; });
}

int width_of(uint32_t code) { return in(code, kCombining) ? 0 : in(code, kWide) ? 2 : 1; }

std::string printable(std::string_view text) {
  std::string result(text);
  for (char& c : result) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) c = ' ';
  }
  return result;
}

// The table's cells as they will be shown, before cutting; the header is a row of its own.
struct Layout {
  std::vector<std::string> header;
  std::vector<std::vector<std::string>> rows;
  std::vector<int> widths;
};

void widen(Layout& layout, const std::vector<std::string>& cells) {
  for (size_t i = 0; i < cells.size(); ++i) {
    layout.widths[i] = std::max(layout.widths[i], display_width(cells[i]));
  }
}

// Cuts the widest left-aligned column by one until the line fits or nothing more may be cut.
void shrink(Layout& layout, const Table& table) {
  if (table.max_width <= 0) return;
  auto line_width = [&] {
    int sum = table.indent;
    for (int w : layout.widths) sum += w;
    return sum + static_cast<int>(kGap.size() * (layout.widths.size() - 1));
  };
  while (line_width() > table.max_width) {
    int* widest = nullptr;
    for (size_t i = 0; i < layout.widths.size(); ++i) {
      int& width = layout.widths[i];
      const bool may_cut = table.columns[i].align == Align::kLeft && width > kMinimumCut;
      if (may_cut && (widest == nullptr || width > *widest)) widest = &width;
    }
    if (widest == nullptr) return;
    --*widest;
  }
}

Layout lay_out(const Table& table) {
  Layout layout;
  layout.widths.assign(table.columns.size(), 0);
  for (const Column& column : table.columns) layout.header.push_back(printable(column.header));
  widen(layout, layout.header);
  for (const auto& row : table.rows) {
    PIPER_CHECK(row.size() <= table.columns.size(), "a row has more cells than the table columns");
    std::vector<std::string> cells;
    for (const std::string& cell : row) cells.push_back(printable(cell));
    if (!row.empty()) cells.resize(table.columns.size());
    widen(layout, cells);
    layout.rows.push_back(std::move(cells));
  }
  for (size_t i = 0; i < table.columns.size(); ++i) {
    const Column& column = table.columns[i];
    if (column.align == Align::kLeft && column.max_width > 0) {
      layout.widths[i] = std::min(layout.widths[i], column.max_width);
    }
  }
  shrink(layout, table);
  return layout;
}

void write_line(std::string& out, const Table& table, const Layout& layout,
                const std::vector<std::string>& cells) {
  std::string line(table.indent, ' ');
  for (size_t i = 0; i < cells.size(); ++i) {
    const int width = layout.widths[i];
    const bool left = table.columns[i].align == Align::kLeft;
    const std::string cell = left && width > 0 ? cut_to_width(cells[i], width) : cells[i];
    const std::string padding(std::max(0, width - display_width(cell)), ' ');
    if (i > 0) line += kGap;
    line += left ? cell + padding : padding + cell;
  }
  while (!line.empty() && line.back() == ' ') line.pop_back();
  out += line + "\n";
}

}  // namespace

int display_width(std::string_view text) {
  int width = 0;
  for (size_t at = 0; at < text.size();) {
    const Character c = character(text, at);
    width += width_of(c.code);
    at += c.bytes;
  }
  return width;
}

std::string cut_to_width(std::string_view text, int width) {
  PIPER_CHECK(width >= 1);
  if (display_width(text) <= width) return std::string(text);
  size_t at = 0;
  for (int used = 0; at < text.size();) {
    const Character c = character(text, at);
    used += width_of(c.code);
    if (used > width - 1) break;
    at += c.bytes;
  }
  while (at > 0 && text[at - 1] == ' ') --at;
  return std::string(text.substr(0, at)) + "…";
}

std::string to_text(const Table& table) {
  if (table.columns.empty()) return "";
  const Layout layout = lay_out(table);
  std::vector<std::string> rule;
  for (int width : layout.widths) rule.push_back(std::string(width, '-'));
  std::string out;
  const bool has_header = std::any_of(layout.header.begin(), layout.header.end(),
                                      [](const std::string& h) { return !h.empty(); });
  if (has_header) {
    write_line(out, table, layout, layout.header);
    if (table.header_rule) write_line(out, table, layout, rule);
  }
  for (const auto& row : layout.rows) write_line(out, table, layout, row.empty() ? rule : row);
  return out;
}

int console_width() {
  if (const char* columns = std::getenv("COLUMNS"); columns != nullptr) {
    const std::string_view text(columns);
    int width = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), width);
    if (error == std::errc() && end == text.data() + text.size() && width > 0) return width;
  }
  winsize size{};
  const bool known = isatty(STDOUT_FILENO) != 0 && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0;
  return known && size.ws_col > 0 ? size.ws_col : 0;
}

}  // namespace piper::report
