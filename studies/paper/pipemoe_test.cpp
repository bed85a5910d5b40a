// PipeMoE's cases against the timeline that they stand for, and its choice against all counts.
#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/cost/random.h>
#include <studies/paper/pipemoe.h>
#include <testing/cost/relative_approx.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>

using namespace piper;
using namespace piper::studies::paper::pipemoe;
using cost::near;
using cost::Random;

namespace {

// Two queues of tasks, each served in order, one task of a queue at a time: the wire has all
// dispatches and then all combines, the core has the experts. A task waits for the one it needs.
double simulated(const Layer& layer, int64_t r) {
  enum class Kind : uint8_t { kDispatch, kExperts, kCombine };
  struct Timed {
    Kind kind;
    int64_t chunk;
  };
  std::deque<Timed> wire, core;
  for (int64_t i = 0; i < r; ++i) wire.push_back({Kind::kDispatch, i});
  for (int64_t i = 0; i < r; ++i) wire.push_back({Kind::kCombine, i});
  for (int64_t i = 0; i < r; ++i) core.push_back({Kind::kExperts, i});
  std::map<std::pair<Kind, int64_t>, double> ended;
  double wire_free = 0, core_free = 0;
  const auto n = static_cast<double>(r);
  const auto serve = [&](std::deque<Timed>& queue, double& free, double seconds) {
    if (queue.empty()) return;
    const Timed task = queue.front();
    if (task.kind != Kind::kDispatch) {
      const Kind before = task.kind == Kind::kExperts ? Kind::kDispatch : Kind::kExperts;
      const auto needed = ended.find({before, task.chunk});
      if (needed == ended.end()) return;
      free = std::max(free, needed->second);
    }
    free += seconds;
    ended[{task.kind, task.chunk}] = free;
    queue.pop_front();
  };
  while (!wire.empty()) {
    serve(core, core_free, layer.experts.startup_seconds + layer.experts.work_seconds / n);
    serve(wire, wire_free, layer.all_to_all.startup_seconds + layer.all_to_all.work_seconds / n);
  }
  return wire_free;
}

// Start-ups and work over six and four orders of magnitude, now and then none.
Layer drawn(Random& random) {
  const auto between = [&](double low, double high) {
    return random.uniform() < 0.05 ? 0.0 : low * std::pow(high / low, random.uniform());
  };
  return {.all_to_all = {between(1e-6, 1), between(1e-3, 10)},
          .experts = {between(1e-6, 1), between(1e-3, 10)}};
}

constexpr int64_t kMost = 37;

}  // namespace

TEST_CASE("the four cases, by hand") {
  const Layer odd{.all_to_all = {1, 12}, .experts = {2, 30}};
  CHECK(case_of(odd, 1) == Case::kOneChunk);
  CHECK(seconds(odd, 1) == 2 * 13 + 32);
  CHECK(case_of(odd, 3) == Case::kExperts);  // D 5, E 12: 36 of experts, 20 beside them
  CHECK(seconds(odd, 3) == 2 * 5 + 3 * 12);
  const Layer even{.all_to_all = {1, 12}, .experts = {1, 15}};
  CHECK(case_of(even, 3) == Case::kAllToAllBesideExperts);  // D 5, E 6: 18 of 20
  CHECK(seconds(even, 3) == 2 * 3 * 5);
  const Layer fast{.all_to_all = {1, 12}, .experts = {1, 6}};
  CHECK(case_of(fast, 3) == Case::kAllToAll);
  CHECK(seconds(fast, 3) == 2 * 3 * 5);
  CHECK_THROWS_AS(seconds(odd, 0), InternalError);
}

// Sums of at most 2 * 37 terms in another order: each rounds by 2^-53 of the sum, 1e-14 in all.
TEST_CASE("the cases are one maximum, and both are what two streams take in that order") {
  Random random({2026, 1127});
  std::map<Case, int64_t> seen;
  for (int i = 0; i < 2000; ++i) {
    const Layer layer = drawn(random);
    CAPTURE(i);
    for (const int64_t r : {1, 2, 3, 4, 7, 16, 37}) {
      const double travel = layer.all_to_all.chunk_seconds(static_cast<double>(r));
      const double computed = layer.experts.chunk_seconds(static_cast<double>(r));
      const auto n = static_cast<double>(r);
      ++seen[case_of(layer, r)];
      CHECK(seconds(layer, r) == near(std::max(2 * n * travel, 2 * travel + n * computed), 1e-13));
      CHECK(seconds(layer, r) == near(simulated(layer, r), 1e-13));
    }
  }
  CHECK(seen.size() == 4);
  for (const auto& [of, count] : seen) {
    CAPTURE(name(of));
    CHECK(count > 100);
  }
}

