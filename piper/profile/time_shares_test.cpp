#include <doctest/doctest.h>
#include <piper/profile/time_shares.h>

using piper::profile::TimeShares;

TEST_CASE(
    "what one point leaves over is shared by the later ones, and what one overdraws they pay") {
  double now = 100;
  TimeShares shares(10, 5, [&] { return now; });
  CHECK(shares.next() == doctest::Approx(2));
  now += 0.4;  // 9.6 left for 4
  CHECK(shares.next() == doctest::Approx(2.4));
  now += 6.6;  // 3 left for 3
  CHECK(shares.next() == doctest::Approx(1));
  shares.skip();  // 3 left for 1
  CHECK(shares.next() == doctest::Approx(3));
}

TEST_CASE("a budget that is spent gives nothing, and never less") {
  double now = 0;
  TimeShares shares(1, 1, [&] { return now; });
  now = 5;
  CHECK(shares.next() == 0);
  CHECK(shares.next() == 0);
}
