#include <piper/base/error.h>
#include <piper/base/printable.h>
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
constexpr int kLeastWidth = 8;
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

// The first of `text`, which begins with none, that stays together on a line of `room`: up to a
// comma, or else a word.
std::string_view first_piece(std::string_view text, int room) {
  const size_t comma = text.find(", ");
  const std::string_view phrase = comma < text.size() ? text.substr(0, comma + 1) : text;
  return display_width(phrase) <= room ? phrase : text.substr(0, text.find(' '));
}

// Spaces at the front stay; those where a line breaks go. A piece that is longer than a line is
// cut.
std::vector<std::string> wrapped(std::string_view text, int width) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    const size_t begin = text.find_first_not_of(' ');
    if (begin == std::string_view::npos) break;
    const std::string gap(begin, ' ');
    text.remove_prefix(begin);
    const int hang = lines.size() > 1 ? kHang : 0;
    const std::string_view piece = first_piece(text, width - kHang);
    text.remove_prefix(piece.size());
    if (!lines.empty() &&
        display_width(lines.back()) + display_width(gap) + display_width(piece) <= width - hang)
      lines.back() += gap + std::string(piece);
    else
      lines.push_back(cut_to_width(lines.empty() ? gap + std::string(piece) : piece,
                                   lines.empty() ? width : width - kHang));
  }
  if (lines.empty()) lines.emplace_back();
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
class Shrinking {
 public:
  Shrinking(Layout& layout, const Table& table) : layout_(layout) {
    excess_ =
        table.indent + static_cast<int>(kGap.size() * (layout.widths.size() - 1)) - table.max_width;
    for (const int width : layout.widths) excess_ += width;
    if (excess_ <= 0) return;
    for (size_t i = 0; i < table.columns.size(); ++i)
      if (table.columns[i].align == Align::kLeft)
        columns_.push_back({.index = i, .longest = most(i, longest_word), .lines = lines(i)});
  }

  void run() {
    for (const bool cuts_words : {false, true}) {
      for (; excess_ > 0; --excess_) {
        Text* best = nullptr;
        for (Text& text : columns_) {
          const int least = cuts_words ? kLeastWidth : std::max(text.longest + kHang, kLeastWidth);
          if (width(text) <= least) continue;
          if (best == nullptr || text.lines < best->lines ||
              (text.lines == best->lines && width(text) > width(*best)))
            best = &text;
        }
        if (best == nullptr) break;
        --layout_.widths[best->index];
        best->lines = lines(best->index);
      }
    }
  }

 private:
  struct Text {
    size_t index = 0;
    int longest = 0;  // word
    int lines = 1;    // when it is narrower by one
  };
  int width(const Text& text) const { return layout_.widths[text.index]; }
  int most(size_t column, auto measure) const {
    int most = measure(layout_.header[column]);
    for (const auto& row : layout_.rows)
      if (column < row.size()) most = std::max(most, measure(row[column]));
    return most;
  }
  int lines(size_t column) const {
    return most(column, [&](const std::string& cell) {
      return static_cast<int>(
          wrapped(cell, std::max(kLeastWidth, layout_.widths[column] - 1)).size());
    });
  }

  Layout& layout_;
  std::vector<Text> columns_;
  int excess_ = 0;
};

Layout lay_out(const Table& table) {
  Layout layout;
  layout.widths.assign(table.columns.size(), 0);
  for (const Column& column : table.columns) layout.header.push_back(shown_line(column.header));
  widen(layout, layout.header);
  for (const auto& row : table.rows) {
    PIPER_CHECK(row.size() <= table.columns.size(), "a row has more cells than the table columns");
    std::vector<std::string> cells;
    for (const std::string& cell : row) {
      const Column& column = table.columns[cells.size()];
      cells.push_back(shown_line(cell));
      if (column.align == Align::kLeft && column.max_width > 0)
        cells.back() = cut_to_width(cells.back(), column.max_width);
    }
    if (!row.empty()) cells.resize(table.columns.size());
    widen(layout, cells);
    layout.rows.push_back(std::move(cells));
  }
  if (table.max_width > 0) Shrinking(layout, table).run();
  return layout;
}

std::vector<std::string> lines_of(const std::string& cell, const Column& column, int width) {
  if (column.align == Align::kRight || display_width(cell) <= width) return {cell};
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
