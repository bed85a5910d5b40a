#include <bench/exchanges.h>
#include <doctest/doctest.h>
#include <piper/collective/all_to_all_flat.h>
#include <piper/comm/local.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace piper::comm {
namespace {

using collective::CountOf;

Exchange flat(int64_t num_members, const CountOf& count) {
  return {"flat", [num_members, count](int64_t member) {
            std::vector<int64_t> sent, received;
            for (int64_t other = 0; other < num_members; ++other) {
              sent.push_back(count(member, other));
              received.push_back(count(other, member));
            }
            return collective::all_to_all_flat(member, sent, received);
          }};
}

TEST_CASE("exchanges of even and uneven counts are timed and arrive right on any number of ranks") {
  const CountOf even = [](int64_t, int64_t) { return 100; };
  const CountOf uneven = [](int64_t from, int64_t to) { return (3 * from + 5 * to) % 4 * 1000; };
  for (const int64_t n : {1, 2, 4, 7})
    for (const CountOf& count : {even, uneven}) {
      CAPTURE(n);
      LocalWorld world(n);
      const auto results = measure_exchanges(world, {flat(n, count), flat(n, count)}, count,
                                             {.budget_seconds = 0.01, .max_rounds = 4});
      REQUIRE(results.size() == 2);
      for (const ExchangeResult& result : results) {
        CHECK(result.num_wrong == 0);
        CHECK(result.seconds > 0);
        CHECK(result.timing.num_samples >= 3);
      }
    }
}

TEST_CASE("an exchange that forgets a block, or takes a wrong one, has wrong bytes") {
  const CountOf count = [](int64_t, int64_t) { return 64; };
  LocalWorld world(3);
  const Exchange right = flat(3, count);
  const Exchange forgets{"forgets", [&](int64_t member) {
                           auto steps = right.steps(member);
                           steps.steps.pop_back();  // the copy of its own part
                           return steps;
                         }};
  const Exchange swaps{"swaps", [&](int64_t member) {
                         auto steps = right.steps(member);
                         steps.steps.back().source.offset = (member + 1) % 3 * 64;
                         return steps;
                       }};
  const auto results = measure_exchanges(world, {right, forgets, swaps}, count,
                                         {.budget_seconds = 0, .max_rounds = 3});
  CHECK(results[0].num_wrong == 0);
  CHECK(results[1].num_wrong > 2 * 3 * 56);  // both checks, three ranks
  CHECK(results[2].num_wrong > 2 * 3 * 56);
}

TEST_CASE(
    "what is short is repeated until a batch lasts, though its first times were the start's") {
  const CountOf count = [](int64_t, int64_t) { return 8; };
  std::atomic<int64_t> num_executed{0};
  const Exchange quick{"quick",
                       {},
                       [&](std::span<const std::byte>, std::span<const int>, std::span<std::byte>,
                           std::span<const int>) {
                         if (++num_executed <= 2)  // checked once and timed once
                           std::this_thread::sleep_for(std::chrono::milliseconds(4));
                       }};
  LocalWorld world(1);
  const auto results =
      measure_exchanges(world, {quick}, count, {.budget_seconds = 5, .max_rounds = 3});
  CHECK(results[0].num_repeats > 500);
  CHECK(results[0].seconds < 100e-6);
}

TEST_CASE("a bench that is late ends as soon as it may, on all ranks alike") {
  const CountOf count = [](int64_t, int64_t) { return 8; };
  for (const int64_t min_rounds : {1, 3}) {
    std::atomic<int64_t> num_executed{0};
    const Exchange slow{"slow",
                        {},
                        [&](std::span<const std::byte>, std::span<const int>, std::span<std::byte>,
                            std::span<const int>) {
                          ++num_executed;
                          std::this_thread::sleep_for(std::chrono::milliseconds(20));
                        }};
    LocalWorld world(3);
    const auto results =
        measure_exchanges(world, {slow}, count, {.budget_seconds = 0.01, .min_rounds = min_rounds});
    // Checked and timed once before the rounds, and checked after them.
    CHECK(num_executed == 3 * (min_rounds == 1 ? 2 : 2 + 3 + 1));
    CHECK(results[0].timing.num_samples == min_rounds);
    CHECK(results[0].seconds >= 0.02);
  }
}

}  // namespace
}  // namespace piper::comm
