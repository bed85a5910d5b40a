#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/report/strategy_map.h>
#include <testing/base/text.h>

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
  CHECK(contains(map_svg(map), "pp 2"));
  CHECK_THROWS_WITH_AS(
      parse_strategy_map(
          parse_json(R"({"cluster": "c", "devices": [2], "models": [{"model": "m", "cells": []}]})",
                     "map.json"),
          "map.json"),
      doctest::Contains("one a number of devices"), InvalidInput);
}

TEST_CASE("the darkest cell is the fastest, the lightest the slowest, and each says MFU and mesh") {
  const std::string svg = map_svg(two_by_two());
  CHECK(contains(svg, "shade-0"));
  CHECK(contains(svg, "shade-9"));
  CHECK(svg.find("<title>first") > svg.find("shade-0"));
  CHECK(svg.find("<title>second") > svg.find("shade-9"));
  CHECK(contains(svg, "45.0 %"));
  CHECK(contains(svg, "pp 1, dp 8"));
  CHECK(contains(svg, "64 devices"));
}

TEST_CASE("a cell where nothing fits says so and has no shade") {
  StrategyMap map = two_by_two();
  map.rows.erase(map.rows.begin());
  map.rows.front().cells.pop_back();
  map.devices.pop_back();
  const std::string html = render(map);
  CHECK(contains(html, ">nothing fits<"));
  CHECK(contains(html, "90 GiB of 72 GiB"));
  CHECK(!contains(html, "class=\"shade-"));
}

TEST_CASE("the map's page is whole, escaped, and needs nothing from elsewhere") {
  const std::string html = render(two_by_two());
  CHECK(html.starts_with("<!DOCTYPE html>"));
  CHECK(contains(html, "&lt;cluster&gt;"));
  CHECK(!contains(html, "<cluster>"));
  CHECK(!contains(html, "<large>"));
  CHECK(contains(html, "a &amp; b"));
  CHECK(!contains(html, "<script"));
  CHECK(!contains(html, " src="));
}

TEST_CASE("a row without a cell for every column is a mistake of the caller") {
  StrategyMap map = two_by_two();
  map.rows.front().cells.pop_back();
  CHECK_THROWS_AS(map_svg(map), InternalError);
}
