// The gate segment beside a plain gate under autograd: both score functions, both drops, auxiliary
// loss and z-loss.
#include <doctest/doctest.h>
#include <piper/nn/gate.h>
#include <testing/nn/numbers.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace piper::nn {
namespace {

constexpr int64_t kGateSequences = 2, kGateSequence = 7, kGateHidden = 5, kGateExperts = 6,
                  kGateTopK = 3;

struct Setting {
  bool sigmoid = false, normalised = false;
  double auxiliary = 0, z_loss = 0;
  strategy::Capacity capacity;
};

struct Plain {
  at::Tensor rows, weights, token, expert;  // in dispatch order
  at::Tensor auxiliary, z_loss;
};

// How an expert prefers its tokens of a sequence, best first: 0 for a weight above the cut (the
// `most`-th largest), 1 within 2^-12 of it, 2 below; without weights all are alike.
std::vector<int> preferences(const std::vector<double>& weights, size_t most) {
  if (weights.size() <= most) return std::vector<int>(weights.size());
  std::vector<double> sorted = weights;
  std::sort(sorted.rbegin(), sorted.rend());
  const double cut = sorted[most - 1], tie = 1 + std::ldexp(1, -12);
  std::vector<int> out;
  for (const double w : weights) out.push_back(w > cut * tie ? 0 : w >= cut / tie ? 1 : 2);
  return out;
}

// Which of the chosen [T, E] are kept: each expert's tokens of a sequence in order of preference,
// cut off.
at::Tensor keep(const Setting& s, const at::Tensor& chosen, const at::Tensor& weights) {
  const at::Tensor kept = chosen.clone();
  if (s.capacity.factor == 0) return kept;
  const auto most = static_cast<size_t>(
      std::ceil(s.capacity.factor * kGateSequence * kGateTopK / static_cast<double>(kGateExperts)));
  for (int64_t b = 0; b < kGateSequences; ++b)
    for (int64_t e = 0; e < kGateExperts; ++e) {
      std::vector<int64_t> tokens;
      std::vector<double> of_tokens;
      for (int64_t t = b * kGateSequence; t < (b + 1) * kGateSequence; ++t)
        if (chosen[t][e].item<bool>()) {
          tokens.push_back(t);
          of_tokens.push_back(
              s.capacity.drop == strategy::Drop::kPosition ? 1 : weights[t][e].item<double>());
        }
      const std::vector<int> preference = preferences(of_tokens, most);
      std::vector<size_t> order(tokens.size());
      std::iota(order.begin(), order.end(), size_t{0});
      std::stable_sort(order.begin(), order.end(),
                       [&](size_t i, size_t j) { return preference[i] < preference[j]; });
      for (size_t i = most; i < order.size(); ++i) kept[tokens[order[i]]][e].fill_(false);
    }
  return kept;
}

Plain plain_gate(const Setting& s, const at::Tensor& x1, const at::Tensor& norm,
                 const at::Tensor& router) {
  const at::Tensor xn = norm * x1 * at::rsqrt(x1.square().mean(-1, true) + 1e-6);
  const at::Tensor logits = at::matmul(xn, router.t());
  const at::Tensor p = s.sigmoid ? at::sigmoid(logits) : at::softmax(logits, -1);
  const at::Tensor best = std::get<1>(at::topk(p.detach(), kGateTopK, -1));
  const at::Tensor chosen = at::zeros_like(p, at::kBool).scatter(1, best, true);
  at::Tensor weights = p * chosen;
  if (s.normalised) weights = weights / weights.sum(-1, true);
  weights = 1.5 * weights;
  const at::Tensor place =
      keep(s, chosen, weights.detach()).t().nonzero();  // by expert, then token
  Plain plain;
  plain.expert = place.select(1, 0);
  plain.token = place.select(1, 1);
  plain.rows = xn.index_select(0, plain.token);
  plain.weights = weights.index({plain.token, plain.expert});
  const at::Tensor share = p / p.sum(-1, true);
  const at::Tensor fraction =
      chosen.view({kGateSequences, kGateSequence, kGateExperts}).sum(1).to(at::kDouble) /
      static_cast<double>(kGateSequence * kGateTopK);
  const at::Tensor mean = share.view({kGateSequences, kGateSequence, kGateExperts}).mean(1);
  plain.auxiliary = s.auxiliary * static_cast<double>(kGateExperts) * (fraction * mean).sum();
  const at::Tensor lse = logits.exp().sum(-1).log();
  plain.z_loss = s.z_loss * lse.square().view({kGateSequences, kGateSequence}).mean(1).sum();
  return plain;
}

Weight weight_of(const at::Tensor& value) { return {value.clone(), at::zeros_like(value)}; }

struct Inputs {
  at::Tensor x1 = wave({kGateSequences * kGateSequence, kGateHidden}, 0),
             norm = wave({kGateHidden}, 1) + 3, router = wave({kGateExperts, kGateHidden}, 2);
};

GateBlock block_of(const Setting& s, Weight& norm, Weight& router) {
  return {.top_k = kGateTopK,
          .normalised = s.normalised,
          .sigmoid = s.sigmoid,
          .scaling = 1.5,
          .auxiliary = s.auxiliary,
          .z_loss = s.z_loss,
          .capacity = s.capacity,
          .norm = &norm,
          .router = &router};
}

// Returns how many copies were dropped.
int64_t check(const Setting& s) {
  const Inputs in;
  const at::Tensor x1 = in.x1.clone().set_requires_grad(true),
                   norm = in.norm.clone().set_requires_grad(true),
                   router = in.router.clone().set_requires_grad(true);
  const Plain plain = plain_gate(s, x1, norm, router);
  const at::Tensor g_rows = wave(plain.rows.sizes(), 3), g_weights = wave(plain.weights.sizes(), 4),
                   g_x1 = wave(in.x1.sizes(), 5);
  ((plain.rows * g_rows).sum() + (plain.weights * g_weights).sum() + (x1 * g_x1).sum() +
   plain.auxiliary + plain.z_loss)
      .backward();

  Weight norm_weight = weight_of(in.norm), router_weight = weight_of(in.router);
  GateBlock block = block_of(s, norm_weight, router_weight);
  Routing routing;
  Tape tape;
  const GateOutput out = gate_forward(block, in.x1, {}, kGateSequence, {&routing, 1}, &tape);
  CHECK(at::equal(routing.token.to(at::kLong), plain.token));
  CHECK(difference(out.rows.front(), plain.rows.detach()) < 1e-12);
  CHECK(difference(routing.weights, plain.weights.detach()) < 1e-12);
  CHECK(out.auxiliary_loss.read() ==
        doctest::Approx(plain.auxiliary.item<double>()).epsilon(1e-12));
  CHECK(out.z_loss.read() == doctest::Approx(plain.z_loss.item<double>()).epsilon(1e-12));
  const at::Tensor g =
      gate_backward(block, {g_rows}, {g_weights}, g_x1, in.x1, {&routing}, tape).x1;
  CHECK(difference(g, x1.grad()) < 1e-9);
  CHECK(difference(norm_weight.gradient, norm.grad()) < 1e-9);
  CHECK(difference(router_weight.gradient, router.grad()) < 1e-9);
  const auto kept = std::accumulate(routing.counts.begin(), routing.counts.end(), int64_t{0});
  const auto chosen = std::accumulate(out.chosen.begin(), out.chosen.end(), int64_t{0});
  CHECK(chosen == kGateSequences * kGateSequence * kGateTopK);
  CHECK(routing.position.ge(0).sum().item<int64_t>() == kept);
  return chosen - kept;
}

TEST_CASE("the gate equals autograd of a plain one, whatever its scores, drops and losses") {
  for (const bool sigmoid : {false, true})
    for (const bool normalised : {false, true})
      for (const double z_loss : {0.0, 0.3})
        for (const double factor : {0.0, 0.5, 1.0, 2.0})
          for (const auto drop : {strategy::Drop::kProbability, strategy::Drop::kPosition}) {
            CAPTURE(sigmoid);
            CAPTURE(normalised);
            CAPTURE(z_loss);
            CAPTURE(factor);
            INFO(std::string(strategy::name(drop)));
            const int64_t dropped =
                check({sigmoid, normalised, 0.7, z_loss, {.factor = factor, .drop = drop}});
            // Twice the even share is the whole sequence: 7 of 7 tokens.
            CHECK((dropped > 0) == (factor == 0.5 || factor == 1.0));
          }
}

TEST_CASE("sigmoid scores that round to 1 keep the z-loss's gradient") {
  Inputs in;
  Setting s{.sigmoid = true, .z_loss = 0.3};
  in.router.select(0, 2).copy_(wave({kGateHidden}, 0) *
                               1e3);  // of some tokens a logit in the thousands
  Weight norm = weight_of(in.norm), router = weight_of(in.router);
  GateBlock block = block_of(s, norm, router);
  Routing routing;
  Tape tape;
  const GateOutput out = gate_forward(block, in.x1, {}, kGateSequence, {&routing, 1}, &tape);
  gate_backward(block, {at::zeros_like(out.rows.front())}, {at::zeros_like(routing.weights)},
                at::zeros_like(in.x1), in.x1, {&routing}, tape);
  const at::Tensor leaf = in.router.clone().set_requires_grad(true);
  const at::Tensor xn = in.norm * in.x1 * at::rsqrt(in.x1.square().mean(-1, true) + 1e-6);
  const at::Tensor loss =
      0.3 / kGateSequence * at::logsumexp(at::matmul(xn, leaf.t()), -1).square().sum();
  loss.backward();
  CHECK(out.z_loss.read() == doctest::Approx(loss.item<double>()));
  CHECK(difference(router.gradient, leaf.grad()) < 1e-9 * leaf.grad().abs().max().item<double>());
}

TEST_CASE("without a tape the rows and what is dropped are the same, and nothing is counted") {
  for (const bool sigmoid : {false, true}) {
    const Inputs in;
    const Setting s{
        .sigmoid = sigmoid, .auxiliary = 0.7, .z_loss = 0.3, .capacity = {.factor = 0.5}};
    Weight norm = weight_of(in.norm), router = weight_of(in.router);
    GateBlock block = block_of(s, norm, router);
    Routing first, again;
    Tape tape;
    const GateOutput without = gate_forward(block, in.x1, {}, kGateSequence, {&first, 1}, nullptr),
                     with = gate_forward(block, in.x1, {}, kGateSequence, {&again, 1}, &tape);
    CHECK(at::equal(without.rows.front(), with.rows.front()));
    CHECK(at::equal(first.position, again.position));
    CHECK(at::equal(first.weights, again.weights));
    CHECK(first.counts == again.counts);
    CHECK(without.z_loss.read() == 0);
    CHECK(without.auxiliary_loss.read() == 0);
    CHECK(with.z_loss.read() > 0);
  }
}

}  // namespace
}  // namespace piper::nn
