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
constexpr int kLeastWidth = 8, kLongWord = 24;
constexpr int kHang = 2;  // by which the further lines of a cell stand in

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

// The first of `text` that stays together on a line of `room`: up to a comma, or else a word.
std::string_view first_piece(std::string_view text, int room) {
  const size_t comma = text.find(", ");
  const std::string_view phrase = comma < text.size() ? text.substr(0, comma + 1) : text;
  return display_width(phrase) <= room ? phrase : text.substr(0, text.find(' '));
}

// A piece that is longer than a line is cut.
std::vector<std::string> wrapped(std::string_view text, int width) {
  std::vector<std::string> lines(1);
  while (!text.empty()) {
    const int room = width - (lines.size() > 1 ? kHang : 0);
    const std::string_view piece = first_piece(text, width - kHang);
    std::string& line = lines.back();
    if (line.empty() && lines.size() == 1)
      line = cut_to_width(piece, room);
    else if (display_width(line) + 1 + display_width(piece) <= room)
      line += " " + std::string(piece);
    else
      lines.push_back(cut_to_width(piece, width - kHang));
    text.remove_prefix(std::min(piece.size() + 1, text.size()));
  }
  for (size_t i = 1; i < lines.size(); ++i) lines[i].insert(0, kHang, ' ');
  return lines;
}

int longest_word(const std::string& text) {
  int longest = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(' ', at), text.size());
    longest = std::max(longest, display_width(std::string_view(text).substr(at, end - at)));
    at = end + 1;
  }
  return longest;
}

// Narrows left-aligned columns until the line fits or none may be narrower, each time the one whose
// cells then need the fewest lines (of equals the widest), so that no cell is much taller than the
// others. Words are cut only where nothing else helps.
void shrink(Layout& layout, const Table& table) {
  if (table.max_width <= 0) return;
  std::vector<size_t> text;  // columns
  for (size_t i = 0; i < table.columns.size(); ++i)
    if (table.columns[i].align == Align::kLeft) text.push_back(i);
  int excess =
      table.indent + static_cast<int>(kGap.size() * (layout.widths.size() - 1)) - table.max_width;
  for (const int width : layout.widths) excess += width;
  const auto of_cells = [&](size_t column, auto measure) {
    int most = measure(layout.header[column]);
    for (const auto& row : layout.rows)
      if (column < row.size()) most = std::max(most, measure(row[column]));
    return most;
  };
  std::vector<int> least(layout.widths.size(), kLeastWidth);
  for (const size_t i : text)
    least[i] = std::clamp(of_cells(i, longest_word) + kHang, kLeastWidth, kLongWord);
  const auto lines = [&](size_t i) {
    return of_cells(i, [&](const std::string& cell) {
      return static_cast<int>(wrapped(cell, layout.widths[i] - 1).size());
    });
  };
  for (const bool cuts_words : {false, true}) {
    for (; excess > 0; --excess) {
      size_t best = layout.widths.size();
      int best_lines = 0;
      for (const size_t i : text) {
        if (layout.widths[i] <= (cuts_words ? kLeastWidth : least[i])) continue;
        const int needed = lines(i);
        if (best < layout.widths.size() &&
            (needed > best_lines ||
             (needed == best_lines && layout.widths[i] <= layout.widths[best])))
          continue;
        best = i;
        best_lines = needed;
      }
      if (best == layout.widths.size()) break;
      --layout.widths[best];
    }
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

std::vector<std::string> lines_of(const std::string& cell, const Column& column, int width) {
  if (column.align == Align::kRight || display_width(cell) <= width) return {cell};
  if (column.max_width > 0 && width == column.max_width) return {cut_to_width(cell, width)};
  return wrapped(cell, width);
}

void write_row(std::string& out, const Table& table, const Layout& layout,
               const std::vector<std::string>& cells) {
  std::vector<std::vector<std::string>> lines;
  size_t num_lines = 1;
  for (size_t i = 0; i < cells.size(); ++i) {
    lines.push_back(lines_of(cells[i], table.columns[i], layout.widths[i]));
    num_lines = std::max(num_lines, lines.back().size());
  }
  for (size_t n = 0; n < num_lines; ++n) {
    std::string line(table.indent, ' ');
    for (size_t i = 0; i < cells.size(); ++i) {
      const std::string cell = n < lines[i].size() ? lines[i][n] : "";
      const std::string padding(std::max(0, layout.widths[i] - display_width(cell)), ' ');
      if (i > 0) line += kGap;
      line += table.columns[i].align == Align::kLeft ? cell + padding : padding + cell;
    }
    while (!line.empty() && line.back() == ' ') line.pop_back();
    out += line + "\n";
  }
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
    write_row(out, table, layout, layout.header);
    if (table.header_rule) write_row(out, table, layout, rule);
  }
  for (const auto& row : layout.rows) write_row(out, table, layout, row.empty() ? rule : row);
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
