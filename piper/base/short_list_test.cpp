#include <doctest/doctest.h>
#include <piper/base/short_list.h>

#include <numeric>

using piper::ShortList;

TEST_CASE("a short list keeps what is put in, in place and beyond") {
  ShortList<int, 3> list;
  CHECK(list.empty());
  for (int n = 1; n <= 20; ++n) {
    list.push_back(n);
    REQUIRE(list.size() == static_cast<size_t>(n));
    CHECK(std::accumulate(list.begin(), list.end(), 0) == n * (n + 1) / 2);
    CHECK(*(list.end() - 1) == n);
  }
}

TEST_CASE("a short list is made from braces, vectors and spans, and copied whole") {
  const std::vector<int> many = {1, 2, 3, 4, 5, 6, 7, 8};
  const ShortList<int, 3> from_vector = many;
  const ShortList<int, 3> copy = from_vector;
  CHECK(std::vector<int>(copy.begin(), copy.end()) == many);
  const ShortList<int, 3> from_braces = {3, 4};
  CHECK(std::vector<int>(from_braces.begin(), from_braces.end()) == std::vector{3, 4});
  CHECK(std::span<const int>(from_braces).size() == 2);
  ShortList<int, 3> moved = many;
  ShortList<int, 3> taken = std::move(moved);
  CHECK(taken == copy);
  taken = from_braces;
  CHECK(taken == from_braces);
  taken = ShortList<int, 3>(many);
  CHECK(taken == copy);
}
