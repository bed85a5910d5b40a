#include <doctest/doctest.h>
#include <fmt/format.h>
#include <piper/cost/pipeline_simulator.h>
#include <piper/schedule/host_copies.h>
#include <testing/cost/relative_approx.h>

#include <algorithm>
#include <chrono>

namespace piper::cost {
namespace {

using schedule::Action;
using strategy::PipelineSchedule;

constexpr int64_t kRanks[] = {1, 2, 4, 7, 8};

struct Times {
  double forward, input, weights;  // of a chunk
  double whole() const { return forward + input + weights; }
};

std::vector<ChunkSeconds> uniform(int64_t stages, const Times& t, double message = 0) {
  return std::vector<ChunkSeconds>(static_cast<size_t>(stages), {.forward = t.forward,
                                                                 .backward_input = t.input,
                                                                 .backward_weights = t.weights,
                                                                 .backward = t.input + t.weights,
                                                                 .send_forward = message,
                                                                 .send_backward = message});
}

struct Bubbles {
  double longest = 0;  // of a rank, between its first action and its last
  double step = 0;     // what the step is longer than a rank's work
};

Bubbles bubbles(PipelineSchedule schedule, int64_t pp, int64_t vpp, int64_t m, const Times& t,
                bool pairs_overlap = false) {
  PipelineSimulator simulator(schedule, pp, vpp, m);
  Bubbles b;
  for (const RankSeconds& rank : simulator.simulate(uniform(pp * vpp, t), pairs_overlap)) {
    b.longest = std::max(b.longest, rank.bubble());
    b.step = std::max(b.step, rank.finish - static_cast<double>(m * vpp) * t.whole());
  }
  return b;
}

std::vector<int64_t> peaks(PipelineSchedule schedule, int64_t pp, int64_t vpp, int64_t m) {
  const PipelineSimulator simulator(schedule, pp, vpp, m);
  const std::span<const int64_t> held = simulator.peak_chunk_forwards();
  return {held.begin(), held.end()};
}

int64_t peak(PipelineSchedule schedule, int64_t pp, int64_t vpp, int64_t m) {
  return std::ranges::max(peaks(schedule, pp, vpp, m));
}

// Sums of halves and quarters: exact.
constexpr Times kTimes[] = {{1, 1, 1}, {1, 1.5, 0.5}, {1, 1, 0.75}, {1, 2, 1}, {2, 2.5, 0.25}};

// The plain version: every action of every stage as soon as what it waits for has ended.
std::vector<double> plain_finish(PipelineSchedule schedule, const std::vector<ChunkSeconds>& stages,
                                 int64_t m) {
  const size_t p = stages.size();
  std::vector<std::vector<Action>> lists;
  for (size_t s = 0; s < p; ++s)
    lists.push_back(
        schedule::actions(schedule, static_cast<int64_t>(p), static_cast<int64_t>(s), m));
  std::vector<std::vector<double>> ends(p),
      forward(p, std::vector<double>(static_cast<size_t>(m), -1)), backward = forward;
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t s = 0; s < p; ++s) {
      if (ends[s].size() == lists[s].size()) continue;
      const size_t j = ends[s].size();
      const Action action = lists[s][j];
      const auto k = static_cast<size_t>(action.micro_batch);
      const bool is_forward = action.kind == Action::Kind::kForward;
      double start = j > 0 ? ends[s][j - 1] : 0;
      const double asked = j > 1 ? ends[s][j - 2] : 0;  // when the message is waited for
      if (is_forward ? s > 0 : s + 1 < p) {
        const size_t from = is_forward ? s - 1 : s + 1;
        const double sent = is_forward ? forward[from][k] : backward[from][k];
        if (sent < 0) continue;
        start = std::max(start, std::max(sent, asked) + (is_forward ? stages[from].send_forward
                                                                    : stages[from].send_backward));
      }
      // The part of a backward that needs no gradient starts as soon as the stage is free.
      if (!is_forward) start = std::max(start - stages[s].ahead, j > 0 ? ends[s][j - 1] : 0);
      const double end = start + (is_forward ? stages[s].forward : stages[s].backward);
      ends[s].push_back(end);
      (is_forward ? forward : backward)[s][k] = end;
      moved = true;
    }
  }
  std::vector<double> finish;
  for (const std::vector<double>& list : ends) {
    REQUIRE(list.size() == static_cast<size_t>(2 * m));
    finish.push_back(list.back());
  }
  return finish;
}

}  // namespace

