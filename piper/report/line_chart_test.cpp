#include <doctest/doctest.h>
#include <piper/report/axis.h>
#include <piper/report/line_chart.h>
#include <testing/base/text.h>

#include <cmath>
#include <limits>

using namespace piper::report;

TEST_CASE("ticks are round numbers within the bounds") {
  CHECK(ticks(0, 10, 5) == std::vector<double>{0, 2, 4, 6, 8, 10});
  CHECK(ticks(-1.5, 1.4, 3) == std::vector<double>{-1, 0, 1});
  CHECK(ticks(3, 3, 5) == std::vector<double>{3});
  const auto small = ticks(0.00021, 0.00039, 4);
  REQUIRE(small.size() == 3);
  CHECK(small[0] == doctest::Approx(0.00025));
  CHECK(small[2] == doctest::Approx(0.00035));
}

TEST_CASE("a scale maps both ends, turned round if asked") {
  const Scale y{.low = 2, .high = 4, .from = 100, .to = 0};
  CHECK(y(2) == 100);
  CHECK(y(4) == 0);
  CHECK(y(3) == 50);
  CHECK(Scale{.low = 1, .high = 1, .from = 7, .to = 9}(1) == 7);
}

TEST_CASE("of many indices both ends and even steps between are chosen") {
  CHECK(evenly_chosen(0, 3).empty());
  CHECK(evenly_chosen(3, 3) == std::vector<size_t>{0, 1, 2});
  CHECK(evenly_chosen(7, 3) == std::vector<size_t>{0, 3, 6});
  CHECK(evenly_chosen(512, 2) == std::vector<size_t>{0, 511});
}

TEST_CASE("nothing to draw draws nothing") {
  CHECK(line_chart({}) == "");
  const double nan = std::numeric_limits<double>::quiet_NaN();
  CHECK(line_chart({.series = {{.name = "a", .css_class = "a", .points = {{0, nan}}}}}) == "");
}

TEST_CASE("a value that is not finite breaks the curve") {
  const double inf = std::numeric_limits<double>::infinity();
  const Series series{.name = "loss",
                      .css_class = "series-a",
                      .points = {{0, 3}, {1, 2}, {2, inf}, {3, 2}, {4, 1}, {5, inf}, {6, 1}}};
  const std::string html = line_chart({.series = {series}});
  CHECK(count(html, "<polyline") == 2);
  CHECK(count(html, "<circle") == 1);  // a point alone
  CHECK(html.find("inf") == std::string::npos);
}

TEST_CASE("a long series is thinned and keeps its outliers") {
  Series series{.name = "loss", .css_class = "series-a"};
  for (int i = 0; i < 1'000'000; ++i) series.points.emplace_back(i, i == 500'000 ? 100 : 1);
  const std::string html = line_chart({.series = {series}, .from_zero = true, .height = 240});
  CHECK(html.size() < 100'000);
  CHECK(html.find(",20.77 ") != std::string::npos);  // 100 of 104.95 within 12 .. 198
}

TEST_CASE("logarithmic ticks are powers of ten, with twos and fives when there are few") {
  CHECK(log_ticks(0, 4) == std::vector<double>{0, 1, 2, 3, 4});
  const auto few = log_ticks(0, 1);
  REQUIRE(few.size() == 4);
  CHECK(few[1] == doctest::Approx(std::log10(2)));
  CHECK(few[2] == doctest::Approx(std::log10(5)));
  CHECK(log_ticks(0.1, 0.2).empty());
}

TEST_CASE(
    "on a logarithmic axis equal factors are equal distances, and what has no logarithm is left "
    "out") {
  LineChart chart{.series = {{.name = "x",
                              .css_class = "series-a",
                              .points = {{1, 1}, {10, 1}, {100, 1}},
                              .dots = true}}};
  chart.log_x = true;
  const std::string svg = line_chart(chart);
  // 74 to 1066 pixels: the middle is 570.
  CHECK(svg.find("cx=\"570\"") != std::string::npos);
  chart.series[0].points.insert(chart.series[0].points.begin(), {0, 1});
  CHECK(count(line_chart(chart), "<circle") == 3);
}
