#include <doctest/doctest.h>
#include <piper/report/gantt_chart.h>
#include <testing/base/text.h>

using namespace piper::report;
using piper::graph::Stream;

namespace {

Bar bar(double start, double end, BarClass bar_class, const std::string& name = "task") {
  return {.bar_class = bar_class, .start_seconds = start, .end_seconds = end, .name = name};
}

}  // namespace

TEST_CASE("a task goes to the first lane that is free when it starts") {
  Lanes lanes;
  CHECK(lanes.place(0, 2) == 0);
  CHECK(lanes.place(1, 3) == 1);
  CHECK(lanes.place(2, 4) == 0);
  CHECK(lanes.place(2.5, 5) == 2);
  CHECK(lanes.place(3, 4) == 1);
  CHECK(lanes.count() == 3);
}

TEST_CASE("bars that can be seen stay as they are") {
  const std::vector<Bar> bars = {bar(0, 1, BarClass::kForwardLayers),
                                 bar(1, 1.01, BarClass::kUpdate),
                                 bar(1.01, 2, BarClass::kForwardLayers)};
  CHECK(merge_narrow(bars, 100).size() == 3);
}

TEST_CASE("a million narrow bars become about two a pixel, the time they cover stays") {
  std::vector<Bar> bars;
  for (int i = 0; i < 1'000'000; ++i) {
    bars.push_back(bar(i * 1e-6, (i + 1) * 1e-6,
                       i % 2 == 0 ? BarClass::kForwardLayers : BarClass::kBackwardLayers));
  }
  const std::vector<DrawnBar> merged = merge_narrow(bars, 900);
  CHECK(merged.size() <= 1900);
  CHECK(merged.size() >= 800);
  double covered = 0, busy = 0;
  for (const DrawnBar& b : merged) {
    covered += b.bar.end_seconds - b.bar.start_seconds;
    busy += b.busy_seconds;
  }
  CHECK(covered == doctest::Approx(1));
  CHECK(busy == doctest::Approx(1));
  CHECK(merged[0].bar.name.find(" more") != std::string::npos);
}

TEST_CASE(
    "stripes too fine to be told apart become one pale bar that says how much of it is busy") {
  std::vector<Bar> bars;
  for (int i = 0; i < 1000; ++i)
    bars.push_back(bar(i * 0.01, i * 0.01 + 0.003, BarClass::kExchange, "dispatch"));
  const std::vector<DrawnBar> merged = merge_narrow(bars, 90);  // 0.27 pixels in every 0.9
  REQUIRE(merged.size() == 1);
  CHECK(merged[0].busy_seconds == doctest::Approx(3));
  CHECK(merge_narrow(bars, 250).size() == 1000);  // gaps of 1.75 pixels
  const std::string svg =
      gantt_chart({.ranks = {{.rank = 0, .label = "rank 0", .bars = bars}}, .seconds = 10}, {});
  CHECK(count(svg, "class=\"bar-all-to-all\"") == 1);
  CHECK(svg.find("fill-opacity=\"0.3\"><title>dispatch and 999 more · 3.00 s of 9.99 s</title>") !=
        std::string::npos);
}

TEST_CASE("a gap that can be seen is never bridged") {
  const std::vector<DrawnBar> merged = merge_narrow(
      {bar(0, 0.1, BarClass::kForwardLayers), bar(5, 5.1, BarClass::kForwardLayers)}, 1);
  CHECK(merged.size() == 2);
}

TEST_CASE("a chart shows every rank's tasks over its idle ground") {
  Gantt gantt{.ranks = {{.rank = 0,
                         .label = "rank 0 · stage 0",
                         .bars = {bar(0, 1, BarClass::kForwardExperts, "F0 L0 <experts>")}},
                        {.rank = 1,
                         .label = "rank 1 · stage 1",
                         .bars = {bar(1, 2, BarClass::kBackwardLayers)}}},
              .seconds = 2};
  const std::string svg = gantt_chart(gantt, {.description = "one step", .axis_seconds = 4});
  CHECK(count(svg, "class=\"idle\"") == 2);
  // 874 pixels are 4 s: the first task takes a quarter of them.
  CHECK(svg.find("<rect class=\"bar-forward-experts\" x=\"130\" y=\"4\" width=\"218.5\" "
                 "height=\"18\"><title>F0 L0 &lt;experts&gt; · 1.00 s</title></rect>") !=
        std::string::npos);
  CHECK(svg.find("rank 1 · stage 1</text>") != std::string::npos);
  CHECK(count(svg, ">50 % busy</text>") == 2);
}

TEST_CASE("of many ranks the first, the last and some between are drawn") {
  Gantt gantt{.seconds = 1};
  for (int r = 0; r < 512; ++r) {
    gantt.ranks.push_back(
        {.rank = r, .label = "rank " + std::to_string(r), .bars = {bar(0, 1, BarClass::kUpdate)}});
  }
  const std::string svg = gantt_chart(gantt, {.axis_seconds = 1, .max_ranks = 16});
  CHECK(count(svg, "class=\"idle\"") == 16);
  CHECK(svg.find(">rank 0<") != std::string::npos);
  CHECK(svg.find(">rank 511<") != std::string::npos);
}

TEST_CASE(
    "of very many bars the widest have names, the others are strokes; the chart stays small") {
  Gantt gantt{.seconds = 100};
  for (int r = 0; r < 16; ++r) {
    GanttRank rank{.rank = r, .label = "rank", .bars = {}};
    for (int i = 0; i < 100'000; ++i) {
      const double start = i * 1e-3;
      rank.bars.push_back(bar(start, start + (i % 500 == 0 ? 8e-4 : 3e-4),
                              i / 250 % 2 == 0 ? BarClass::kForwardLayers : BarClass::kUpdate));
    }
    rank.bars.push_back(bar(100, 101, BarClass::kForwardExperts, "the widest"));
    gantt.ranks.push_back(std::move(rank));
  }
  gantt.seconds = 101;
  const std::string svg = gantt_chart(gantt, {});
  CHECK(count(svg, "<title>the widest") == 16);
  CHECK(count(svg, "<rect class=\"bar-") <= kMostNamedBars);
  CHECK(count(svg, "<path class=\"bar-forward\"") >= 16);
  CHECK(svg.size() < 800'000);
}
