#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/base/json.h>

#include <filesystem>

using namespace piper;

namespace {

std::string parse_error(const std::string& text) {
  try {
    parse_json(text, "f.json");
  } catch (const InvalidInput& e) {
    return e.what();
  }
  return "";
}

}  // namespace

TEST_CASE("a sound document keeps its key order and its number types") {
  const Json json = parse_json(R"({"b": 1, "a": [1.5, -2, true, null, "x"]})", "f.json");
  CHECK(json.dump() == R"({"b":1,"a":[1.5,-2,true,null,"x"]})");
}

TEST_CASE("what nlohmann accepts or mangles is refused by name") {
  CHECK(parse_error("").find("f.json: is empty") == 0);
  CHECK(parse_error(" \n ").find("f.json: is empty") == 0);
  CHECK(parse_error(R"({"a": 1, "a": 2})").find("key 'a' appears twice") != std::string::npos);
  CHECK(parse_error(R"({"a": 9223372036854775808})").find("does not fit 64 bits") !=
        std::string::npos);
  CHECK(parse_error(R"({"a": 123456789012345678901234})").find("does not fit 64 bits") !=
        std::string::npos);
  CHECK(parse_error(R"({"a": 1e400})").find("out of range") != std::string::npos);
  // Words of the document that read like that are no such number.
  CHECK(parse_error(R"({"a": "number overflow\q"})").find("is not valid JSON at byte") !=
        std::string::npos);
  CHECK(parse_error(R"({"a": 1} x)").find("not valid JSON") != std::string::npos);
  CHECK(parse_error("{\"a\": ").find("not valid JSON") != std::string::npos);
  CHECK(parse_error(std::string(1000000, '[')).find("nested deeper than 64") != std::string::npos);
}

TEST_CASE("a large object is read in linear time") {
  std::string text = "{";
  for (int i = 0; i < 200000; ++i) text += "\"k" + std::to_string(i) + "\":1,";
  text += "\"last\":2}";
  CHECK(parse_json(text, "f.json").size() == 200001);  // quadratic: minutes
}

TEST_CASE("a message blames the key it is about and stays on one line") {
  CHECK(parse_error(R"([{"x":1},99999999999999999999])").find("'x'") == std::string::npos);
  CHECK(parse_error("{\"a\\nb\": 1, \"a\\nb\": 2}").find('\n') == std::string::npos);
}

TEST_CASE("a reader finds all problems of a document, not only the first") {
  const Json json =
      parse_json(R"({"count": 3.7, "size": -1, "flag": 1, "kind": "gree", "colour": 2})", "f.json");
  Problems problems("f.json");
  ObjectReader reader(json, "", &problems);
  reader.integer("count", 1, 10);
  reader.integer("size", 1, 10);
  reader.boolean("flag", false);
  reader.choice("kind", {"red", "green"});
  reader.integer("color", 0, 9, 0);
  reader.text("name");
  reader.refuse_unknown();
  try {
    problems.finish();
    FAIL("no exception");
  } catch (const InvalidInput& e) {
    REQUIRE(e.problems().size() == 6);
    CHECK(e.problems()[0] == "f.json: 'count' is 3.7; allowed: an integer from 1 to 10");
    CHECK(e.problems()[1] == "f.json: 'size' is -1; allowed: an integer from 1 to 10");
    CHECK(e.problems()[2] == "f.json: 'flag' is 1; allowed: true or false");
    CHECK(e.problems()[3] ==
          "f.json: 'kind' is 'gree'; allowed: red, green; did you mean 'green'?");
    CHECK(e.problems()[4] == "f.json: 'name' is missing");
    CHECK(e.problems()[5] == "f.json: 'colour' is not a known key; did you mean 'color'?");
  }
}

TEST_CASE(
    "a problem is one line of bounded length without control characters, whatever the bytes") {
  const std::string hostile = "\x1b[2J\n\x7f";
  std::vector<std::string> lines;
  const auto collect = [&](const auto& read) {
    try {
      read();
    } catch (const InvalidInput& error) {
      lines.insert(lines.end(), error.problems().begin(), error.problems().end());
    }
  };
  collect([&] { parse_json("{\"a\": \"" + std::string(5000, 'x'), "f"); });
  collect([&] { parse_json("{\"a\": \x1b}", "f"); });
  for (const std::string& text : {hostile, hostile + std::string(5000, 'x')}) {
    const Json json = {{"kind", text}, {"count", text}, {text, 1}};
    Problems problems("f");
    ObjectReader reader(json, "", &problems);
    reader.choice("kind", {"red", "green"});
    reader.integer("count", 0, 1);
    reader.refuse_unknown();
    reader.problem("kind", "is " + text);
    problems.add("ends with " + text);
    collect([&] { problems.finish(); });
  }
  CHECK(lines.size() == 12);
  for (const std::string& line : lines) {
    CAPTURE(line);
    CHECK(line.size() < 1100);
    for (const char c : line) REQUIRE((static_cast<unsigned char>(c) >= 0x20 && c != 0x7f));
  }
  CHECK(quote(Json(std::string(58, 'x') + "\u00e9")) == "\"" + std::string(56, 'x') + "...");
}

TEST_CASE("texts of any bytes are written as UTF-8 and read back") {
  for (const std::string text :
       {"plain", "d\u00e9j\u00e0", "run\xff", "\xc3", "\xed\xa0\x80/x", "bytes:x", "bytes:%FF",
        "bytes:", "\xf4\x90\x80\x80", "a b\xfe%41"}) {
    const Json json{{"name", text}, {"list", {text, 1}}, {text, "key"}};
    for (const int indent : {-1, 2}) {
      CAPTURE(to_text(json, indent));
      CHECK(parse_json(to_text(json, indent), "it") == json);
    }
  }
  CHECK(to_text(Json("run\xff/2")) == R"("bytes:run%FF/2")");
  CHECK(to_text(Json("d\u00e9j\u00e0")) == "\"d\u00e9j\u00e0\"");
  // What nobody wrote so is no form of these bytes.
  for (const char* other : {"bytes:run", "bytes:%41", "bytes:%f", "bytes:%ff"})
    CHECK(parse_json(fmt::format("\"{}\"", other), "it") == other);
}
