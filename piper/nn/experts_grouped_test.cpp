// Holds the bytes of one product for all experts (cost/activation.cpp) to the allocator. It
// computes on the CPU here, where libtorch's grouped product is a loop and needs as much.
#include <ATen/Context.h>
#include <doctest/doctest.h>
#include <piper/cost/activation.h>
#include <piper/cost/grouped_choice.h>
#include <piper/nn/counting_allocator.h>
#include <piper/nn/experts_grouped.h>
#include <piper/nn/measured_bytes_test.h>

namespace piper::nn {
namespace {

const Rank kGroupedRank(11);
constexpr int64_t kExperts = 4, kHidden = 64, kFfn = 96, kRowsAnExpert = 50;

using testing::Measured;

template <class F>
Measured measure_grouped(F f) {
  return testing::measured_bytes(kGroupedRank, f);
}

struct Weights {
  Weight gate_up, down;
  ExpertsBlock block;
  Weights() {
    const auto random = [](at::IntArrayRef shape) { return at::randn(shape).to(at::kBFloat16); };
    gate_up.value = random({kExperts, 2 * kFfn, kHidden});
    down.value = random({kExperts, kHidden, kFfn});
    gate_up.gradient = at::zeros(gate_up.value.sizes());
    down.gradient = at::zeros(down.value.sizes());
    block = {.local_experts = kExperts, .gate_up = &gate_up, .down = &down};
  }
};

}  // namespace

TEST_CASE("one product for all experts keeps and needs what cost predicts") {
  install_counting_allocator();
  at::globalContext().setUserEnabledMkldnn(false);
  const AllocatingRank allocating(kGroupedRank);
  for (const int64_t peers : {1, 2}) {
    CAPTURE(peers);
    const int64_t rows = kExperts * kRowsAnExpert;
    model::Model model;
    model.hidden = kHidden;
    model.layers.resize(1);
    model.layers.front().feed_forward = {.ffn = kFfn, .num_experts = kExperts * peers, .top_k = 1};
    const cost::GroupedChoice always({{{.rows = 1, .hidden = 1, .ffn = 1, .experts = 1}, true}});
    const cost::SegmentWork work{.sequences = 1,
                                 .sequence = rows,
                                 .rows = rows,
                                 .received_rows = rows,
                                 .largest_expert_rows = kRowsAnExpert,
                                 .local_experts = kExperts,
                                 .element_bytes = 2,
                                 .grouped = &always};
    const cost::SegmentBytes of =
        cost::segment_bytes(model, {schedule::SegmentKind::kExperts, 0}, work);
    Routing routing;
    routing.received_counts.assign(static_cast<size_t>(kExperts * peers), kRowsAnExpert / peers);
    const at::Tensor x = at::randn({rows, kHidden}).to(at::kBFloat16), g = at::ones_like(x);
    const auto bytes = static_cast<int64_t>(x.nbytes());
    // The allocator rounds, and libtorch has small things of its own.
    const auto check = [](int64_t measured, int64_t predicted) {
      CHECK(static_cast<double>(measured) ==
            doctest::Approx(static_cast<double>(predicted)).epsilon(0.02));
    };
    for (const bool in_parts : {false, true}) {
      CAPTURE(in_parts);
      Weights weights;  // without gradients: to add, the CPU widens what is made
      Tape tape;
      at::Tensor out, gx;
      const Measured forward =
          measure_grouped([&] { out = grouped_forward(weights.block, x, routing, &tape); });
      check(forward.kept, bytes + of.tape);
      check(forward.peak, bytes + of.tape + of.forward_transient);
      ExpertsDeferred deferred;
      const auto input = [&] {
        gx = grouped_input_backward(weights.block, g, routing, tape, deferred);
      };
      const auto own = [&] { grouped_weights_backward(weights.block, g, x, routing, deferred); };
      if (in_parts) {
        const Measured first = measure_grouped(input), second = measure_grouped(own);
        check(of.tape + first.kept, bytes + of.tape + of.deferred);
        check(of.tape + first.peak, bytes + of.tape + of.deferred + of.input_transient);
        check(of.tape + second.peak, of.tape + of.weights_transient);
      } else {
        const Measured whole = measure_grouped([&] { input(), own(); });
        check(of.tape + whole.peak, bytes + of.tape + of.backward_transient);
      }
    }
  }
}

}  // namespace piper::nn