TEST_CASE("GPipe (Huang et al. 2019): bubble (p-1)(F+B), all m micro-batches held") {
  for (const int64_t p : kRanks)
    for (const int64_t m : {1, 2, 3, 8, 33})
      for (const Times& t : kTimes) {
        const Bubbles b = bubbles(PipelineSchedule::kGPipe, p, 1, m, t);
        CHECK(b.longest == static_cast<double>(p - 1) * t.whole());
        CHECK(b.step == b.longest);
        CHECK(peak(PipelineSchedule::kGPipe, p, 1, m) == m);
      }
}

TEST_CASE("1F1B (Narayanan et al. 2021): bubble (p-1)(F+B), p-i micro-batches held on stage i") {
  for (const int64_t p : kRanks)
    for (const int64_t m : {1, 2, 3, 8, 33})
      for (const Times& t : kTimes) {
        const Bubbles b = bubbles(PipelineSchedule::k1F1B, p, 1, m, t);
        CHECK(b.longest == static_cast<double>(p - 1) * t.whole());
        CHECK(b.step == b.longest);
        const std::vector<int64_t> held = peaks(PipelineSchedule::k1F1B, p, 1, m);
        for (int64_t i = 0; i < p; ++i) CHECK(held[static_cast<size_t>(i)] == std::min(m, p - i));
      }
}

// Table's condition: m a multiple of p. F and B of all of a rank's layers, v chunks of F/v and B/v.
TEST_CASE("interleaved (Narayanan et al. 2021): bubble (p-1)(F+B)/v, (warm-up+1)/v held") {
  for (const int64_t p : kRanks)
    for (const int64_t v : {1, 2, 3, 4})
      for (const int64_t m : {p, 2 * p, 5 * p})
        for (const Times& t : kTimes) {
          const Bubbles b = bubbles(PipelineSchedule::kInterleaved, p, v, m, t);
          CHECK(b.longest == static_cast<double>(p - 1) * t.whole());
          CHECK(b.step == b.longest);
          CHECK(peak(PipelineSchedule::kInterleaved, p, v, m) ==
                std::min((p - 1) * 2 + (v - 1) * p + 1, m * v));
        }
}

// Conditions: m >= p, I >= W and F >= W. Qi et al. print (p-1)(F+B-2W) with B the whole backward, I
// + W here. It is the first rank's: the drain, one input's part a rank, filled with weights' parts.
// With W > I it promises what cannot be, for the last rank starts (p-1) F late whatever the others
// do; with W > F the weights' parts that ranks run in the drain are longer than what they fill.
// Together: (p-1) max(F, I, F+I-W).
TEST_CASE("ZB-H1 (Qi et al. 2024): bubble (p-1)(F+B-2W), p micro-batches held on every stage") {
  for (const int64_t p : kRanks)
    for (const int64_t m : {p, p + 1, 2 * p, 33 * p})
      for (const Times& t : kTimes) {
        const Bubbles b = bubbles(PipelineSchedule::kZbH1, p, 1, m, t);
        CHECK(b.longest ==
              static_cast<double>(p - 1) * (t.forward + t.input + t.weights - 2 * t.weights));
        CHECK(b.step == b.longest);
        CHECK(peaks(PipelineSchedule::kZbH1, p, 1, m) ==
              std::vector<int64_t>(static_cast<size_t>(p), p));
      }
  for (const Times& t : {Times{1, 0.5, 1}, Times{1, 1, 1.5}, Times{1, 2, 1.5}, Times{1, 2, 2}})
    for (const int64_t p : kRanks)
      CHECK(bubbles(PipelineSchedule::kZbH1, p, 1, 2 * p, t).step ==
            static_cast<double>(p - 1) *
                std::max({t.forward, t.input, t.forward + t.input - t.weights}));
}

