#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/nn/experts_tokens.h>
#include <piper/nn/token_routes.h>

namespace piper::nn {
namespace {

constexpr int64_t kTokenExperts = 3, kTokenHidden = 5, kTokenFfn = 4;

struct TokenWeights {
  Weight gate_up, down;
  ExpertsBlock block;
  TokenWeights() {
    const auto random = [](at::IntArrayRef shape) { return at::randn(shape, at::kDouble); };
    gate_up.value = random({kTokenExperts, 2 * kTokenFfn, kTokenHidden});
    down.value = random({kTokenExperts, kTokenHidden, kTokenFfn});
    gate_up.gradient = at::zeros_like(gate_up.value);
    down.gradient = at::zeros_like(down.value);
    block = {.local_experts = kTokenExperts, .gate_up = &gate_up, .down = &down};
  }
};

// From two peers: tokens 0, 1 and 2; the first wants experts 0 and 2, the second 2, the third 1 and
// 2.
Routing some_routing() {
  Routing routing;
  routing.deduplicated = true;
  routing.received_counts = {1, 0, 2, 0, 1, 1};
  routing.received_row = at::tensor({0, 0, 1, 2, 2}, at::kInt);
  routing.received_position = copies_of_rows(routing.received_row, 3, 2);
  routing.received_weights = at::tensor({0.3, 0.7, 1.5, 0.25, -0.5}, at::kDouble);
  routing.g_received_weights = at::empty_like(routing.received_weights);
  return routing;
}

at::Tensor one_expert(const TokenWeights& w, int64_t expert, const at::Tensor& x_D) {
  const at::Tensor h = at::mv(w.gate_up.value[expert], x_D);
  return at::mv(w.down.value[expert], at::silu(h.slice(0, 0, kTokenFfn)) * h.slice(0, kTokenFfn));
}

double loss(const TokenWeights& w, const at::Tensor& x_UD, const at::Tensor& weights,
            const at::Tensor& seed_UD) {
  const int64_t expert[] = {0, 2, 2, 1, 2}, row[] = {0, 0, 1, 2, 2};
  double sum = 0;
  for (int64_t i = 0; i < 5; ++i)
    sum +=
        (weights[i] * one_expert(w, expert[i], x_UD[row[i]])).dot(seed_UD[row[i]]).item<double>();
  return sum;
}

TEST_CASE("rows find their copies, ascending") {
  const at::Tensor position = some_routing().received_position;
  CHECK(at::equal(position, at::tensor({0, 1, 2, -1, 3, 4}, at::kInt).view({3, 2})));
  CHECK_THROWS_AS(copies_of_rows(at::tensor({0, 0, 0}, at::kInt), 1, 2), InternalError);
}

TEST_CASE("tokens come back as the weighted sum of their experts, and gradients are its slopes") {
  at::manual_seed(3);
  TokenWeights w;
  const Routing routing = some_routing();
  at::Tensor x_UD = at::randn({3, kTokenHidden}, at::kDouble);
  const at::Tensor seed_UD = at::randn({3, kTokenHidden}, at::kDouble);
  Tape tape;
  const at::Tensor out_UD = token_experts_forward(w.block, x_UD, routing, &tape);
  CHECK((out_UD * seed_UD).sum().item<double>() ==
        doctest::Approx(loss(w, x_UD, routing.received_weights, seed_UD)).epsilon(1e-12));
  const at::Tensor gx_UD = token_experts_backward(w.block, seed_UD, x_UD, routing, tape);
  CHECK(tape.saved.empty());

  // Central differences of one number at a time.
  const auto slope = [&](at::Tensor of, int64_t i) {
    constexpr double kStep = 1e-6;
    double* value = of.view({-1}).data_ptr<double>() + i;
    const double before = *value;
    *value = before + kStep;
    const double up = loss(w, x_UD, routing.received_weights, seed_UD);
    *value = before - kStep;
    const double down = loss(w, x_UD, routing.received_weights, seed_UD);
    *value = before;
    return (up - down) / (2 * kStep);
  };
  const auto check = [&](const at::Tensor& of, const at::Tensor& gradient) {
    for (int64_t i = 0; i < of.numel(); ++i)
      CHECK(slope(of, i) ==
            doctest::Approx(gradient.reshape({-1})[i].item<double>()).epsilon(1e-5));
  };
  check(x_UD, gx_UD);
  check(routing.received_weights, routing.g_received_weights);
  check(w.gate_up.value, w.gate_up.gradient);
  check(w.down.value, w.down.gradient);
}

TEST_CASE("a routing's tokens list their experts ascending, without what was dropped") {
  Routing routing;
  routing.counts = {1, 0, 2};
  routing.token = at::tensor({2, 0, 2}, at::kInt);
  routing.position = at::tensor({1, -1, -1, -1, 2, 0}, at::kInt).view({3, 2});
  const collective::TokenRoutes routes = chosen_experts(routing);
  CHECK(routes.first == std::vector<int32_t>{0, 1, 1, 3});
  CHECK(routes.targets == std::vector<int32_t>{2, 0, 2});
}

}  // namespace
}  // namespace piper::nn
