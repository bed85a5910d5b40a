// Tables for the console: aligned columns of text, counted in the columns of a terminal, not in
// bytes.
//
//   strategy            micro-batch    MFU  step time
//   pp 2 x ep 2 x dp 2            4  39.4 %    1.23 s
//
// Plain text without colours, no spaces at the end of a line, every line ended by a newline.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace piper::report {

enum class Align { kLeft, kRight };

struct Column {
  std::string header;
  Align align = Align::kLeft;  // numbers: kRight; such cells are never cut (half a number is a lie)
  int max_width = 0;           // longer left-aligned cells are cut with an ellipsis; 0 = no limit
};

struct Table {
  std::vector<Column> columns;
  // Cells by row; a short row is filled with empty cells, a longer one is an error (PIPER_CHECK).
  // An empty row is a rule.
  std::vector<std::vector<std::string>> rows;
  bool header_rule =
      true;  // a line of dashes under the header; without any header text neither appears
  int indent = 0;
  // Widest line allowed, in terminal columns: left-aligned columns are narrowed until it fits, none
  // below 8, and their cells then take several lines; 0 = no cap. See console_width().
  int max_width = 0;
};

// Control characters of a cell (newlines, tabs, escapes) are written as spaces.
std::string to_text(const Table& table);

// $COLUMNS where it is a number; else the columns of the terminal on standard output; 0, no cap,
// when it is none: what is piped or kept is not cut.
int console_width();

// Columns that a terminal needs for `text` (UTF-8): combining marks 0, wide East Asian characters
// and emoji 2, a broken byte 1.
int display_width(std::string_view text);

// At most `width` columns of `text`, the last one "…" when something was left out. Requires width
// >= 1.
std::string cut_to_width(std::string_view text, int width);

}  // namespace piper::report