// Conditions: F = I = W and m >= 2p-1. What Qi et al. call the bubble is what a rank idles between
// its first action and its last (their optimizer step waits for no other rank): zero. A step that
// ends for all ranks at once is (p-1) chunk-forwards longer, because rank r can start no sooner
// than the first micro-batch reaches it. Peak: p micro-batches of a whole rank, on every rank, like
// 1F1B's first.
TEST_CASE("ZB-V (Qi et al. 2024): no bubble when F = I = W, p micro-batches held on every rank") {
  for (const int64_t p : kRanks)
    for (const int64_t m : {2 * p - 1, 2 * p, 3 * p + 1, 20 * p})
      for (const double seconds : {1.0, 0.25}) {
        const Bubbles b = bubbles(PipelineSchedule::kZbV, p, 2, m, {seconds, seconds, seconds});
        CHECK(b.longest == 0);
        CHECK(b.step == static_cast<double>(p - 1) * seconds);
        CHECK(peaks(PipelineSchedule::kZbV, p, 2, m) ==
              std::vector<int64_t>(static_cast<size_t>(p), 2 * p));
      }
  // Not when the parts differ.
  CHECK(bubbles(PipelineSchedule::kZbV, 4, 2, 8, {1, 1.5, 0.5}).longest > 1);
}

// DeepSeek print (PP/2-1)(F&B+B-3W) and PP+1, where PP counts stages, two a rank: with p ranks PP =
// 2p, so the factor is p-1, and PP+1 chunks are p + 1/2 micro-batches of a whole rank. F, B, W are
// of a chunk. The formula is what a rank idles when a pair runs as one (both wait for the later
// input, both hand on at the end), F&B what the two take one after the other, for m >= 2p, F = I
// and W <= I. Run as two actions, the first hands on before the second begins: (p-1)(F+B-2W),
// ZB-H1's for a chunk, with few backwards split.
TEST_CASE("DualPipeV (DeepSeek 2025): bubble (PP/2-1)(F&B+B-3W), PP+1 chunks held, PP = 2p") {
  for (const int64_t p : kRanks)
    for (const int64_t m : {2 * p, 2 * p + 1, 3 * p, 16 * p})
      for (const Times& t : {Times{1, 1, 1}, Times{1, 1, 0.5}, Times{1, 1, 0.75}}) {
        CAPTURE(p);
        CAPTURE(m);
        const double whole = t.input + t.weights, pair = t.forward + whole;
        const Bubbles b = bubbles(PipelineSchedule::kDualPipeV, p, 2, m, t, true);
        CHECK(b.longest == static_cast<double>(p - 1) * (pair + whole - 3 * t.weights));
        CHECK(bubbles(PipelineSchedule::kDualPipeV, p, 2, m, t).longest ==
              static_cast<double>(p - 1) * (t.forward + whole - 2 * t.weights));
        CHECK(peaks(PipelineSchedule::kDualPipeV, p, 2, m) ==
              std::vector<int64_t>(static_cast<size_t>(p), 2 * p + 1));
      }
}

// A stage fills until its first gradient is back, which then takes both of a pair: nothing idles
// but fill and drain.
TEST_CASE("1F1B in pairs: bubble (p-1)(F+B) whether or not pairs run as one") {
  for (const int64_t p : kRanks)
    for (const int64_t m : {2 * p, 2 * p + 1, 16 * p})
      for (const Times& t : kTimes)
        for (const bool as_one : {false, true}) {
          CAPTURE(p);
          CAPTURE(m);
          CHECK(bubbles(PipelineSchedule::k1F1BPairs, p, 1, m, t, as_one).step ==
                static_cast<double>(p - 1) * t.whole());
        }
}