TEST_CASE("the closed form finds the least that two streams take over all counts") {
  Random random({2026, 1128});
  std::map<int64_t, int64_t> chosen;
  for (int i = 0; i < 5000; ++i) {
    const Layer layer = drawn(random);
    CAPTURE(i);
    for (const int64_t most : {int64_t{1}, int64_t{7}, kMost}) {
      double least = simulated(layer, 1);
      for (int64_t r = 2; r <= most; ++r) least = std::min(least, simulated(layer, r));
      const Chunks best = best_chunks(layer, most);
      CHECK(best.seconds == near(least, 1e-13));
      CHECK(best.seconds == seconds(layer, best.num_chunks));
      CHECK(best.num_chunks >= 1);
      CHECK(best.num_chunks <= most);
      if (most == kMost) ++chosen[best.num_chunks];
    }
  }
  CHECK(chosen.size() == kMost);  // every count is once the best
}

TEST_CASE("the two real counts, by hand: sqrt(2 * 18 / 1) is 6, and 4 is where both parts meet") {
  const Layer layer{.all_to_all = {0.25, 18}, .experts = {1, 40}};
  CHECK(experts_chunks(layer) == 6);
  CHECK(best_chunks(layer, kMost).num_chunks == 6);
  // 2 r D = 2 * 4 * (1 + 4) = 40 = 2 D + r E = 10 + 4 * (0.5 + 7)
  const Layer met{.all_to_all = {1, 16}, .experts = {0.5, 28}};
  CHECK(all_to_all_chunks(met) == near(4));
  CHECK(best_chunks(met, kMost).num_chunks == 4);
  CHECK(best_chunks(met, 3).num_chunks == 3);
}

TEST_CASE("without start-ups experts that are the longer want as many chunks as there may be") {
  const Layer layer{.all_to_all = {0, 4}, .experts = {0, 8}};
  for (const int64_t most : {1, 2, 7, 32}) CHECK(best_chunks(layer, most).num_chunks == most);
  // Shorter ones hide from r = 2 D / (2 D - E) on, and more chunks gain nothing.
  const Layer hidden{.all_to_all = {0, 4}, .experts = {0, 6}};
  CHECK(best_chunks(hidden, 32).num_chunks == 4);
  CHECK(best_chunks(hidden, 32).seconds == 8);
}

TEST_CASE("where nothing overlaps one chunk is best: no travel, no experts, or start-ups alone") {
  CHECK(best_chunks({.all_to_all = {}, .experts = {1, 8}}, 32).num_chunks == 1);
  CHECK(best_chunks({.all_to_all = {1, 8}, .experts = {}}, 32).num_chunks == 1);
  CHECK(best_chunks({.all_to_all = {1, 0}, .experts = {1, 0}}, 32).num_chunks == 1);
  CHECK(best_chunks({.all_to_all = {8, 1}, .experts = {8, 1}}, 32).num_chunks == 1);
}

TEST_CASE("the repository's second case bounds r from below only where all-to-alls start slower") {
  // E <= D from r = (20 - 12) / (1 - 0.5) = 16 on.
  const Layer slow{.all_to_all = {1, 12}, .experts = {0.5, 20}};
  CHECK(printed_all_to_all_chunks(slow) == 16);
  CHECK(case_of(slow, 16) == Case::kAllToAll);
  CHECK(case_of(slow, 15) != Case::kAllToAll);
  // Experts that start slower and take longer are never within D; 2 chunks are priced as if.
  const Layer fast{.all_to_all = {0.5, 16}, .experts = {1, 28}};
  CHECK(printed_all_to_all_chunks(fast) == 2);
  CHECK(case_of(fast, 2) == Case::kExperts);
  const Chunks printed = printed_best_chunks(fast, kMost);
  CHECK(printed.num_chunks == 2);
  CHECK(printed.seconds == 2 * 2 * (0.5 + 8));
  CHECK(best_chunks(fast, kMost).num_chunks == 6);  // sqrt(2 * 16 / 1) is 5.7
  CHECK(seconds(fast, 2) > 1.05 * best_chunks(fast, kMost).seconds);
  CHECK(printed_best_chunks(slow, kMost).num_chunks == best_chunks(slow, kMost).num_chunks);
  CHECK_THROWS_AS(printed_all_to_all_chunks({}), InternalError);
}

TEST_CASE("the published fits: 13.4 TFLOP/s, 3.4 to 2.6 GB/s, and the layer of the repository") {
  CHECK(2 / kProduct.seconds_per_unit == near(13.4e12, 0.001));
  CHECK(4 / kAllToAll16.seconds_per_unit == near(3.38e9, 0.001));
  CHECK(4 / kAllToAll64.seconds_per_unit == near(2.60e9, 0.002));
  // B 8, L 1024, k 2, M and H 4096.
  const Layer layer = fitted_layer(8 * 1024 * 2, 4096, 4096, kAllToAll16, kProduct);
  CHECK(layer.all_to_all.work_seconds == near(79.46e-3, 0.001));
  CHECK(layer.experts.work_seconds == near(82.02e-3, 0.001));
  const Chunks best = best_chunks(layer, 32);
  CHECK(best.num_chunks == 3);
  CHECK(case_of(layer, best.num_chunks) == Case::kAllToAllBesideExperts);
}
