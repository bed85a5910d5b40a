// Legend: stage.h.
#include <ATen/core/LegacyTypeDispatch.h>
#include <bench/stage.h>
#include <fmt/format.h>
#include <piper/nn/parameters.h>
#include <piper/nn/product.h>

#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

namespace piper::nn {
namespace {

using NoAutograd = at::AutoDispatchBelowADInplaceOrView;

// out := beta out + a b by libtorch: the other way beside product_out().
void multiply_aten(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, double beta) {
  at::Tensor to = out;
  if (beta == 0)
    at::mm_out(to, a, b);
  else
    to.addmm_(a, b, beta);
}

class LinearStage final : public BenchStage {
 public:
  explicit LinearStage(const LinearStageShape& shape) : shape_(shape) {
    for (const int32_t layer : shape.layers)
      for (const int32_t i : {2 * layer, 2 * layer + 1}) {
        at_[i] = store_.add({.name = fmt::format("linear.{}", i),
                             .shape = {shape.hidden, shape.hidden},
                             .layer = layer});
        weights_.push_back(at_[i]);
      }
    store_.allocate(at::kFloat, at::kCPU);
    // Activations keep their size from layer to layer.
    store_.initialise(shape.seed, 1 / std::sqrt(static_cast<double>(shape.hidden)));
  }

  at::Tensor attention_forward(int32_t layer, const at::Tensor& x_TD, int64_t, Tape*) override {
    return forward(2 * layer, x_TD);
  }
  at::Tensor attention_backward(int32_t layer, const at::Tensor& gx1_TD, const at::Tensor& x_TD,
                                const at::Tensor&, int64_t, Tape& tape) override {
    return backward(2 * layer, gx1_TD, x_TD, tape);
  }
  at::Tensor dense_mlp_forward(int32_t layer, const at::Tensor& x1_TD, Tape*) override {
    return forward(2 * layer + 1, x1_TD);
  }
  at::Tensor dense_mlp_backward(int32_t layer, const at::Tensor& gx_TD, const at::Tensor& x1_TD,
                                Tape& tape) override {
    return backward(2 * layer + 1, gx_TD, x1_TD, tape);
  }

  void head_forward(const at::Tensor& x_TD, const at::Tensor& target_TD, Tape* tape) override {
    const NoAutograd guard;
    const at::Tensor difference_TD = x_TD - target_TD;
    const at::Tensor flat = difference_TD.view({-1});
    loss_ += at::dot(flat, flat).item<double>() / num_compared();
    tape->saved = {difference_TD};
  }
  at::Tensor head_backward(const at::Tensor&, const at::Tensor&, Tape& tape) override {
    const NoAutograd guard;
    at::Tensor g_TD = std::move(tape.saved.at(0));
    tape.saved.clear();
    return g_TD.mul_(2 / num_compared());
  }

  std::vector<Parameter>& parameters() override {
    store_.settle();
    return store_.parameters();
  }
  void zero_gradients() override { store_.reset(); }
  void weights_backward(Tape& tape) override {
    const NoAutograd guard;
    run_deferred(tape);
  }
  double take_loss() override { return std::exchange(loss_, 0); }

  void run_products() override {
    const NoAutograd guard;
    if (!x_.defined()) choose_way();
    products(multiply_);
  }

 private:
  using Multiply = void (*)(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b,
                            double beta);

  double num_compared() const {
    return static_cast<double>(shape_.rows * shape_.hidden * shape_.num_micro_batches);
  }
  Weight& at(int64_t index) { return *at_.at(index); }

  at::Tensor forward(int64_t index, const at::Tensor& x_TD) {
    const NoAutograd guard;
    return product(x_TD, at(index).value.t());
  }
  at::Tensor backward(int64_t index, const at::Tensor& g_TD, const at::Tensor& x_TD, Tape& tape) {
    const NoAutograd guard;
    Weight& weight = at(index);
    tape.weights_part(
        [&weight, g_TD, x_TD] { accumulate(weight.gradient, weight.beta(), g_TD, x_TD); });
    return index == 0 ? at::Tensor() : product(g_TD, weight.value);
  }

  void products(Multiply multiply) {
    for (Weight* weight : weights_) multiply(y_, x_, weight->value.t(), 0);
    for (auto weight = at_.rbegin(); weight != at_.rend(); ++weight) {
      multiply(weight->second->gradient, y_.t(), x_, 1);
      if (weight->first > 0) multiply(g_, y_, weight->second->value, 0);
    }
  }
  void choose_way() {
    x_ = at::rand({shape_.rows, shape_.hidden}) - 0.5;
    y_ = at::rand_like(x_) - 0.5;
    g_ = at::empty_like(x_);
    double best = std::numeric_limits<double>::infinity();
    for (const Multiply way : {&product_out, &multiply_aten}) {
      products(way);
      const auto start = std::chrono::steady_clock::now();
      for (int round = 0; round < 3; ++round) products(way);
      const double seconds =
          std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      if (seconds < best) multiply_ = way;
      best = std::min(best, seconds);
    }
  }

  const LinearStageShape shape_;
  ParameterStore store_;
  std::vector<Weight*> weights_;
  std::map<int64_t, Weight*> at_;  // by index among all linear layers
  double loss_ = 0;
  at::Tensor x_, y_, g_;  // of the products alone, [T, D]
  Multiply multiply_ = &product_out;
};

}  // namespace

std::unique_ptr<BenchStage> make_linear_stage(const LinearStageShape& shape) {
  return std::make_unique<LinearStage>(shape);
}

}  // namespace piper::nn
