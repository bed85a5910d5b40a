#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/report/table.h>
#include <unistd.h>

#include <cstdlib>

using namespace piper::report;

namespace {

Table strategies() {
  return {.columns = {{"strategy"}, {"MFU", Align::kRight}, {"note"}},
          .rows = {{"pp 2 x ep 2", "39.4 %", "chosen"}, {"pp 1 x ep 4", "8.1 %"}}};
}

}  // namespace

TEST_CASE("numbers stand right, text stands left, no line ends in spaces") {
  CHECK(to_text(strategies()) ==
        "strategy        MFU  note\n"
        "-----------  ------  ------\n"
        "pp 2 x ep 2  39.4 %  chosen\n"
        "pp 1 x ep 4   8.1 %\n");
}

TEST_CASE("an empty row is a rule, and the header's rule and the header can be left out") {
  Table table{
      .columns = {{""}, {"", Align::kRight}}, .rows = {{"a", "1"}, {}, {"sum", "10"}}, .indent = 2};
  CHECK(to_text(table) == "  a     1\n  ---  --\n  sum  10\n");
  table.columns[0].header = "name";
  table.header_rule = false;
  CHECK(to_text(table) == "  name\n  a      1\n  ----  --\n  sum   10\n");
  CHECK(to_text(Table{}) == "");
}

TEST_CASE("the width is $COLUMNS where it says one, and no cap where nothing says any") {
  setenv("COLUMNS", "77", 1);
  CHECK(console_width() == 77);
  for (const char* nonsense : {"", "0", "-3", "wide", "80x"}) {
    setenv("COLUMNS", nonsense, 1);
    if (isatty(STDOUT_FILENO) == 0) CHECK(console_width() == 0);
  }
  unsetenv("COLUMNS");
  if (isatty(STDOUT_FILENO) == 0) CHECK(console_width() == 0);
}

TEST_CASE("widths are counted in columns of the terminal, not in bytes") {
  CHECK(display_width("stage · 1") == 9);
  CHECK(display_width("e\xCC\x81") == 1);  // e + combining acute
  CHECK(display_width("漢字") == 4);
  CHECK(display_width("\xFF\xC3") == 2);          // broken bytes
  CHECK(display_width("\xF0\x9F\x98\x80") == 2);  // an emoji
  const Table table{
      .columns = {{"α"}, {"x"}}, .rows = {{"漢", "1"}, {"abc", "2"}}, .header_rule = false};
  CHECK(to_text(table) == "α    x\n漢   1\nabc  2\n");
}

TEST_CASE("text is cut between characters and shows that it was") {
  CHECK(cut_to_width("abcdef", 6) == "abcdef");
  CHECK(cut_to_width("abcdef", 4) == "abc…");
  CHECK(cut_to_width("ab cdef", 4) == "ab…");
  CHECK(cut_to_width("漢字漢字", 4) == "漢…");
  CHECK(cut_to_width("abc", 1) == "…");
}

TEST_CASE("under a cap cells of text take several lines, and nothing of them is lost") {
  const Table table{.columns = {{"strategy"}, {"MFU", Align::kRight}, {"note"}},
                    .rows = {{"pp 2 x ep 2, recompute none, zero 1", "39.4 %", "fastest"},
                             {"pp 1 x ep 4", "8.1 %", "the smallest of all"}},
                    .max_width = 40};
  CHECK(to_text(table) ==
        "strategy               MFU  note\n"
        "------------------  ------  ------------\n"
        "pp 2 x ep 2,        39.4 %  fastest\n"
        "  recompute none,\n"
        "  zero 1\n"
        "pp 1 x ep 4          8.1 %  the smallest\n"
        "                              of all\n");
}

TEST_CASE("what a line has no room for goes to the next, spaces at its break left out") {
  const auto lines = [](const std::string& cell, int width) {
    const Table table{
        .columns = {{""}}, .rows = {{cell}}, .header_rule = false, .max_width = width};
    return to_text(table);
  };
  CHECK(lines("word   word   word", 9) == "word\n  word\n  word\n");
  CHECK(lines("  inner word", 9) == "  inner\n  word\n");  // an indent stays
  CHECK(lines("a, b c, defg", 8) == "a, b c,\n  defg\n");
  CHECK(lines("", 9) == "\n");
  CHECK(lines("漢字 漢字 漢字", 9) == "漢字 漢字\n  漢字\n");
  CHECK(lines("漢字漢字漢字", 9) == "漢字漢字…\n");  // no space, no break
}

TEST_CASE("a word is cut only where no other column can be narrower") {
  const std::string path = "configs/clusters/dgx-h100.json";
  const Table table{.columns = {{"file"}, {"note"}},
                    .rows = {{path, "measured on two nodes, described by hand, kept as it was"}},
                    .max_width = 60};
  CHECK(to_text(table).find(path) != std::string::npos);
}

TEST_CASE("a cap narrows text columns and never cuts a number") {
  Table table{.columns = {{"name"}, {"bytes", Align::kRight}, {"why"}},
              .rows = {{"short", "123456789012", std::string(60, 'w')}},
              .max_width = 40};
  const std::string text = to_text(table);
  CHECK(text.find("123456789012") != std::string::npos);
  CHECK(text.find("short") != std::string::npos);
  CHECK(text.find("w…\n") != std::string::npos);
  for (size_t at = 0, end; (end = text.find('\n', at)) != std::string::npos; at = end + 1) {
    CHECK(display_width(text.substr(at, end - at)) <= 40);
  }
  table.max_width = 10;  // cannot be met: 5 + 12 + 8
  CHECK(to_text(table).find("wwwwwww…\n") != std::string::npos);
  table.max_width = 0;
  table.columns[2].max_width = 4;
  CHECK(to_text(table).find("www…\n") != std::string::npos);
}

TEST_CASE("control characters cannot break the table, too many cells are our fault") {
  CHECK(to_text({.columns = {{"a"}}, .rows = {{"x\ny\t\x1b[31m"}}, .header_rule = false}) ==
        "a\nx?y??[31m\n");
  CHECK_THROWS_AS(to_text({.columns = {{"a"}}, .rows = {{"x", "y"}}}), piper::InternalError);
}
