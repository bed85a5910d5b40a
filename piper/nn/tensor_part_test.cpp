#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/nn/tensor_part.h>

#include <algorithm>
#include <random>
#include <set>

namespace piper::nn {
namespace {

// By the definition: row-major indices of the whole, element by element.
std::vector<int64_t> indices(const TensorPart& part) {
  std::vector<int64_t> found;
  int64_t inner = 1, total = 1, seen = 0;
  for (size_t i = 0; i < part.shape.size(); ++i) {
    total *= part.shape[i];
    if (static_cast<int64_t>(i) > part.dim) inner *= part.shape[i];
  }
  for (int64_t i = 0; i < total; ++i) {
    const int64_t along = i / inner % part.shape[static_cast<size_t>(part.dim)];
    if (along < part.first || along >= part.first + part.count) continue;
    if (seen >= part.begin && seen < part.end) found.push_back(i);
    ++seen;
  }
  return found;
}

TensorPart draw(std::mt19937& random, const std::vector<int64_t>& shape) {
  const auto up_to = [&](int64_t n) {
    return std::uniform_int_distribution<int64_t>(0, n)(random);
  };
  const int64_t dim = up_to(std::ssize(shape) - 1), extent = shape[static_cast<size_t>(dim)];
  const int64_t first = up_to(extent - 1);
  const TensorPart part = part_along(shape, dim, first, 1 + up_to(extent - first - 1));
  if (up_to(1) == 0) return part;
  const int64_t begin = up_to(part.num_elements());
  return elements_of(part, begin, begin + up_to(part.num_elements() - begin));
}

}  // namespace

TEST_CASE("the runs of a part are its elements, and two parts share what both have") {
  std::mt19937 random(11);
  for (int i = 0; i < 500; ++i) {
    std::vector<int64_t> shape(1 + random() % 3);
    for (int64_t& extent : shape) extent = 1 + static_cast<int64_t>(random() % 6);
    const TensorPart one = draw(random, shape), other = draw(random, shape);
    CAPTURE(text(one));
    CAPTURE(text(other));
    const std::vector<int64_t> in_one = indices(one), in_other = indices(other);
    std::vector<int64_t> by_runs;
    for (const Run& run : runs_of(one))
      for (int64_t k = 0; k < run.count; ++k) {
        CHECK(run.part + k == std::ssize(by_runs));
        by_runs.push_back(run.whole + k);
      }
    CHECK(by_runs == in_one);
    std::set<int64_t> common, expected;
    for (const Overlap& overlap : overlaps(one, other))
      for (int64_t k = 0; k < overlap.count; ++k) {
        const int64_t index = in_one.at(static_cast<size_t>(overlap.one + k));
        CHECK(index == in_other.at(static_cast<size_t>(overlap.other + k)));
        CHECK(common.insert(index).second);
      }
    for (const int64_t index : in_one)
      if (std::ranges::find(in_other, index) != in_other.end()) expected.insert(index);
    CHECK(common == expected);
    for (size_t i = 0; i < in_one.size(); ++i)
      CHECK(places_of(one).of(static_cast<int64_t>(i)) == in_one[i]);
    const TensorPart again = parse_part(text(one));
    CHECK(indices(again) == in_one);
  }
}

TEST_CASE("rows are one run, columns a run a row, all columns one run again") {
  CHECK(runs_of(part_along({4, 6}, 0, 1, 2)).size() == 1);
  CHECK(runs_of(part_along({4, 6}, 1, 2, 3)).size() == 4);
  CHECK(runs_of(part_along({4, 6}, 1, 0, 6)).size() == 1);
  CHECK(runs_of(elements_of(part_along({4, 6}, 1, 2, 3), 2, 7)).size() == 3);
  CHECK(part_along({4, 6}, 1, 0, 6).is_whole());
  CHECK_FALSE(part_along({4, 6}, 1, 0, 5).is_whole());
}

TEST_CASE("a part is named by its tensor's shape, range and elements; nothing else is accepted") {
  CHECK(text(whole_tensor({4, 6})) == "[4,6]");
  CHECK(text(part_along({4, 6}, 1, 2, 3)) == "[4,6] 1:2-5");
  CHECK(text(elements_of(part_along({4, 6}, 1, 2, 3), 2, 7)) == "[4,6] 1:2-5 elements 2-7");
  for (const char* bad : {"", "[", "[4,6", "[4,,6]", "[4,6] ", "[4,6] 2:0-1", "[4,6] 1:5-2",
                          "[4,6] 1:2-7", "[4,6] 1:2-5 ", "[4,6] 1:2-5 elements 3-2",
                          "[4,6] 1:2-5 elements 0-13", "[4,6] 1:2-5 elements 0-12 ", "[-4,6]"}) {
    CAPTURE(bad);
    CHECK_THROWS_AS(parse_part(bad), InvalidInput);
  }
}

}  // namespace piper::nn
