#include <doctest/doctest.h>
#include <fmt/format.h>
#include <piper/cost/bubble.h>
#include <piper/cost/pipeline_simulator.h>
#include <testing/cost/relative_approx.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace piper::cost {
namespace {

using strategy::PipelineSchedule;

std::vector<int64_t> chunk_counts(PipelineSchedule schedule) {
  if (strategy::is_v(schedule)) return {2};
  if (strategy::interleaves(schedule)) return {1, 2, 3, 4};
  return {1};
}

double simulated_seconds(PipelineSchedule schedule, int64_t pp, int64_t vpp, int64_t m,
                         const RankPassSeconds& pass, double message) {
  const auto v = static_cast<double>(vpp);
  const std::vector<ChunkSeconds> chunks(
      static_cast<size_t>(pp * vpp), {.forward = pass.forward / v,
                                      .backward_input = pass.backward_input / v,
                                      .backward_weights = pass.backward_weights / v,
                                      .backward = (pass.backward_input + pass.backward_weights) / v,
                                      .send_forward = message,
                                      .send_backward = message});
  PipelineSimulator simulator(schedule, pp, vpp, m);
  double last = 0;
  for (const RankSeconds& rank : simulator.simulate(chunks)) last = std::max(last, rank.finish);
  return last;
}

struct Errors {
  double mean = 0, worst = 0;
};

// Errors of the closed form of a step's time, over random settings of one schedule.
Errors errors(PipelineSchedule schedule, int num, uint32_t seed) {
  std::mt19937 random(seed);
  const auto integer = [&](int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random() % static_cast<uint32_t>(high - low + 1));
  };
  const auto real = [&](double low, double high) {
    return low + (high - low) * static_cast<double>(random()) / 4294967296.0;
  };
  Errors e;
  for (int k = 0; k < num; ++k) {
    const int64_t pp = integer(1, 16);
    int64_t vpp = 1, m = integer(1, std::array{8, 32, 64}[random() % 3]);
    if (strategy::is_v(schedule)) vpp = 2;
    if (strategy::interleaves(schedule)) {
      vpp = integer(2, 4);
      if (k % 4 != 0) m = (m + pp - 1) / pp * pp;  // what a strategy may ask for
    }
    const auto v = static_cast<double>(vpp);
    const RankPassSeconds pass{
        .forward = v, .backward_input = v * real(0.7, 2.5), .backward_weights = v * real(0.2, 1.3)};
    const double message = real(0, 0.1);
    const double work =
        static_cast<double>(m) * (pass.forward + pass.backward_input + pass.backward_weights);
    const double closed = work + bubble_seconds(schedule, pp, vpp, m, pass, message);
    const double simulated = simulated_seconds(schedule, pp, vpp, m, pass, message);
    const double error = std::abs(closed / simulated - 1);
    CAPTURE(pp);
    CAPTURE(vpp);
    CAPTURE(m);
    CAPTURE(pass.backward_input / v);
    CAPTURE(pass.backward_weights / v);
    CAPTURE(message);
    CHECK(error <= 0.05);
    e.mean += error / num;
    e.worst = std::max(e.worst, error);
  }
  return e;
}

}  // namespace

TEST_CASE(
    "200 random pipelines a schedule: the closed form is the simulated step within 5 %, 1 % on "
    "average") {
  for (const PipelineSchedule schedule : strategy::kPipelineSchedules) {
    CAPTURE(std::string(strategy::name(schedule)));
    const Errors e = errors(schedule, 200, 20240501);
    MESSAGE(fmt::format("{}: mean {:.2f} %, worst {:.2f} %", strategy::name(schedule), 100 * e.mean,
                        100 * e.worst));
    CHECK(e.mean <= 0.01);
    if (schedule <= PipelineSchedule::k1F1B || schedule == PipelineSchedule::k1F1BPairs)
      CHECK(e.worst < 1e-9);
  }
}

