// Parm's own numbers, and where the print cannot be taken at its word.
#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <studies/paper/parm.h>
#include <testing/cost/relative_approx.h>

#include <cmath>
#include <limits>

using namespace piper;
using cost::near;
using namespace piper::studies::paper::parm;

namespace {

// Odd sizes that no term can hide behind: B 3, L 5, M 7, E 2, k 1, f 4: T = 1 * 4 * 15 / 2 = 30.
const Layer kOddLayer{
    .batch = 3, .sequence = 5, .hidden = 7, .num_experts = 2, .capacity_factor = 4};
// Powers of ten apart, so that a sum shows its terms.
const Fits kFits{.esp_all_gather = {1e3, 1},
                 .esp_all_reduce = {1e4, 2},
                 .ep_all_to_all = {1e5, 3},
                 .fused_all_to_all = {1e6, 5},
                 .mp_all_gather = {1e7, 11},
                 .overlapped = CollectiveFit{1e8, 13}};

// Section IV-B's premise with twice the gather's time an element for an all-to-all.
Fits printed_fits(CollectiveFit gather) {
  return {.esp_all_gather = gather,
          .esp_all_reduce = {2 * gather.startup_seconds, 2 * gather.seconds_per_element},
          .ep_all_to_all = {gather.startup_seconds, 2 * gather.seconds_per_element},
          .fused_all_to_all = {gather.startup_seconds, 2 * gather.seconds_per_element},
          .mp_all_gather = gather};
}

Layer with_elements(double dispatched) {  // E T M, with k = f = 1
  return {.batch = 1, .sequence = dispatched / 1024, .hidden = 1024, .num_experts = 8};
}

}  // namespace

TEST_CASE("T, BLM and ETM, by hand") {
  CHECK(kOddLayer.input_elements() == 105);
  CHECK(kOddLayer.expert_tokens() == 30);
  CHECK(kOddLayer.dispatched_elements() == 420);
}

TEST_CASE("eq. 1, 2, 7 and 11, by hand") {
  const Degrees d{.mp = 4, .ep = 2, .esp = 3};
  CHECK(baseline_seconds(kOddLayer, d, kFits) ==
        (1e3 + 105 * 3) + (1e4 + 2 * 420 * 3) + 2 * (1e5 + 3 * 420 * 3));
  CHECK(fused_seconds(kOddLayer, d, kFits) == 2 * (1e6 + 5 * 420 * 3));
  CHECK(s1_seconds(kOddLayer, d, kFits) == 2 * (1e6 + 5 * 315) + (1e7 + 11 * 105));
  CHECK(s2_seconds(kOddLayer, d, kFits) == (1e6 + 5 * 315) + (1e8 + 13 * 315));
  CHECK(s2_sequential_seconds(kOddLayer, d, kFits) == 2 * (1e6 + 5 * 315) + (1e7 + 11 * 420));
}

TEST_CASE("without MP both schedules are the fused exchange, and a group of one costs nothing") {
  const Degrees d{.mp = 1, .ep = 2, .esp = 3};
  CHECK(s1_seconds(kOddLayer, d, kFits) == fused_seconds(kOddLayer, d, kFits));
  CHECK(s2_seconds(kOddLayer, d, kFits) == fused_seconds(kOddLayer, d, kFits));
  CHECK(s2_sequential_seconds(kOddLayer, d, kFits) == fused_seconds(kOddLayer, d, kFits));
  CHECK(baseline_seconds(kOddLayer, {.mp = 7}, kFits) == 0);
  CHECK(fused_seconds(kOddLayer, {.mp = 7}, kFits) == 0);
  // ESP alone: the baseline's all-to-all stays on the rank, the fused exchange does not.
  CHECK(baseline_seconds(kOddLayer, {.esp = 3}, kFits) == (1e3 + 315) + (1e4 + 2 * 1260));
  CHECK(fused_seconds(kOddLayer, {.esp = 3}, kFits) == 2 * (1e6 + 5 * 1260));
}

TEST_CASE("N_MP and N_ESP are independent") {
  // S1's exchange is of E T M N_ESP / N_MP: as long for 2 / 2 as for 4 / 4, twice for 2 / 4.
  const auto exchange = [](int64_t mp, int64_t esp) {
    Fits fits = kFits;
    fits.mp_all_gather = {};
    fits.fused_all_to_all.startup_seconds = 0;
    return s1_seconds(kOddLayer, {.mp = mp, .ep = 2, .esp = esp}, fits);
  };
  CHECK(exchange(2, 2) == exchange(4, 4));
  CHECK(exchange(2, 4) == 2 * exchange(2, 2));
  CHECK(exchange(4, 2) == exchange(2, 2) / 2);
}

TEST_CASE("eq. 13 as printed has lost N_ESP, eq. 14 adds the gather that Overlap() holds") {
  const Degrees d{.mp = 4, .ep = 2, .esp = 3};
  CHECK(printed_s1_seconds(kOddLayer, d, kFits) == 2 * (1e6 + 5 * 105) + (1e7 + 11 * 105));
  CHECK(printed_s2_seconds(kOddLayer, d, kFits) ==
        s2_seconds(kOddLayer, d, kFits) + kFits.mp_all_gather.seconds(420));
  // For N_ESP = 1 the first misprint has no effect.
  CHECK(printed_s1_seconds(kOddLayer, {.mp = 4, .ep = 2}, kFits) ==
        s1_seconds(kOddLayer, {.mp = 4, .ep = 2}, kFits));
}

