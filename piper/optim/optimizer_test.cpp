#include <doctest/doctest.h>
#include <piper/optim/optimizer.h>

#include <cmath>

namespace piper::optim {
namespace {

nn::Parameter parameter(const std::string& name, at::Tensor value, bool decays = true) {
  return {.name = name, .value = value, .gradient = at::zeros_like(value), .decays = decays};
}

// torch.optim.AdamW's documentation, written out with fresh tensors.
struct Reference {
  at::Tensor w, m, v;
  int64_t t = 0;

  void step(const at::Tensor& g, double lr, const AdamWOptions& o, double decay) {
    ++t;
    w = w - lr * decay * w;
    m = o.beta1 * m + (1 - o.beta1) * g;
    v = o.beta2 * v + (1 - o.beta2) * g * g;
    const at::Tensor m_hat = m / (1 - std::pow(o.beta1, t)), v_hat = v / (1 - std::pow(o.beta2, t));
    w = w - lr * m_hat / (v_hat.sqrt() + o.epsilon);
  }
};

void compare(at::Tensor value, double tolerance) {
  at::manual_seed(7);
  const AdamWOptions options{.beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0.1};
  for (const bool decays : {true, false}) {
    at::Tensor w = value.clone();
    if (!value.is_contiguous())
      w = at::empty_strided(value.sizes(), value.strides(), value.options()).copy_(value);
    const std::vector<nn::Parameter> parameters = {parameter("w", w, decays)};
    AdamW optimizer(parameters, options);
    Reference reference{.w = value.clone(), .m = at::zeros_like(value), .v = at::zeros_like(value)};
    for (int step = 1; step <= 10; ++step) {
      const at::Tensor g = at::randn(value.sizes(), value.options());
      parameters[0].gradient.copy_(g);
      optimizer.step(0.01 * step, 0.5);
      reference.step(0.5 * g, 0.01 * step, options, decays ? options.weight_decay : 0);
      CHECK(at::equal(parameters[0].gradient, g));  // the clip scale leaves it alone
    }
    CHECK((w - reference.w).abs().max().item<double>() < tolerance);
    CHECK((w - value).abs().max().item<double>() > 0.01);  // it did move
    CHECK(optimizer.num_steps() == 10);
  }
}

TEST_CASE(
    "ten steps equal torch's AdamW formula, in float and double, contiguous or strided, odd "
    "sizes") {
  at::manual_seed(1);
  compare(at::randn({7, 13}, at::kDouble), 1e-14);
  compare(at::randn({1}, at::kDouble), 1e-14);
  compare(at::randn({7, 13}, at::kFloat), 2e-6);
  compare(at::randn({7, 13}, at::kDouble).t(), 1e-14);
}

TEST_CASE("the first step moves each weight by the learning rate against the gradient's sign") {
  // t = 1: m_hat = g, v_hat = g^2, so w -= lr * g / (|g| + eps): +-lr, after w *= 1 - lr * decay.
  const std::vector<nn::Parameter> parameters = {
      parameter("w", at::tensor({1.0, -2.0, 3.0}, at::kDouble))};
  parameters[0].gradient.copy_(at::tensor({5.0, -0.1, 2.0}, at::kDouble));
  AdamW optimizer(parameters, {.weight_decay = 0.5});
  optimizer.step(0.1);
  const at::Tensor expected = at::tensor({0.95 - 0.1, -1.9 + 0.1, 2.85 - 0.1}, at::kDouble);
  CHECK(at::allclose(parameters[0].value, expected, 1e-6, 1e-6));
}

TEST_CASE("a restored optimizer goes on bit by bit") {
  at::manual_seed(3);
  const at::Tensor start = at::randn({33}), g1 = at::randn({33}), g2 = at::randn({33});
  const std::vector<nn::Parameter> a = {parameter("w", start.clone())},
                                   b = {parameter("w", at::zeros({33}))};
  AdamW first(a, {}), second(b, {});
  a[0].gradient.copy_(g1);
  first.step(0.1);
  b[0].value.copy_(a[0].value);
  const auto saved = first.state(), restored = second.state();
  REQUIRE(saved.size() == 3);
  for (size_t i = 0; i < saved.size(); ++i) {
    CHECK(saved[i].name == restored[i].name);
    restored[i].value.copy_(saved[i].value);
  }
  for (const auto* parameters : {&a, &b}) (*parameters)[0].gradient.copy_(g2);
  first.step(0.1);
  second.step(0.1);
  CHECK(at::equal(a[0].value, b[0].value));
  CHECK(second.num_steps() == 2);
}

TEST_CASE("the sum of squares counts what it is told to, in double, and shows what is not finite") {
  std::vector<nn::Parameter> parameters = {parameter("a", at::zeros({19})),
                                           parameter("b", at::zeros({3, 5}, at::kDouble))};
  parameters[0].gradient.fill_(2.0);
  parameters[1].gradient = at::arange(15, at::kDouble).view({5, 3}).t();  // 0^2 + ... + 14^2 = 1015
  const std::vector<ParameterShare> all = all_shares(parameters);
  CHECK(sum_of_squares(parameters, all) == 19 * 4 + 1015);
  CHECK(sum_of_squares(parameters, {{1, 0, 15}}) == 1015);
  CHECK(sum_of_squares(parameters, {{0, 3, 5}, {1, 13, 15}}) == 2 * 4 + 11 * 11 + 14 * 14);
  // 1e20 squared overflows a float, not the sum; 1 + 1e-8 would be lost in one.
  parameters[0].gradient.fill_(1e20);
  CHECK(sum_of_squares(parameters, all) == doctest::Approx(19e40));
  parameters[0].gradient[3] = std::nan("");
  CHECK(std::isnan(sum_of_squares(parameters, all)));
}

TEST_CASE("clipping scales a long gradient to the maximum norm and leaves a short one") {
  CHECK(clip_scale(0.5, 1.0) == 1.0);
  CHECK(clip_scale(4.0, 1.0) == doctest::Approx(0.25));
  CHECK(clip_scale(4.0, 0.0) == 1.0);
}

TEST_CASE("bf16 parameters follow fp32 masters, which steps too small for bf16 still move") {
  at::manual_seed(3);
  const at::Tensor value = at::randn({300}).to(at::kBFloat16), wide = value.to(at::kFloat);
  nn::Parameter narrow{.name = "w", .value = value, .gradient = at::zeros({300}), .decays = true};
  nn::Parameter plain = parameter("w", wide);
  AdamW of_narrow({narrow}, {}), of_plain({plain}, {});
  for (int step = 0; step < 50; ++step) {
    const at::Tensor g = at::randn({300}) + 0.5;
    narrow.gradient.copy_(g);
    plain.gradient.copy_(g);
    of_narrow.step(1e-5);
    of_plain.step(1e-5);
  }
  const std::vector<nn::NamedTensor> state = of_narrow.state();
  CHECK(state.at(2).name == "master/w");
  CHECK(at::equal(state.at(2).value, plain.value));
  CHECK(at::equal(value, plain.value.to(at::kBFloat16)));
  CHECK(of_plain.state().size() == 3);  // no master of what is its own
}

}  // namespace
}  // namespace piper::optim