TEST_CASE(
    "from 2p micro-batches on the closed form has every message that the simulated step waits "
    "for") {
  for (const PipelineSchedule schedule : strategy::kPipelineSchedules)
    for (const int64_t vpp : chunk_counts(schedule))
      for (const int64_t pp : {2, 4, 7, 16})
        for (const int64_t m : {3 * pp, 5 * pp})
          for (const auto& [input, weights] :
               {std::pair{1.0, 1.0}, {1.5, 1.0}, {1.5, 0.5}, {1.0, 1.2}, {2.0, 1.0}}) {
            CAPTURE(std::string(strategy::name(schedule)));
            CAPTURE(pp);
            CAPTURE(vpp);
            CAPTURE(input);
            CAPTURE(weights);
            const auto v = static_cast<double>(vpp);
            const RankPassSeconds pass{v, v * input, v * weights};
            const double work = static_cast<double>(m) * v * (1 + input + weights);
            CHECK(work + bubble_seconds(schedule, pp, vpp, m, pass, 0.1) ==
                  near(simulated_seconds(schedule, pp, vpp, m, pass, 0.1)));
          }
}

TEST_CASE("the formulas of the literature come out, in their conditions") {
  const RankPassSeconds pass{.forward = 2, .backward_input = 2.5, .backward_weights = 1.5};
  const auto bubble = [&](PipelineSchedule s, int64_t vpp, int64_t m) {
    return bubble_seconds(s, 4, vpp, m, pass);
  };
  CHECK(bubble(PipelineSchedule::kGPipe, 1, 1) == near(3 * 6.0));
  CHECK(bubble(PipelineSchedule::k1F1B, 1, 9) == near(3 * 6.0));
  CHECK(bubble(PipelineSchedule::kInterleaved, 2, 8) == near(3 * 6.0 / 2));
  CHECK(bubble(PipelineSchedule::kZbH1, 1, 8) == near(3 * (2 + 4.0 - 2 * 1.5)));
  const RankPassSeconds equal{.forward = 2, .backward_input = 2, .backward_weights = 2};
  CHECK(bubble_seconds(PipelineSchedule::kZbV, 4, 2, 8, equal) == near(3 * 1.0));
  CHECK(bubble_seconds(PipelineSchedule::kDualPipeV, 4, 2, 8, equal) == near(3 * 1.0));
  for (const PipelineSchedule schedule : strategy::kPipelineSchedules)
    CHECK(bubble_seconds(schedule, 1, chunk_counts(schedule).front(), 3, pass) == 0);
}

TEST_CASE("chunks in flight are those of the lists, for every rank and number of micro-batches") {
  for (const PipelineSchedule schedule : strategy::kPipelineSchedules)
    for (const int64_t vpp : chunk_counts(schedule))
      for (const int64_t pp : {1, 2, 4, 7, 8})
        for (int64_t m = 1; m <= 3 * pp + 1; ++m) {
          const PipelineSimulator simulator(schedule, pp, vpp, m);
          for (int64_t rank = 0; rank < pp; ++rank) {
            CAPTURE(std::string(strategy::name(schedule)));
            CAPTURE(pp);
            CAPTURE(vpp);
            CAPTURE(m);
            CAPTURE(rank);
            CHECK(chunk_forwards_in_flight(schedule, pp, vpp, rank, m) ==
                  simulator.peak_chunk_forwards()[static_cast<size_t>(rank)]);
          }
        }
  CHECK(chunk_forwards_in_flight(PipelineSchedule::kDualPipeV, 8, 2, 0, 64) == 17);
}

TEST_CASE("micro-batches in flight: all of them in GPipe, as many as stages remain in 1F1B") {
  CHECK(micro_batches_in_flight(PipelineSchedule::kGPipe, 4, 0, 9) == 9);
  CHECK(micro_batches_in_flight(PipelineSchedule::k1F1B, 4, 0, 9) == 4);
  CHECK(micro_batches_in_flight(PipelineSchedule::k1F1B, 4, 3, 9) == 1);
  CHECK(micro_batches_in_flight(PipelineSchedule::k1F1B, 4, 0, 2) == 2);
}

}  // namespace piper::cost