TEST_CASE("Algorithm 1 as printed has one M too many and so chooses S1 where S2 is faster") {
  // Few rows come back (T small), so S2's gather is short.
  Fits fits = printed_fits(kTestbedBGather);
  const Degrees d{.mp = 4, .ep = 8};
  const Layer layer{
      .batch = 4, .sequence = 1024, .hidden = 1024, .num_experts = 8, .capacity_factor = 0.1};
  // Overlap() of an exchange that hides half of the gather over MP.
  fits.overlapped = CollectiveFit{
      fits.fused_all_to_all.startup_seconds,
      fits.fused_all_to_all.seconds_per_element + 2 * fits.mp_all_gather.seconds_per_element};
  CHECK(better_schedule(layer, d, fits) == Schedule::kS2);
  CHECK(s2_seconds(layer, d, fits) < 0.5 * s1_seconds(layer, d, fits));
  CHECK(printed_better_schedule(layer, d, fits) == Schedule::kS1);
  fits.overlapped.reset();
  CHECK_THROWS_AS(printed_better_schedule(layer, d, fits), InternalError);
}

TEST_CASE("the fits of section VI-B: a gather of 4 M elements takes 2.9 ms on A, 3.1 ms on B") {
  CHECK(kTestbedAGather.seconds(1 << 22) == near(2.9205e-3, 0.0001));
  CHECK(kTestbedBGather.seconds(1 << 22) == near(3.1037e-3, 0.0001));
}

TEST_CASE("for T to 0 S2 is faster, for T to infinity S1") {
  for (const CollectiveFit gather : {kTestbedAGather, kTestbedBGather})
    for (const int64_t mp : {2, 4, 7}) {
      const Fits fits = printed_fits(gather);
      const Degrees d{.mp = mp, .ep = 8};
      Layer layer = with_elements(1 << 24);
      layer.capacity_factor = 1e-6;
      CHECK(better_schedule(layer, d, fits) == Schedule::kS2);
      layer.capacity_factor = 1e6;
      CHECK(better_schedule(layer, d, fits) == Schedule::kS1);
    }
}

TEST_CASE("t_D2 <= t_B from 153 k elements on testbed B on, from 1.23 M on A") {
  const Degrees d{.mp = 2, .ep = 8};
  CHECK(least_elements_of_eq_10(d, printed_fits(kTestbedBGather)) == near(152'661, 0.0001));
  CHECK(least_elements_of_eq_10(d, printed_fits(kTestbedAGather)) == near(1'234'201, 0.0001));
  for (const CollectiveFit gather : {kTestbedAGather, kTestbedBGather}) {
    const Fits fits = printed_fits(gather);
    const double least = least_elements_of_eq_10(d, fits);
    // N_ESP = 1: eq. 1 is its two all-to-alls, so that the bound is exact for the sequential form.
    const Layer below = with_elements(0.99 * least), above = with_elements(1.01 * least);
    CHECK(s2_sequential_seconds(below, d, fits) > baseline_seconds(below, d, fits));
    CHECK(s2_sequential_seconds(above, d, fits) < baseline_seconds(above, d, fits));
  }
}

TEST_CASE("where a gather costs more than the fused exchange, eq. 10 never holds") {
  Fits fits = printed_fits(kTestbedBGather);
  fits.mp_all_gather.seconds_per_element = 3 * fits.fused_all_to_all.seconds_per_element;
  const Degrees d{.mp = 2, .ep = 8};
  CHECK(least_elements_of_eq_10(d, fits) == std::numeric_limits<double>::infinity());
  const Layer large = with_elements(1e12);
  CHECK(s2_sequential_seconds(large, d, fits) > baseline_seconds(large, d, fits));
  CHECK_THROWS_AS(least_elements_of_eq_10({.mp = 1, .ep = 8}, fits), InternalError);
}

TEST_CASE("SAA hides the shorter of the two but for one slice, and one phase is AAS") {
  CHECK(saa_seconds(12, 4, 4) == 12 + 1);
  CHECK(saa_seconds(4, 12, 4) == 1 + 12);
  CHECK(saa_seconds(7, 5, 1) == 7 + 5);
  for (const int64_t phases : {1, 2, 4, 7}) {
    CHECK(saa_seconds(8, 3, phases) <= 8 + 3);
    CHECK(saa_seconds(8, 3, phases) >= 8);
  }
  const Fits fits = printed_fits(kTestbedBGather);
  const Degrees d{.mp = 4, .ep = 8, .esp = 4};
  CHECK(s2_seconds(kOddLayer, d, fits) < s2_sequential_seconds(kOddLayer, d, fits));
}

TEST_CASE("the gather of a split in the backward is in no equation") {
  const Degrees d{.mp = 4, .ep = 2, .esp = 3};
  CHECK(backward_split_seconds(Schedule::kBaseline, kOddLayer, d, kFits) == 1e3 + 105 * 3);
  CHECK(backward_split_seconds(Schedule::kS1, kOddLayer, d, kFits) == 1e7 + 11 * 105);
  CHECK(backward_split_seconds(Schedule::kS2, kOddLayer, d, kFits) == 1e7 + 11 * 420);
  for (const Schedule schedule : {Schedule::kBaseline, Schedule::kS1, Schedule::kS2})
    CHECK(backward_split_seconds(schedule, kOddLayer, {.mp = 1, .ep = 2, .esp = 1}, kFits) == 0);
}
