#include <doctest/doctest.h>
#include <tests/lab/links.h>

#include <utility>

namespace piper::lab {
namespace {

constexpr int64_t kMicrosecond = 1000, kMillisecond = 1'000'000;

// 4 nodes x 4 ranks: inner ports of 4 MB/s, NICs of 1 MB/s; 1000 bytes take 1 ms of a NIC.
Layout layout(int64_t num_nics) {
  return {.num_nodes = 4,
          .num_ranks = 4,
          .num_nics = num_nics,
          .inner = {4e6, 100 * kMicrosecond, 0},
          .nic = {1e6, 200 * kMicrosecond, 0},
          .rack = {1e6, 400 * kMicrosecond, 0}};
}

// Simulates until nothing is left; the time of the last delivery.
Nanoseconds drain(Network& network, int64_t* count = nullptr) {
  Nanoseconds last = 0;
  while (const auto at = network.next())
    while (const auto delivery = network.pop(*at)) {
      last = delivery->at;
      if (count != nullptr) ++*count;
    }
  return last;
}

TEST_CASE("one frame takes its latency and its bytes once") {
  Network network(layout(1));
  network.enter(0, {0, 1000, 0, 4});
  CHECK(drain(network) == 200 * kMicrosecond + kMillisecond);  // cut through, not stored
}

TEST_CASE("a single stream gets the whole rate inside and outside") {
  for (const auto& [to, rate] : {std::pair{1, 4e6}, {4, 1e6}}) {
    Network network(layout(1));
    for (int64_t f = 0; f < 1000; ++f) network.enter(0, {f, 1000, 0, to});
    const double seconds = static_cast<double>(drain(network)) * 1e-9;
    CHECK(seconds == doctest::Approx(1e6 / rate).epsilon(0.002));
  }
}

TEST_CASE("NICs take another rate in the middle of a stream, ports keep theirs") {
  Network network(layout(1));
  network.enter(0, {0, 1000, 0, 4});
  CHECK(drain(network) == 200 * kMicrosecond + kMillisecond);
  network.set_nic_rate(1e5);
  const Nanoseconds begin = 2 * kMillisecond;
  network.enter(begin, {1, 1000, 0, 4});
  CHECK(drain(network) == begin + 200 * kMicrosecond + 10 * kMillisecond);
  const Nanoseconds then = 20 * kMillisecond;
  network.enter(then, {2, 1000, 0, 1});
  CHECK(drain(network) == then + 100 * kMicrosecond + kMillisecond / 4);
}

// Every rank has 200 frames for each other rank of its node, in rotated order.
TEST_CASE("a uniform exchange within a node fills all ports") {
  Network network(layout(1));
  int64_t frame = 0;
  for (int64_t round = 0; round < 200; ++round)
    for (int64_t rank = 0; rank < 4; ++rank)
      for (int64_t distance = 1; distance < 4; ++distance)
        network.enter(0, {frame++, 1000, rank, (rank + distance) % 4});
  const double limit = 600 * 1000 / 4e6;
  CHECK(static_cast<double>(drain(network)) * 1e-9 == doctest::Approx(limit).epsilon(0.01));
}

TEST_CASE("a uniform exchange between nodes fills all NICs") {
  for (const int64_t num_nics : {1, 2, 4}) {
    Network network(layout(num_nics));
    int64_t frame = 0;
    for (int64_t round = 0; round < 20; ++round)
      for (int64_t rank = 0; rank < 16; ++rank)
        for (int64_t distance = 1; distance < 4; ++distance)
          for (int64_t other = 0; other < 4; ++other)
            network.enter(0, {frame++, 1000, rank, (rank / 4 + distance) % 4 * 4 + other});
    const double limit = 20 * 12 * 4 * 1000 / (1e6 * static_cast<double>(num_nics));
    const double seconds = static_cast<double>(drain(network)) * 1e-9;
    CHECK(seconds >= limit);
    CHECK(seconds <= 1.02 * limit);
  }
}

// The receiver is busy with another's frames; a sender that has something for a third goes on.
TEST_CASE("a busy receiver does not hold up the senders port") {
  Network network(layout(1));
  for (int64_t f = 0; f < 100; ++f) network.enter(0, {f, 1000, 1, 0});  // fills rank 0's port in
  network.enter(0, {100, 1000, 2, 0});
  network.enter(0, {101, 1000, 2, 3});
  Nanoseconds third = 0;
  while (const auto at = network.next())
    while (const auto delivery = network.pop(*at))
      if (delivery->frame.number == 101) third = delivery->at;
  CHECK(third <= kMillisecond);
}

TEST_CASE("a thin rack link is shared by its nodes without gaps") {
  Layout thin = layout(1);
  thin.nodes_per_rack = 2;
  thin.rack.bytes_per_second = 1.5e6;  // of two NICs' 2 MB/s, and faster than one
  Network network(thin);
  for (int64_t f = 0; f < 400; ++f) network.enter(0, {f, 1000, f % 2 * 4, 8 + f % 2 * 4});
  const double limit = 400 * 1000 / 1.5e6;
  CHECK(static_cast<double>(drain(network)) * 1e-9 == doctest::Approx(limit).epsilon(0.01));
}

TEST_CASE("every frame costs beside its bytes") {
  Layout costly = layout(1);
  costly.nic.frame_cost = 50 * kMicrosecond;
  Network network(costly);
  for (int64_t f = 0; f < 100; ++f) network.enter(0, {f, 10, 0, 4});
  CHECK(static_cast<double>(drain(network)) * 1e-9 == doctest::Approx(100 * 60e-6).epsilon(0.05));
}

// Frames that are delivered before the one with this number.
int64_t num_before(Network& network, int64_t number) {
  int64_t count = 0;
  while (const auto at = network.next())
    while (const auto delivery = network.pop(*at)) {
      if (delivery->frame.number == number) return count;
      ++count;
    }
  return -1;
}

TEST_CASE(
    "a short frame of another connection waits for a turn, and what it takes is the others'") {
  Network network(layout(1));
  for (int64_t f = 0; f < 10; ++f) network.enter(0, {f, 1000, 0, 4});
  network.enter(0, {10, 100, 1, 5});
  CHECK(num_before(network, 10) == 2);  // the one that is served, and a turn
  CHECK(drain(network) == 200 * kMicrosecond + 10 * kMillisecond + 100 * kMicrosecond);
}

TEST_CASE("where several senders meet a short frame overtakes long ones that wait") {
  Network network(layout(1));
  for (int64_t f = 0; f < 20; ++f) network.enter(0, {f, 1000, 4 * (1 + f % 2), 0});
  network.enter(0, {20, 100, 12, 1});
  CHECK(num_before(network, 20) == 0);
}

TEST_CASE("connections of the same two ranks take turns, and keep each its order") {
  for (const int64_t connection : {7, 8}) {
    Network network(layout(1));
    for (int64_t f = 0; f < 10; ++f)
      network.enter(0, {.number = f, .bytes = 1000, .from = 0, .to = 4, .connection = 7});
    network.enter(0, {.number = 10, .bytes = 100, .from = 0, .to = 4, .connection = connection});
    CHECK(num_before(network, 10) == (connection == 7 ? 10 : 2));
  }
}

TEST_CASE("frames of the same connection arrive in their order, short or long") {
  Network network(layout(1));
  int64_t frame = 0;
  Nanoseconds now = 0;
  int64_t next = 0;
  const auto take = [&](Nanoseconds until) {
    while (const auto delivery = network.pop(until)) CHECK(delivery->frame.number == next++);
  };
  for (; frame < 200; ++frame, now += 150 * kMicrosecond) {
    take(now);
    network.enter(now, {frame, frame % 3 == 0 ? 1000 : 60, 0, 4});
  }
  while (const auto at = network.next()) take(*at);
  CHECK(next == 200);
}

TEST_CASE("a marked frame goes first and costs its bytes alone") {
  Layout costly = layout(1);
  costly.nic.frame_cost = 5 * kMillisecond;
  Network network(costly);
  for (int64_t f = 0; f < 3; ++f) network.enter(0, {f, 1000, 0, 4});
  network.enter(0, {.number = 3, .bytes = 100, .from = 0, .to = 4, .goes_first = true});
  const auto first = [&] {
    for (;;)
      if (const auto delivery = network.pop(*network.next())) return *delivery;
  }();
  CHECK(first.frame.number == 3);
  CHECK(first.at == 300 * kMicrosecond);
}

TEST_CASE(
    "where frames leave a rank its connections take turns; behind that, first come, first served") {
  const auto order = [](const std::vector<Frame>& frames) {
    Network network(layout(1));
    for (const Frame& frame : frames) network.enter(0, frame);
    std::vector<int64_t> numbers;
    while (const auto at = network.next())
      while (const auto delivery = network.pop(*at)) numbers.push_back(delivery->frame.number);
    return numbers;
  };
  // Three frames to rank 4, then three to rank 5, then one to rank 6.
  std::vector<Frame> frames;
  for (int64_t f = 0; f < 7; ++f) frames.push_back({f, 1000, 0, 4 + f / 3});
  CHECK(order(frames) == std::vector<int64_t>{0, 1, 3, 6, 2, 4, 5});
  for (Frame& frame : frames) frame = {frame.number, 1000, 0, 4, frame.number / 3};
  CHECK(order(frames) == std::vector<int64_t>{0, 1, 3, 6, 2, 4, 5});
  for (Frame& frame : frames) frame.connection = 0;
  CHECK(order(frames) == std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6});
}

TEST_CASE("ranks share the NICs of their node and nothing is lost") {
  Network network(layout(2));
  int64_t count = 0;
  for (int64_t rank = 0; rank < 4; ++rank) network.enter(0, {rank, 1000, rank, 4 + rank});
  drain(network, &count);
  CHECK(count == 4);
  for (const Link& link : network.links())
    if (link.name.starts_with("node 0 nic") && link.name.ends_with("up"))
      CHECK(link.num_bytes == 2000);
}

}  // namespace
}  // namespace piper::lab
