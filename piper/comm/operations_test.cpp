#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/collective/all_reduce_direct.h>
#include <piper/collective/all_to_all_flat.h>
#include <piper/comm/element.h>
#include <piper/comm/local.h>
#include <piper/comm/operations.h>
#include <testing/comm/groups.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <thread>

namespace piper::comm {
namespace {

constexpr double kTimeout = 60;

// Element i of what `from` has for `to`.
int64_t token(int64_t from, int64_t to, int64_t i) { return from * 1000000 + to * 1000 + i; }

// Runs an exchange of counts[from][to] numbers in `group` and checks what arrives; false when
// something is wrong.
bool exchange_is_right(Transport& transport, const Group& group, uint64_t key,
                       const std::vector<std::vector<int64_t>>& counts) {
  const int64_t me = group.index;
  std::vector<int64_t> send, expected, send_bytes, receive_bytes;
  for (size_t other = 0; other < counts.size(); ++other) {
    for (int64_t i = 0; i < counts[me][other]; ++i) send.push_back(token(me, other, i));
    for (int64_t i = 0; i < counts[other][me]; ++i) expected.push_back(token(other, me, i));
    send_bytes.push_back(counts[me][other] * 8);
    receive_bytes.push_back(counts[other][me] * 8);
  }
  std::vector<int64_t> received(expected.size(), -1);
  const auto operation =
      start_all_to_all(transport, group, {key, "exchange"}, std::as_bytes(std::span(send)),
                       send_bytes, std::as_writable_bytes(std::span(received)), receive_bytes);
  wait(transport, *operation, kTimeout);
  return received == expected;
}

void check_exchange(const std::vector<std::vector<int64_t>>& counts) {
  LocalWorld world(static_cast<int64_t>(counts.size()));
  std::atomic<int> num_right{0};
  run_ranks(world, [&](Transport& transport) {
    num_right += exchange_is_right(transport, everyone(transport), 1, counts) ? 1 : 0;
  });
  CHECK(num_right == static_cast<int>(counts.size()));
}

TEST_CASE("an uneven exchange with zeros is right for every group size") {
  std::mt19937 random(11);
  for (const size_t n : {1, 2, 3, 4, 7, 8}) {
    std::vector<std::vector<int64_t>> counts(n, std::vector<int64_t>(n));
    for (auto& row : counts)
      for (int64_t& count : row)
        count = std::max<int64_t>(0, static_cast<int64_t>(random() % 200) - 60);
    CAPTURE(n);
    check_exchange(counts);
  }
}

TEST_CASE("an exchange is right with one hot receiver, and with nothing to send at all") {
  std::vector<std::vector<int64_t>> counts(7, std::vector<int64_t>(7));
  check_exchange(counts);
  for (auto& row : counts) row[4] = 900;
  check_exchange(counts);
}

TEST_CASE("counts are exchanged member by member") {
  LocalWorld world(3);
  std::vector<std::vector<int64_t>> received(3, std::vector<int64_t>(6));
  run_ranks(world, [&](Transport& transport) {
    const int64_t me = transport.rank().value;
    const std::vector<int64_t> send{10 * me,     10 * me,     10 * me + 1,
                                    10 * me + 1, 10 * me + 2, 10 * me + 2};
    wait(transport,
         *start_exchange_counts(transport, everyone(transport), {1, "counts"}, 2, send,
                                received[me]),
         kTimeout);
  });
  CHECK(received[1] == std::vector<int64_t>{1, 1, 11, 11, 21, 21});
}

TEST_CASE("disjoint groups whose members are not in ascending order work side by side") {
  LocalWorld world(5);
  const std::vector<std::vector<int64_t>> three(3, {1, 2, 3}), two(2, {4, 5});
  std::atomic<int> num_right{0};
  run_ranks(world, [&](Transport& transport) {
    const std::vector<Rank> members = transport.rank().value % 2 == 0
                                          ? std::vector{Rank(4), Rank(0), Rank(2)}
                                          : std::vector{Rank(3), Rank(1)};
    const auto place = std::find(members.begin(), members.end(), transport.rank());
    const Group group{members, place - members.begin()};
    num_right += exchange_is_right(transport, group, 1, members.size() == 3 ? three : two) ? 1 : 0;
  });
  CHECK(num_right == 5);
}

TEST_CASE("many operations in flight may be finished in another order on every rank") {
  constexpr int kOperations = 40;
  LocalWorld world(4);
  std::atomic<int> num_right{0};
  run_ranks(world, [&](Transport& transport) {
    const Group group = everyone(transport);
    std::mt19937 random(100 + transport.rank().value);
    std::vector<int> order(kOperations);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    const std::vector<int64_t> each(4, 8);
    std::vector<std::vector<int64_t>> sent(kOperations),
        received(kOperations, std::vector<int64_t>(4));
    std::vector<std::unique_ptr<Operation>> operations(kOperations);
    for (const int o : order) {
      for (int64_t to = 0; to < 4; ++to) sent[o].push_back(token(group.index, to, o));
      operations[o] = start_all_to_all(transport, group, {static_cast<uint64_t>(o), "many"},
                                       std::as_bytes(std::span(sent[o])), each,
                                       std::as_writable_bytes(std::span(received[o])), each);
    }
    std::shuffle(order.begin(), order.end(), random);
    for (const int o : order) wait(transport, *operations[o], kTimeout);
    for (int o = 0; o < kOperations; ++o)
      for (int64_t from = 0; from < 4; ++from)
        num_right += received[o][from] == token(from, group.index, o) ? 1 : 0;
  });
  CHECK(num_right == 4 * kOperations * 4);
}

// What a rank has before the sum: numbers whose fp32 sum depends on the order.
template <class T>
std::vector<T> numbers(int64_t rank, int64_t count) {
  std::mt19937_64 random(rank * 7919 + 5);
  std::vector<T> values(count);
  for (T& value : values)
    value = static_cast<T>(std::ldexp(static_cast<double>(random() % 2000001) - 1e6,
                                      static_cast<int>(random() % 30) - 15));
  return values;
}

template <class T>
std::vector<T> ascending_sum(int64_t num_ranks, int64_t count) {
  std::vector<T> sum = numbers<T>(0, count);
  for (int64_t r = 1; r < num_ranks; ++r) {
    const std::vector<T> more = numbers<T>(r, count);
    for (int64_t i = 0; i < count; ++i) sum[i] += more[i];
  }
  return sum;
}

template <class T>
void check_all_reduce(int64_t n, int64_t count, Element element, unsigned delay_seed) {
  LocalWorld world(n);
  const std::vector<T> expected = ascending_sum<T>(n, count);
  std::atomic<int> num_right{0};
  run_ranks(world, [&](Transport& transport) {
    std::vector<T> values = numbers<T>(transport.rank().value, count);
    if (delay_seed != 0) {
      std::mt19937 random(delay_seed * 31 + transport.rank().value);
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 2000));
    }
    const auto operation = start_all_reduce(transport, everyone(transport), {1, "sum"}, element,
                                            std::as_writable_bytes(std::span(values)));
    wait(transport, *operation, kTimeout);
    const bool right =
        count == 0 || std::memcmp(values.data(), expected.data(), count * sizeof(T)) == 0;
    num_right += right ? 1 : 0;
  });
  CAPTURE(n);
  CAPTURE(count);
  CHECK(num_right == n);
}

