#include <doctest/doctest.h>
#include <piper/balance/load_window.h>
#include <piper/base/error.h>
#include <piper/base/json.h>

using namespace piper;
using namespace piper::balance;

TEST_CASE("a window sums its newest steps, and its halves apart") {
  LoadWindow window(3);
  for (const int64_t n : {1, 10, 100, 1000}) window.add({{2, {n, 2 * n}}});
  CHECK(window.is_full());
  CHECK(window.sums() == LayerLoads{{2, {1110, 2220}}});
  CHECK(window.older() == LayerLoads{{2, {10, 20}}});
  CHECK(window.newer() == LayerLoads{{2, {1100, 2200}}});
  CHECK_THROWS_AS(LoadWindow(0), InternalError);
}

TEST_CASE("a window that was saved goes on as if nothing had happened") {
  LoadWindow window(3);
  for (const int64_t n : {1, 10}) window.add({{2, {n, 2 * n}}, {5, {3, n}}});
  LoadWindow read(3);
  read.read(parse_json(window.to_json().dump(), "s"), {{2, 2}, {5, 2}}, "s");
  window.add({{2, {7, 7}}, {5, {7, 7}}});
  read.add({{2, {7, 7}}, {5, {7, 7}}});
  CHECK(read.sums() == window.sums());
  CHECK(read.older() == window.older());
  read.read(Json::object(), {{2, 2}, {5, 2}}, "s");
  CHECK(read.num_steps() == 0);
}

TEST_CASE("what no window wrote is refused in one line") {
  const std::map<int32_t, int64_t> experts{{2, 2}};
  for (const char* wrong : {R"({"2": [[1]]})", R"({"2": [[1, -1]]})", R"({"3": [[1, 1]]})",
                            R"({"2": [[1, 1], [1, 1]]})", R"([])", R"({"2": [[1, 1.5]]})",
                            R"({"2": [[1, 1]], "3": [[1, 1]]})"}) {
    CAPTURE(std::string(wrong));
    LoadWindow window(1);
    try {
      window.read(parse_json(wrong, "s"), experts, "state.json");
      CHECK(false);
    } catch (const InvalidInput& error) {
      CHECK(error.problems().size() == 1);
      CHECK(error.problems()[0].starts_with("state.json: "));
    }
  }
}

TEST_CASE("overlap is the part of the rows that the past put on the right expert") {
  CHECK(overlap({1, 1}, {50, 50}) == doctest::Approx(1));
  CHECK(overlap({1, 0}, {0, 1}) == doctest::Approx(0));
  CHECK(overlap({3, 1}, {1, 3}) == doctest::Approx(0.5));
  CHECK(overlap({0, 0}, {1, 3}) == 1);
}
