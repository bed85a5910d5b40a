#include <doctest/doctest.h>
#include <piper/cost/trainer/pair_overlap.h>

using namespace piper;
using cost::LayerPrice;

namespace {

// Blocks of 1 and 2 s forwards, twice as long backwards, gradients of weights half of that; every
// exchange takes `travel` seconds. Nothing else travels.
LayerPrice layer_that_travels(double travel, double level_need = 0) {
  LayerPrice p;
  p.attention = {.forward = 1, .backward = 2, .backward_weights = 1};
  p.feed_forward = {.forward = 2, .backward = 4, .backward_weights = 2};
  cost::MixtureCollectives& m = p.mixture_forward;
  m.dispatch.moves = m.combine.moves = {.latency = 0, .transfer = travel};
  m.dispatch.needs.part[0] = m.combine.needs.part[0] = level_need;
  p.mixture_backward = m;
  return p;
}

cost::PairCompute compute_of(const LayerPrice& p) {
  return {.attention = p.attention, .feed_forward = p.feed_forward};
}

}  // namespace

TEST_CASE("in a pair exchanges hide behind the other's blocks, as far as these are long enough") {
  CHECK(cost::saved_in_pairs(layer_that_travels(0), {}, compute_of(layer_that_travels(0))).layer ==
        0);
  // 9 s of compute; each exchange has at least a block of a second beside it.
  for (const double travel : {0.25, 1.0}) {
    const LayerPrice p = layer_that_travels(travel);
    CHECK(cost::pair_seconds(p, {}, compute_of(p), {}).layer == doctest::Approx(9));
    CHECK(cost::saved_in_pairs(p, {}, compute_of(p)).layer == doctest::Approx(4 * travel));
  }
  // Both ways of both, twice a layer, when nothing else counts: one's two follow each other.
  const LayerPrice p = layer_that_travels(100);
  const double pair = cost::pair_seconds(p, {}, compute_of(p), {}).layer;
  CHECK(pair > 2 * 100);
  CHECK(pair < 2 * 100 + 9 + 1e-9);
}

TEST_CASE("exchanges of a pair that need the same link slow each other") {
  const LayerPrice apart = layer_that_travels(4, 0.5), together = layer_that_travels(4, 1);
  const double free = cost::pair_seconds(apart, {}, compute_of(apart), {}).layer;
  const double shared = cost::pair_seconds(together, {}, compute_of(together), {}).layer;
  CHECK(shared > free);
  CHECK(shared >= 16 - 1e-9);  // the link is never faster than all that crosses it
}

TEST_CASE("states that travel beside a pair are awaited at the layer's end") {
  const LayerPrice p = layer_that_travels(0.5, 0);
  const auto with = [&](const cost::PairStates& states) {
    return cost::pair_seconds(p, {}, compute_of(p), states).layer;
  };
  CHECK(with({.gradients = 5}) == doctest::Approx(9));                  // hidden
  CHECK(with({.gradients = 20}) == doctest::Approx(20));                // the layer waits
  CHECK(with({.weights = 4, .gradients = 12}) == doctest::Approx(20));  // weights come twice
  // What does not hide comes on top.
  CHECK(with({.gradients = 10, .hidden = 0.5}) == doctest::Approx(9 + 5));
}

TEST_CASE("what a pair runs again takes its time, and its exchanges theirs") {
  const LayerPrice p = layer_that_travels(0.5);
  cost::TrainerProfile trainer;
  const cost::PairCompute full =
      cost::pair_compute(p, strategy::Recompute::kFull, trainer, {.forward = 1, .backward = 1});
  CHECK(full.travels_again);
  CHECK(cost::pair_seconds(p, {}, full, {}).layer == doctest::Approx(9 + 3 + 2 * 0.5));
  // One after the other all of that is there as well: pairs save the same four exchanges.
  CHECK(cost::saved_in_pairs(p, {}, full).layer == doctest::Approx(2));
}