TEST_CASE(
    "an all-reduce is the ascending sum to the bit, in fp32, fp64 and int64, for every group size "
    "and uneven counts") {
  for (const int64_t n : {1, 2, 3, 4, 7, 8})
    for (const int64_t count : {0, 1, 5, 1000}) {
      check_all_reduce<float>(n, count, Element::kFloat32, 0);
      check_all_reduce<double>(n, count, Element::kFloat64, 0);
      check_all_reduce<int64_t>(n, count, Element::kInt64, 0);
    }
}

TEST_CASE(
    "a large all-reduce, cut into more pieces than there are slots, is the ascending sum to the "
    "bit") {
  check_all_reduce<float>(2, 7 * 32768 + 3, Element::kFloat32, 0);
  check_all_reduce<double>(3, 10 * 32768 + 1, Element::kFloat64, 0);
}

TEST_CASE("an all-reduce is bit-equal in 50 runs with random delays") {
  // Another order would not be: otherwise this test could not fail.
  std::vector<float> descending = numbers<float>(6, 501);
  for (int64_t r = 5; r >= 0; --r) {
    const std::vector<float> more = numbers<float>(r, 501);
    for (size_t i = 0; i < more.size(); ++i) descending[i] += more[i];
  }
  REQUIRE(descending != ascending_sum<float>(7, 501));
  for (unsigned run = 1; run <= 50; ++run) check_all_reduce<float>(7, 501, Element::kFloat32, run);
}