TEST_CASE("what pairs save and their messages share: all but the last stage's first forward") {
  const auto seconds = [](PipelineSchedule schedule, int64_t p, int64_t v, int64_t m, double saves,
                          double message, double meets) {
    std::vector<ChunkSeconds> chunks = uniform(p * v, {1, 1.5, 0.5}, message);
    for (ChunkSeconds& chunk : chunks) {
      chunk.pair_saves = saves;
      chunk.meets_other = meets;
    }
    PipelineSimulator simulator(schedule, p, v, m);
    return std::ranges::max(simulator.simulate(chunks, true), {}, &RankSeconds::finish).finish;
  };
  using enum PipelineSchedule;
  for (const int64_t p : {1, 2, 4})
    for (const int64_t m : {2 * p + 1, 16 * p})
      CHECK(seconds(k1F1BPairs, p, 1, m, 0.25, 0, 0) ==
            seconds(k1F1BPairs, p, 1, m, 0, 0, 0) - static_cast<double>(m - 1) * 0.25);
  // With two ranks none sends both ways; interleaved each does in every second pair, and waits for
  // it.
  CHECK(seconds(k1F1BPairs, 2, 1, 16, 0, 0.125, 0.125) ==
        seconds(k1F1BPairs, 2, 1, 16, 0, 0.125, 0));
  CHECK(seconds(kInterleavedPairs, 2, 2, 16, 0, 0.125, 0.125) >
        seconds(kInterleavedPairs, 2, 2, 16, 0, 0.125, 0) + 12 * 0.125);
}

TEST_CASE("uneven stages, messages and recomputation: GPipe and 1F1B as their lists have them") {
  for (const auto schedule : {PipelineSchedule::kGPipe, PipelineSchedule::k1F1B})
    for (const int64_t p : {2, 3, 4, 7})
      for (const int64_t m : {1, 3, 8, 27, 101, 401, 1000}) {
        CAPTURE(p);
        CAPTURE(m);
        // Long ones, too: an action that is shorter than its successor's message does not cover it.
        const double longer = m % 2 == 0 ? 8 : 1;
        std::vector<ChunkSeconds> chunks;
        for (int64_t s = 0; s < p; ++s)
          chunks.push_back({.forward = 1 + 0.1 * static_cast<double>(s * s % 5),
                            .backward = 2 + 0.2 * static_cast<double>(s * 3 % 4),
                            .ahead = s + 1 < p ? 0.2 * static_cast<double>(s % 3) : 0,
                            .send_forward = 0.3 * longer,
                            .send_backward = 0.4 * longer});
        const std::vector<double> finish = plain_finish(schedule, chunks, m);
        PipelineSimulator simulator(schedule, p, 1, m);
        const std::span<const RankSeconds> simulated = simulator.simulate(chunks);
        PipelineSimulators simulators;
        const std::vector<double> continued = simulators.finish(schedule, p, 1, m, chunks);
        const bool is_whole = micro_batches_simulated(p, m) == m;
        for (size_t r = 0; r < finish.size(); ++r) {
          CHECK(simulated[r].finish == near(finish[r]));
          CHECK(continued[r] == near(finish[r]).epsilon(is_whole ? 1e-9 : 2e-3));
        }
      }
}

TEST_CASE("between two chunks of one rank nothing travels") {
  // One rank: the turn of the V. Two ranks: 0 -> 1, turn, 1 -> 0, and the same for the gradient.
  const Times t{1, 1, 1};
  PipelineSimulator one(PipelineSchedule::kZbV, 1, 2, 1), two(PipelineSchedule::kZbV, 2, 2, 1);
  CHECK(one.simulate(uniform(2, t, 10))[0].finish == 6);
  // F on 0, 1, 1, 0, i on 0, i w I on 1, I W on 0, with four messages.
  CHECK(two.simulate(uniform(4, t, 10))[0].finish == near(4 + 1 + 3 + 2 + 4 * 10));
}

// GPipe, one rank, four micro-batches, F = B = 1, copies of 2. o: out, b: back.
//
//   F0 0-1, F1 1-2   o0 alone 1-3; then o1 and b0, which was posted with it: 3-7
//   F2 3-4 (o0), F3 7-8 (o1), B0 8-9 (b0)   b1 and o2 from 7, o3 from 8: b1 and o2 end at 12.5, o3 has 0.5 left
//   B1 12.5-13.5     o3 and b2 (posted at 9, behind o2): o3 ends at 13.5; b2 has 1.5 left, and b3 comes
//   B2 16.5-17.5, B3 17.5-18.5              b2 ends at 16.5, b3 at 17
TEST_CASE("activations that go to the host and back: a forward and a backward wait for copies") {
  std::vector<ChunkSeconds> chunks = uniform(1, {1, 1, 0});
  chunks[0].copy = 2;
  PipelineSimulator simulator(PipelineSchedule::kGPipe, 1, 1, 4, true);
  CHECK(simulator.simulate(chunks)[0].finish == near(18.5));
  CHECK(simulator.simulate(chunks)[0].busy == 8);
  PipelineSimulator plain(PipelineSchedule::kGPipe, 1, 1, 4);
  CHECK(plain.simulate(chunks)[0].finish == 8);
}

