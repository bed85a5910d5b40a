// What Python's json module writes beyond JSON, and nothing else.
#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/base/python_json.h>

#include <cmath>
#include <limits>
#include <string>

namespace piper {
namespace {

std::string complaint(const std::string& text) {
  try {
    parse_python_json(text, "c.json");
  } catch (const InvalidInput& error) {
    return error.what();
  }
  return "accepted";
}

TEST_CASE("NaN and the infinities are numbers that are not finite") {
  const Json json = parse_python_json(
      R"({"limit": [0.0, Infinity], "low": -Infinity, "what": NaN, "name": "Infinity", "one": 1})",
      "c.json");
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  CHECK(json["limit"][1].get<double>() == kInfinity);
  CHECK(json["low"].get<double>() == -kInfinity);
  CHECK(std::isnan(json["what"].get<double>()));
  CHECK(json["name"] == "Infinity");
  CHECK(json["one"] == 1);
  CHECK(parse_python_json("NaN", "c.json").is_number_float());
}

TEST_CASE("words within strings and parts of words are left alone") {
  CHECK(parse_python_json(R"({"a\"NaN": "say \"NaN, Infinity\""})", "c.json")["a\"NaN"] ==
        "say \"NaN, Infinity\"");
  for (const char* text :
       {"{\"a\": NaNs}", "{\"a\": +Infinity}", "{\"a\": infinity}", "{\"a\": nan}", "{\"a\": 1NaN}",
        "{NaN: 1}", "{\"a\": --Infinity}", "{\"a\": Infinity1}"})
    CHECK_MESSAGE(complaint(text) != "accepted", text);
}

TEST_CASE("everything else is as strict as before, and its byte is named right") {
  CHECK(complaint(R"({"a": 1, "a": NaN})") == "c.json: key 'a' appears twice");
  CHECK(complaint(R"({"a": 1e400})").find("out of range") != std::string::npos);
  const std::string with = R"({"a": NaN, "b": -Infinity, "c": })",
                    without = R"({"a": 100, "b": -11111111, "c": })";
  const std::string expected = complaint(without);
  CHECK(expected.find("at byte 33") != std::string::npos);
  CHECK(complaint(with).substr(0, 35) == expected.substr(0, 35));
  CHECK_THROWS_AS(parse_json("{\"a\": NaN}", "c.json"), InvalidInput);
}

TEST_CASE("a number that must be finite is refused by name") {
  const Json json = parse_python_json(R"({"a": Infinity, "b": NaN, "c": -Infinity})", "c.json");
  Problems problems("c.json");
  ObjectReader reader(json, "", &problems);
  reader.number("a", 0, 1e300);
  reader.number("b", 0, 1);
  reader.integer("c", 0, 1);
  try {
    problems.finish();
    FAIL("accepted");
  } catch (const InvalidInput& error) {
    CHECK(std::string(error.what()) ==
          "c.json: 'a' is Infinity; allowed: a number from 0 to 1e+300\n"
          "c.json: 'b' is NaN; allowed: a number from 0 to 1\n"
          "c.json: 'c' is -Infinity; allowed: an integer from 0 to 1");
  }
}

TEST_CASE(
    "the character that stands in for the words is only a character in a config that holds it") {
  const std::string text = "{\"a\": \"\x7f\", \"b\": 1}";
  CHECK(parse_python_json(text, "c.json")["a"] == "\x7f");
}

}  // namespace
}  // namespace piper
