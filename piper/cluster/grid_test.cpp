#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/cluster/cluster.h>

using namespace piper;
using namespace piper::cluster;

TEST_CASE("between two points the rate is the geometric mean by logarithmic distance") {
  const Grid grid{.axes = {"bytes"}, .points = {{1, 100}}, .rate = {1, 4}};
  // 10 lies halfway between 1 and 100 in the logarithm: sqrt(1 * 4) = 2.
  CHECK(grid.at({10}) == doctest::Approx(2));
  CHECK(grid.at({1}) == doctest::Approx(1));
  CHECK(grid.at({100}) == doctest::Approx(4));
}

TEST_CASE("outside the grid the nearest edge holds and says so; on the edge it is inside") {
  const Grid grid{.axes = {"bytes"}, .points = {{1, 100}}, .rate = {1, 4}};
  bool outside = false;
  CHECK(grid.at({1000}, &outside) == doctest::Approx(4));
  CHECK(outside);
  CHECK(grid.at({0}, &outside) == doctest::Approx(1));
  CHECK(outside);
  CHECK(grid.at({100}, &outside) == doctest::Approx(4));
  CHECK_FALSE(outside);
  CHECK(grid.at({1}, &outside) == doctest::Approx(1));
  CHECK_FALSE(outside);
}

TEST_CASE("a curve of one point holds everywhere") {
  const Grid grid{.axes = {"bytes"}, .points = {{1e6}}, .rate = {5}};
  bool outside = false;
  CHECK(grid.at({1e6}, &outside) == doctest::Approx(5));
  CHECK_FALSE(outside);
  CHECK(grid.at({7e9}, &outside) == doctest::Approx(5));
  CHECK(outside);
}

TEST_CASE("a power law in three axes is reproduced exactly, row-major with the last axis fastest") {
  const auto law = [](double m, double n, double k) { return 3 * m * n * n / k; };
  Grid grid{.axes = {"m", "n", "k"}, .points = {{1, 8, 64}, {2, 32}, {4, 16, 64, 256}}};
  for (const double m : grid.points[0])
    for (const double n : grid.points[1])
      for (const double k : grid.points[2]) grid.rate.push_back(law(m, n, k));
  bool outside = true;
  CHECK(grid.at({3, 7, 100}, &outside) == doctest::Approx(law(3, 7, 100)));
  CHECK_FALSE(outside);
  CHECK(grid.at({64, 32, 256}) == doctest::Approx(law(64, 32, 256)));
  // One coordinate outside: clamped there alone.
  CHECK(grid.at({3, 1000, 100}, &outside) == doctest::Approx(law(3, 32, 100)));
  CHECK(outside);
}

TEST_CASE("an empty curve and a wrong number of coordinates are our own faults") {
  CHECK_THROWS_AS(Grid{}.at({1}), InternalError);
  const Grid grid{.axes = {"bytes"}, .points = {{1, 100}}, .rate = {1, 4}};
  CHECK_THROWS_AS(grid.at({1, 2}), InternalError);
}
