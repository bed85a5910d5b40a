#include <doctest/doctest.h>
#include <piper/base/json.h>
#include <piper/base/printable.h>

#include <string>
#include <vector>

namespace piper {
namespace {

// What steers a terminal or a reader's eye, one each.
const std::vector<std::string> kSteering = {"\x1b",
                                            "\r",
                                            "\x7f",
                                            "\xc2\x80",
                                            "\xc2\x9b",
                                            "\xc2\x9f",
                                            "\xd8\x9c",
                                            "\xe2\x80\x8e",
                                            "\xe2\x80\x8f",
                                            "\xe2\x80\xa8",
                                            "\xe2\x80\xa9",
                                            "\xe2\x80\xaa",
                                            "\xe2\x80\xae",
                                            "\xe2\x81\xa6",
                                            "\xe2\x81\xa9",
                                            "\xef\xbb\xbf",
                                            "\xf3\xa0\x81\x81"};

}  // namespace

TEST_CASE("what steers a terminal becomes a question mark, whatever stands around it") {
  for (const std::string& mark : kSteering) {
    CAPTURE(mark);
    CHECK(printable("a" + mark + "b") == "a?b");
    CHECK(one_line(mark + "b") == "?b");
    CHECK(shown_line("a" + mark) == "a?");
    CHECK(shown_lines("a\n" + mark + "\nb") == "a\n?\nb");
  }
  CHECK(shown_line("a\nb\tc") == "a?b?c");
  CHECK(shown_lines("a\nb\tc") == "a\nb\tc");
}

TEST_CASE("bytes that are no UTF-8 are question marks, and no character behind them is lost") {
  CHECK(shown_line("a\x9b"
                   "31mb") == "a?31mb");
  CHECK(shown_line("\xc0\x9b"
                   "b") == "??b");
  CHECK(shown_line("\xe0\x82\x9b"
                   "b") == "???b");            // U+009B, longer than it need be
  CHECK(shown_line("\xed\xa0\x80") == "???");  // half of a surrogate pair
  CHECK(shown_line("a\xe2\x80") == "a??");
  CHECK(shown_line("\xe2\x80\xc3\xa9") == "??\xc3\xa9");
}

TEST_CASE("text that people write stays as it is") {
  for (const std::string text :
       {"Zürich", "日本語", "שלום", "é = é", "👩‍💻", "x ± 3 µs … “a”"})
    CHECK(shown_line(text) == text);
}

TEST_CASE("a JSON document on a terminal reads back to the same") {
  for (const std::string& mark : kSteering) {
    const Json json{{"name", "a" + mark + "b"}};
    const std::string shown = shown_json(json.dump(2));
    CAPTURE(shown);
    CHECK(Json::parse(shown) == json);
    CHECK(shown_lines(shown) == shown);
  }
}

}  // namespace piper