TEST_CASE(
    "the scratch of an all-reduce comes from the given allocator and goes with the operation") {
  LocalWorld world(4);
  std::atomic<int64_t> live{0}, largest{0};
  run_ranks(world, [&](Transport& transport) {
    std::vector<double> values(10);  // shares of 3, 3, 2, 2: 3 * share * 8 bytes of scratch
    const auto allocate = [&](size_t bytes) {
      live += static_cast<int64_t>(bytes);
      largest += static_cast<int64_t>(bytes);
      return std::shared_ptr<std::byte>(new std::byte[bytes], [&, bytes](const std::byte* p) {
        live -= static_cast<int64_t>(bytes);
        delete[] p;
      });
    };
    wait(transport,
         *start_all_reduce(transport, everyone(transport), {1, "sum"}, Element::kFloat64,
                           std::as_writable_bytes(std::span(values)), allocate),
         kTimeout);
  });
  CHECK(largest == 3 * 10 * 8);
  CHECK(live == 0);
}

TEST_CASE("an all-reduce over nodes sums every element, in pieces, the same on all members") {
  collective::Topology two_nodes = collective::apart(5);
  two_nodes.unit.front() = {0, 0, 1, 1, 1};
  for (const collective::Topology& topology : {two_nodes, collective::apart(5)})
    for (const int64_t count :
         {int64_t{0}, int64_t{1}, int64_t{4}, int64_t{1000}, 3 * (int64_t{1} << 20) + 7}) {
      CAPTURE(count);
      LocalWorld world(5);
      std::atomic<int> num_right{0};
      run_ranks(world, [&](Transport& transport) {
        const auto value = [&](int64_t rank, int64_t i) { return (rank + 1) * 1000003 + i * 7; };
        std::vector<int64_t> buffer(static_cast<size_t>(count)), sum(buffer.size());
        for (int64_t i = 0; i < count; ++i) {
          buffer[static_cast<size_t>(i)] = value(transport.rank().value, i);
          for (int64_t rank = 0; rank < 5; ++rank) sum[static_cast<size_t>(i)] += value(rank, i);
        }
        const auto operation = start_hierarchical_all_reduce(
            transport, everyone(transport), {1, "sum"}, Element::kInt64,
            std::as_writable_bytes(std::span(buffer)), topology);
        wait(transport, *operation, kTimeout);
        num_right += buffer == sum ? 1 : 0;
      });
      CHECK(num_right == 5);
    }
}

// The own share after a reduce-scatter is what the all-reduce by the same algorithm leaves there;
// an all-gather of the shares brings all to everyone.
template <class T>
void check_halves(const collective::Topology& topology, int64_t count, Element element) {
  const int64_t n = collective::num_members(topology);
  for (const collective::ReductionAlgorithm algorithm : collective::kReductionAlgorithms) {
    CAPTURE(std::string(collective::name(algorithm)));
    CAPTURE(n);
    CAPTURE(count);
    LocalWorld world(n);
    std::atomic<int> num_right{0};
    run_ranks(world, [&](Transport& transport) {
      const Group group = everyone(transport);
      std::vector<T> halves = numbers<T>(transport.rank().value, count), expected = halves;
      const auto bytes = [](std::vector<T>& of) { return std::as_writable_bytes(std::span(of)); };
      const auto share_of = [&](std::vector<T>& of, int64_t owner) {
        const collective::Block share = collective::reduce_share(owner, n, count);
        return std::span(of).subspan(static_cast<size_t>(share.offset),
                                     static_cast<size_t>(share.count));
      };
      wait(transport,
           *start_reduce_scatter(transport, group, {1, "scatter"}, element, bytes(halves),
                                 algorithm, topology),
           kTimeout);
      if (algorithm == collective::ReductionAlgorithm::kHierarchical)
        wait(transport,
             *start_hierarchical_all_reduce(transport, group, {2, "sum"}, element, bytes(expected),
                                            topology),
             kTimeout);
      else
        wait(transport, *start_all_reduce(transport, group, {2, "sum"}, element, bytes(expected)),
             kTimeout);
      bool right =
          std::ranges::equal(share_of(halves, group.index), share_of(expected, group.index));
      for (int64_t owner = 0; owner < n; ++owner)  // has to come from there
        if (owner != group.index) std::ranges::fill(share_of(halves, owner), T{-1});
      wait(transport,
           *start_all_gather(transport, group, {3, "gather"}, element, bytes(halves), algorithm,
                             topology),
           kTimeout);
      right &= halves == expected;
      num_right += right ? 1 : 0;
    });
    CHECK(num_right == n);
  }
}

