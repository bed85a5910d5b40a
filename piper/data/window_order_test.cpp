#include <doctest/doctest.h>
#include <piper/base/hash.h>
#include <piper/data/window_order.h>

#include <cstddef>
#include <cstdlib>
#include <set>
#include <vector>

namespace piper::data {
namespace {

TEST_CASE("every count is permuted: each position goes to a number of its own") {
  for (const int64_t count : {1, 2, 3, 4, 5, 7, 16, 17, 255, 1000, 4097, 65537}) {
    std::vector<int> hits(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) ++hits.at(static_cast<size_t>(permute(i, count, 42)));
    CHECK_MESSAGE(hits == std::vector<int>(static_cast<size_t>(count), 1), count);
  }
  // Too many to list: distinct and inside, near both ends.
  const int64_t huge = (int64_t{1} << 62) - 3;
  std::set<int64_t> seen;
  for (int64_t i = 0; i < 1000; ++i)
    for (const int64_t position : {i, huge - 1 - i}) {
      const int64_t to = permute(position, huge, 7);
      CHECK((to >= 0 && to < huge));
      seen.insert(to);
    }
  CHECK(seen.size() == 2000);
}

TEST_CASE("an epoch holds every window once, and the next one in another order") {
  const int64_t windows = 101;
  std::vector<std::vector<int64_t>> epochs(3);
  for (int64_t number = 0; number < 3 * windows; ++number)
    epochs.at(static_cast<size_t>(number / windows)).push_back(shuffled_window(number, windows, 5));
  for (const auto& epoch : epochs)
    CHECK(std::set<int64_t>(epoch.begin(), epoch.end()).size() == 101);
  CHECK(epochs[0] != epochs[1]);
  CHECK(epochs[1] != epochs[2]);
  CHECK(shuffled_window(0, windows, 5) == epochs[0][0]);  // no state: any position at any time
  std::vector<int64_t> other_seed;
  for (int64_t number = 0; number < windows; ++number)
    other_seed.push_back(shuffled_window(number, windows, 6));
  CHECK(other_seed != epochs[0]);
}

TEST_CASE("over many keys each position is equally likely to go anywhere") {
  // 7 positions, 7,000 keys: 1,000 hits a cell, standard deviation 29.3; five of them.
  std::vector<int> hits(49);
  for (uint64_t key = 0; key < 7000; ++key)
    for (int64_t position = 0; position < 7; ++position)
      ++hits.at(static_cast<size_t>(position * 7 + permute(position, 7, splitmix64(key))));
  for (const int count : hits) CHECK(std::abs(count - 1000) < 150);
}

}  // namespace
}  // namespace piper::data
