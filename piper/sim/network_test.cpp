// Operations that share ports, on graphs written by hand: every figure can be computed in the head.
#include <doctest/doctest.h>
#include <piper/sim/simulate.h>
#include <testing/sim/example_prices.h>

#include <random>

using namespace piper;
using graph::TaskId;
using graph::TaskKind;

namespace {

// Messages from rank 0 to ranks 1, 2, ...: each after a compute task of its own rank's length.
struct Messages {
  schedule::StepGraph step;
  cost::Prices prices;
  std::vector<TaskId> sends;
};

struct Message {
  double starts = 0, seconds = 0, latency = 0;
  std::vector<cost::PortNeed> needs;
};

Messages messages(const std::vector<Message>& list, std::vector<cost::PortUnits> capacity) {
  Messages m;
  const auto n = static_cast<int>(list.size());
  m.step.graph = graph::Graph(2 * n);
  std::vector<double> seconds;
  m.prices.links.capacity = std::move(capacity);
  m.prices.links.first_need = {0};
  for (int i = 0; i < n; ++i) {
    const graph::OperationId operation = m.step.graph.new_operation();
    const TaskId before = m.step.graph.add({.rank = Rank(2 * i)});
    m.sends.push_back(m.step.graph.add({.rank = Rank(2 * i),
                                        .kind = TaskKind::kSend,
                                        .operation = operation,
                                        .peer = Rank(2 * i + 1),
                                        .dependencies = {before}}));
    m.step.graph.add({.rank = Rank(2 * i + 1),
                      .kind = TaskKind::kReceive,
                      .operation = operation,
                      .peer = Rank(2 * i)});
    const Message& message = list[static_cast<size_t>(i)];
    seconds.insert(seconds.end(), {message.starts, message.seconds, message.seconds});
    cost::Links& links = m.prices.links;
    links.pattern.push_back(i);
    links.transfer_seconds.push_back(message.seconds - message.latency);
    links.needs.insert(links.needs.end(), message.needs.begin(), message.needs.end());
    links.first_need.push_back(static_cast<uint32_t>(links.needs.size()));
  }
  const cost::Links links = m.prices.links;
  m.prices = sim::example::free_of_charge(m.step);
  m.prices.seconds = seconds;
  m.prices.links = links;
  return m;
}

std::vector<double> ends_of_messages(const Messages& m) {
  const graph::Timeline timeline = sim::simulate(m.step, m.prices);
  std::vector<double> list;
  for (const TaskId id : m.sends) list.push_back(timeline.tasks[id.index()].end_seconds);
  return list;
}

constexpr cost::PortUnits kOne = cost::kWholeShare;

}  // namespace

TEST_CASE("alone an operation takes its price to the last bit") {
  std::mt19937 random(5);
  for (int i = 0; i < 100; ++i) {
    const double starts = random() * 1e-9, latency = random() * 1e-12;
    const double seconds = latency + random() * 1e-10;
    CHECK(ends_of_messages(messages({{starts, seconds, latency, {{0, kOne}}}}, {kOne})).front() ==
          starts + seconds);
  }
}

TEST_CASE("two that want the whole of a port get half each while both move") {
  const Message a{.starts = 0, .seconds = 10, .needs = {{0, kOne}}};
  Message b = a;
  CHECK(ends_of_messages(messages({a, b}, {kOne})) == std::vector<double>{20, 20});
  b.starts = 5;  // 5 alone, 10 at half speed; the other has 5 left then
  CHECK(ends_of_messages(messages({a, b}, {kOne})) == std::vector<double>{15, 20});
  b.starts = 10;
  CHECK(ends_of_messages(messages({a, b}, {kOne})) == std::vector<double>{10, 20});
  CHECK(ends_of_messages(messages({a, b}, {2 * kOne})) == std::vector<double>{10, 20});
}

TEST_CASE("latency does not use the port") {
  const Message a{.starts = 0, .seconds = 10, .latency = 4, .needs = {{0, kOne}}};
  const Message b{.starts = 0, .seconds = 4, .latency = 0, .needs = {{0, kOne}}};
  CHECK(ends_of_messages(messages({a, b}, {kOne})) == std::vector<double>{10, 4});
}

TEST_CASE("the slowest port on the way decides, and elsewhere nobody gains by it") {
  // a and b share port 0; b and c share port 1, which has room for one and a half.
  const Message a{.seconds = 12, .needs = {{0, kOne}}};
  const Message b{.seconds = 12, .needs = {{0, kOne}, {1, kOne}}};
  const Message c{.seconds = 12, .needs = {{1, kOne}}};
  const std::vector<double> at = ends_of_messages(messages({a, b, c}, {kOne, kOne * 3 / 2}));
  CHECK(at[2] == 16);  // 3/4 of its speed throughout
  CHECK(at[0] == 24);
  CHECK(at[1] == 24);
}

TEST_CASE("a port serves several devices: two of a silent neighbour's node run at full speed") {
  const Message a{.seconds = 10, .needs = {{0, kOne}}};
  CHECK(ends_of_messages(messages({a, a}, {2 * kOne})) == std::vector<double>{10, 10});
  CHECK(ends_of_messages(messages({a, a, a}, {2 * kOne})) == std::vector<double>{15, 15, 15});
}

// Bytes are neither lost nor made: with one port and no latency the last end is the sum of the work
// from when the port has something to do.
TEST_CASE("one port is always busy while there is something to move") {
  for (const uint32_t seed : {1u, 2u, 3u, 4u}) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    std::vector<Message> list;
    for (int i = 0; i < 9; ++i)
      list.push_back({.starts = static_cast<double>(random() % 50),
                      .seconds = 1 + static_cast<double>(random() % 9),
                      .needs = {{0, kOne}}});
    double busy_until = 0;
    std::ranges::sort(list, {}, &Message::starts);
    for (const Message& m : list) busy_until = std::max(busy_until, m.starts) + m.seconds;
    const std::vector<double> at = ends_of_messages(messages(list, {kOne}));
    CHECK(*std::ranges::max_element(at) == doctest::Approx(busy_until).epsilon(1e-9));
  }
}
