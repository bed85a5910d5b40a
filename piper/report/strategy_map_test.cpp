#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/report/strategy_map.h>

using namespace piper;
using namespace piper::report;

namespace {

StrategyMap two_by_two() {
  return {.cluster = "<cluster>",
          .facts = {{"trainer", "a & b"}},
          .devices = {8, 64},
          .rows = {{.model = "small",
                    .cells = {{.mfu = 0.30, .mesh = "pp 1, dp 8", .detail = "first"},
                              {.mfu = 0.45, .mesh = "pp 2, ep 8, dp 32", .detail = "second"}}},
                   {.model = "<large>",
                    .cells = {{.why_not = "nothing fits: 90 GiB of 72 GiB"},
                              {.mfu = 0.40, .mesh = "pp 8, dp 8", .detail = "third"}}}}};
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("a map is read from what piper map prints, and wrong ones are named") {
  const StrategyMap map = parse_strategy_map(
      parse_json(
          R"({"cluster": "c", "trainer": "s", "devices": [2, 8], "models": [{"model": "m", "cells":
        [{"why_not": "nothing fits"}, {"mfu": 0.4, "mesh_in_short": "pp 2", "in_words": "w", "step_seconds": 3}]}]})",
          "map.json"),
      "map.json");
  REQUIRE(map.rows.size() == 1);
  CHECK_FALSE(map.rows[0].cells[0].mfu);
  CHECK(map.rows[0].cells[0].why_not == "nothing fits");
  CHECK(*map.rows[0].cells[1].mfu == 0.4);
  CHECK(map.rows[0].cells[1].step_seconds == 3);
  CHECK(has(map_svg(map), "pp 2"));
  CHECK_THROWS_WITH_AS(
      parse_strategy_map(
          parse_json(R"({"cluster": "c", "devices": [2], "models": [{"model": "m", "cells": []}]})",
                     "map.json"),
          "map.json"),
      doctest::Contains("one a number of devices"), InvalidInput);
}

TEST_CASE("the darkest cell is the fastest, the lightest the slowest, and each says MFU and mesh") {
  const std::string svg = map_svg(two_by_two());
  CHECK(has(svg, "shade-0"));
  CHECK(has(svg, "shade-9"));
  CHECK(svg.find("<title>first") > svg.find("shade-0"));
  CHECK(svg.find("<title>second") > svg.find("shade-9"));
  CHECK(has(svg, "45.0 %"));
  CHECK(has(svg, "pp 1, dp 8"));
  CHECK(has(svg, "64 devices"));
}

TEST_CASE("a cell where nothing fits says so and has no shade") {
  StrategyMap map = two_by_two();
  map.rows.erase(map.rows.begin());
  map.rows.front().cells.pop_back();
  map.devices.pop_back();
  const std::string html = render(map);
  CHECK(has(html, ">nothing fits<"));
  CHECK(has(html, "90 GiB of 72 GiB"));
  CHECK(!has(html, "class=\"shade-"));
}

TEST_CASE("the map's page is whole, escaped, and needs nothing from elsewhere") {
  const std::string html = render(two_by_two());
  CHECK(html.starts_with("<!DOCTYPE html>"));
  CHECK(has(html, "&lt;cluster&gt;"));
  CHECK(!has(html, "<cluster>"));
  CHECK(!has(html, "<large>"));
  CHECK(has(html, "a &amp; b"));
  CHECK(!has(html, "<script"));
  CHECK(!has(html, " src="));
}

TEST_CASE("a row without a cell for every column is a mistake of the caller") {
  StrategyMap map = two_by_two();
  map.rows.front().cells.pop_back();
  CHECK_THROWS_AS(map_svg(map), InternalError);
}