TEST_CASE("copies to the host and back: free ones change nothing, long ones are all that counts") {
  for (const auto schedule : strategy::kPipelineSchedules)
    for (const int64_t p : {1, 2, 4, 7})
      for (const int64_t rounds : {1, 2, 5}) {
        CAPTURE(strategy::name(schedule));
        CAPTURE(p);
        const int64_t vpp = strategy::is_v(schedule) ? 2 : strategy::interleaves(schedule) ? 3 : 1;
        const int64_t m = p * rounds;
        const bool pairs = strategy::pairs(schedule);
        std::vector<ChunkSeconds> chunks = uniform(p * vpp, {1, 1.5, 0.5}, 0.25);
        PipelineSimulator plain(schedule, p, vpp, m), copying(schedule, p, vpp, m, true);
        const auto step = [&](PipelineSimulator& simulator) {
          return std::ranges::max(simulator.simulate(chunks, pairs), {}, &RankSeconds::finish)
              .finish;
        };
        const double without = step(plain);
        CHECK(step(copying) == without);
        double before = without;
        for (const double copy : {0.01, 1.0, 10.0, 1000.0}) {
          for (ChunkSeconds& chunk : chunks) chunk.copy = copy;
          const double with = step(copying);
          CHECK(with >= before * (1 - 1e-12));
          before = with;
        }
        int64_t most = 0;
        for (int64_t rank = 0; rank < p; ++rank)
          most = std::max<int64_t>(
              most, std::ssize(schedule::host_copies(schedule, p, vpp, m, rank).back));
        // Ranks copy beside each other: those of the busiest one, and at most a few that others
        // wait for.
        CHECK(before >= 2000 * static_cast<double>(most));
        CHECK(before <= (most > 0 ? 2000 * static_cast<double>(most + 2 * p * vpp) : 0) + without);
      }
}

TEST_CASE("a simulator simulates again, with other times, as if it were new") {
  for (const bool copies : {false, true}) {
    PipelineSimulator simulator(PipelineSchedule::kZbV, 4, 2, 9, copies);
    std::vector<ChunkSeconds> chunks = uniform(8, {1, 1, 1});
    for (ChunkSeconds& chunk : chunks) chunk.copy = 2;
    const double first = simulator.simulate(chunks)[0].finish;
    simulator.simulate(uniform(8, {3, 2, 1}, 0.1));
    CHECK(simulator.simulate(chunks)[0].finish == first);
  }
}

TEST_CASE("eight ranks and 32 micro-batches are simulated in microseconds") {
  for (const auto schedule : {PipelineSchedule::kZbV, PipelineSchedule::kDualPipeV}) {
    const std::vector<ChunkSeconds> chunks = uniform(16, {1, 1, 1}, 0.1);
    double made = 1, simulated = 1;  // the fastest of several: others use the machine, too
    for (int i = 0; i < 50; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      PipelineSimulator simulator(schedule, 8, 2, 32);
      const auto middle = std::chrono::steady_clock::now();
      simulator.simulate(chunks);
      const auto end = std::chrono::steady_clock::now();
      made = std::min(made, std::chrono::duration<double>(middle - begin).count());
      simulated = std::min(simulated, std::chrono::duration<double>(end - middle).count());
    }
    MESSAGE(fmt::format("{}: made in {:.1f} us, simulated in {:.1f} us", strategy::name(schedule),
                        made * 1e6, simulated * 1e6));
    CHECK(made + simulated < 1e-3);  // about 30 us optimised; sanitizers multiply it
  }
}

}  // namespace piper::cost
