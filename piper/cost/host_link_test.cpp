// Copies that share a device's link to its host: by hand, and what holds for any.
#include <doctest/doctest.h>
#include <piper/cost/host_link.h>
#include <piper/cost/random.h>
#include <testing/cost/relative_approx.h>

#include <algorithm>
#include <vector>

namespace piper::cost {

TEST_CASE("two copies at once go at half their speed") {
  HostLink link(2);
  link.post(0, 2);
  link.post(1, 2);
  // Alone until 1, when half of the first is left; together that takes until 3; half of the second
  // is left.
  CHECK(link.end_of(0) == 3);
  CHECK(link.end_of(1) == 4);
  link.reset();
  link.post(5, 1);
  CHECK(link.end_of(0) == 6);
}

TEST_CASE("a copy back waits for the copy out, and what is posted behind it waits for its turn") {
  HostLink link(3);
  link.post(0, 3);
  link.post(1, 1, 0);
  link.post(1, 1);
  CHECK(link.end_of(2) == 5);  // both start at 3
  CHECK(link.end_of(1) == 5);
  CHECK(link.end_of(0) == 3);
}

TEST_CASE("a copy that is posted while others move slows them from then on") {
  HostLink link(3);
  link.post(0, 1);
  CHECK(link.end_of(0) == 1);
  link.post(1, 2);
  link.post(2, 2);
  link.post(2.5, 0);  // nothing to copy: nobody notices
  CHECK(link.end_of(1) == 4);
  CHECK(link.end_of(2) == 5);
  CHECK(link.end_of(3) == 2.5);
}

TEST_CASE("the link moves as much as one copy alone would, whoever asks for it and when") {
  Random random({20261122});
  for (int round = 0; round < 200; ++round) {
    HostLink asked(12), left(12);
    std::vector<double> at, seconds;
    double now = 0;
    for (int i = 0; i < 12; ++i) {
      if (i > 0 && random.below(3) == 0) now = std::max(now, asked.end_of(i - 1));
      now += 2 * random.uniform();
      at.push_back(now);
      seconds.push_back(random.uniform());
      asked.post(now, seconds.back());
      left.post(now, seconds.back());
    }
    // As a queue without sharing: each busy spell of the link ends at the same instant.
    double free_at = 0, last = 0;
    for (int i = 0; i < 12; ++i) {
      const auto k = static_cast<size_t>(i);
      free_at = std::max(free_at, at[k]) + seconds[k];
      CHECK(left.end_of(i) == asked.end_of(i));
      CHECK(left.end_of(i) >= (at[k] + seconds[k]) * (1 - 1e-12));
      last = std::max(last, left.end_of(i));
      if (i == 11 || at[k + 1] >= free_at) CHECK(last == near(free_at));
    }
  }
}

}  // namespace piper::cost
