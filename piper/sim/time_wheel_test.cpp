#include <doctest/doctest.h>
#include <piper/sim/time_wheel.h>

#include <queue>
#include <random>

namespace piper::sim {
namespace {

struct Event {
  int64_t time;
  int64_t number;
};

TEST_CASE("events leave in the order of time, those of one time in the order in which they came") {
  for (const uint64_t seed : {1u, 2u, 3u}) {
    CAPTURE(seed);
    std::mt19937_64 random(seed);
    TimeWheel<Event> wheel;
    const auto later = [](const Event& a, const Event& b) {
      return a.time != b.time ? a.time > b.time : a.number > b.number;
    };
    std::priority_queue<Event, std::vector<Event>, decltype(later)> expected(later);
    int64_t number = 0;
    for (int turn = 0; turn < 20000; ++turn) {
      const bool pushes = expected.empty() || random() % 2 == 0;
      if (pushes) {
        // Near, far, and often the very same time.
        const int64_t ahead = static_cast<int64_t>(random() >> (2 + random() % 60)) % (1L << 50);
        const Event event{wheel.now() + (random() % 4 == 0 ? 0 : ahead), number++};
        wheel.push(event);
        expected.push(event);
        continue;
      }
      const Event event = wheel.pop();
      REQUIRE(event.number == expected.top().number);
      REQUIRE(event.time == expected.top().time);
      REQUIRE(wheel.now() == event.time);
      expected.pop();
      REQUIRE(wheel.empty() == expected.empty());
    }
  }
}

}  // namespace
}  // namespace piper::sim