TEST_CASE("a reduce-scatter and an all-gather are the halves of the all-reduce, to the bit") {
  collective::Topology two_nodes = collective::apart(5);
  two_nodes.unit.front() = {0, 0, 1, 1, 1};
  for (const collective::Topology& topology :
       {two_nodes, collective::apart(1), collective::apart(2), collective::apart(7)})
    for (const int64_t count : {0, 1, 5, 1000}) {
      check_halves<float>(topology, count, Element::kFloat32);
      check_halves<double>(topology, count, Element::kFloat64);
    }
  check_halves<float>(two_nodes, 3 * 5 * 32768 + 3, Element::kFloat32);  // in pieces
}

TEST_CASE("int64 sums wrap instead of being undefined") {
  std::vector<int64_t> a{INT64_MAX}, b{1};
  add(Element::kInt64, std::as_writable_bytes(std::span(a)), std::as_bytes(std::span(b)));
  CHECK(a.front() == INT64_MIN);
}

std::string error_of(Transport& transport, Operation& operation, double timeout_seconds) {
  try {
    wait(transport, operation, timeout_seconds);
  } catch (const CommError& error) {
    return error.what();
  }
  return "";
}

TEST_CASE("sums of narrow floats are rounded to the nearest, ties to even") {
  const auto narrow = [](float value) {  // of values that need no rounding
    return static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
  };
  // 8 bits of mantissa: behind 1 the next values are 1 + 1/128 and 1 + 2/128.
  const std::vector<std::array<float, 3>> sums{{1, 2, 3},
                                               {1, 1.0f / 256, 1},  // a tie, down to even
                                               {1 + 1.0f / 128, 1.0f / 256, 1 + 2.0f / 128},  // up
                                               {1, 1.0f / 256 + 1.0f / 1024, 1 + 1.0f / 128},
                                               {1e30f, -1e30f, 0}};
  for (const auto& [a, b, sum] : sums) {
    std::vector<uint16_t> to{narrow(a)}, from{narrow(b)};
    add(Element::kBFloat16, std::as_writable_bytes(std::span(to)), std::as_bytes(std::span(from)));
    CAPTURE(a);
    CAPTURE(b);
    CHECK(to[0] == narrow(sum));
  }
  std::vector<uint16_t> to{narrow(std::numeric_limits<float>::infinity())};
  std::vector<uint16_t> from{narrow(-std::numeric_limits<float>::infinity())};
  add(Element::kBFloat16, std::as_writable_bytes(std::span(to)), std::as_bytes(std::span(from)));
  CHECK(std::isnan(std::bit_cast<float>(uint32_t{to[0]} << 16)));
}

TEST_CASE("two operations of one key, told apart by their parts, are done together") {
  LocalWorld world(2);
  std::atomic<int> num_right{0};
  run_ranks(world, [&](Transport& transport) {
    const int64_t me = transport.rank().value;
    const Group group{{Rank(0), Rank(1)}, me};
    const auto exchange = [&](uint32_t part, std::span<const std::byte> in,
                              std::span<std::byte> out) {
      const std::vector<int64_t> bytes{me == 0 ? 0 : 4, me == 0 ? 4 : 0};
      collective::MemberSteps steps = collective::all_to_all_flat(me, bytes, bytes);
      for (collective::Step& step : steps.steps) step.part += part;
      auto operation = make_exchange(transport, group, "one of two", std::move(steps), in, out);
      operation->start(9);
      return operation;
    };
    const std::array<int32_t, 2> mine{static_cast<int32_t>(10 + me), static_cast<int32_t>(20 + me)};
    std::array<int32_t, 2> theirs{};
    const auto in = std::as_bytes(std::span(mine));
    const auto out = std::as_writable_bytes(std::span(theirs));
    const auto both =
        join(exchange(0, in.first(4), out.first(4)), exchange(1000, in.last(4), out.last(4)));
    wait(transport, *both, 10);
    num_right += theirs[0] == 11 - me && theirs[1] == 21 - me;
  });
  CHECK(num_right == 2);
}

TEST_CASE("a timeout names rank, operation and peer, and what is unmatched") {
  LocalWorld world(3);
  const auto transport = world.endpoint(Rank(1));
  std::vector<std::byte> buffer(4);
  const auto operation = start_receive(*transport, Rank(2), {1, "F3 L2 dispatch"}, buffer);
  CHECK(error_of(*transport, *operation, 0.02) ==
        "rank 1: timed out after 0.0 s in 'F3 L2 dispatch', waiting for rank 2 (receive, 4 bytes) "
        "(unmatched: rank 1: receive 'F3 L2 dispatch' from rank 2, 4 bytes)");
}

TEST_CASE("a timeout names no peer whose messages have come, though they woke nobody") {
  LocalWorld world(3);
  const auto a = world.endpoint(Rank(0)), b = world.endpoint(Rank(1));
  const std::vector<std::byte> sent(12);
  const std::vector<int64_t> bytes{4, 4, 4};
  std::vector<std::byte> received_by_a(12), received_by_b(12);
  const auto start = [&](Transport& transport, std::vector<std::byte>& received) {
    const Group group{{Rank(0), Rank(1), Rank(2)}, transport.rank().value};
    return start_all_to_all(transport, group, {1, "exchange"}, sent, bytes, received, bytes);
  };
  const auto operation = start(*a, received_by_a);
  std::unique_ptr<Operation> others;
  std::thread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    others = start(*b, received_by_b);
  });
  const std::string error = error_of(*a, *operation, 0.5);
  other.join();
  CAPTURE(error);
  CHECK(error.find("rank 2 (receive, 4 bytes)") != std::string::npos);
  CHECK(error.find("rank 2 (send, 4 bytes)") != std::string::npos);
  CHECK(error.find("rank 1 (") == std::string::npos);
}

TEST_CASE(
    "ranks that disagree about the order of operations time out, and the message shows both "
    "sides") {
  LocalWorld world(2);
  const auto a = world.endpoint(Rank(0)), b = world.endpoint(Rank(1));
  std::vector<std::byte> x(4), y(4);
  const auto first = start_receive(*a, Rank(1), {1, "F0 receive"}, x);
  const auto second = start_receive(*b, Rank(0), {2, "B0 receive"}, y);
  const std::string error = error_of(*a, *first, 0.02);
  CAPTURE(error);
  CHECK(error.find("'F0 receive', waiting for rank 1 (receive, 4 bytes)") != std::string::npos);
  CHECK(error.find("rank 1: receive 'B0 receive' from rank 0, 4 bytes") != std::string::npos);
}

TEST_CASE("a disagreement about a count ends an exchange on both sides") {
  LocalWorld world(2);
  std::vector<std::string> errors(2);
  CHECK_THROWS_AS(run_ranks(world,
                            [&](Transport& transport) {
                              std::vector<std::byte> send(10), receive(10);
                              const int64_t size =
                                  transport.rank().value == 0
                                      ? 5
                                      : 4;  // rank 0 expects and sends 5, rank 1 four
                              try {
                                const auto operation = start_all_to_all(
                                    transport, everyone(transport), {1, "F0 L1 dispatch"},
                                    std::span(send).first(2 * size), {size, size},
                                    std::span(receive).first(2 * size), {size, size});
                                wait(transport, *operation, kTimeout);
                              } catch (const CommError& error) {
                                errors[transport.rank().index()] = error.what();
                                throw;
                              }
                            }),
                  CommError);
  for (const std::string& error : errors) {
    CAPTURE(error);
    CHECK(error.find("'F0 L1 dispatch'") != std::string::npos);
  }
}

}  // namespace
}  // namespace piper::comm
