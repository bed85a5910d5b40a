// Seconds of a part of a layer, forward and backward, as its products, attention and passes over
// elements are added one by one. What layer_price.cpp is written with. A value of one thread;
// `rates` outlives it.
#pragma once

#include <piper/cost/trainer/rates.h>
#include <piper/strategy/strategy.h>

#include <cstdint>

namespace piper::cost {

inline constexpr double kElement = 2;  // bytes of an activation: bf16 under every trainer here

class LayerPass {
 public:
  LayerPass(const Rates& rates, strategy::Precision precision)
      : rates_(rates), converts_(converts_operands(precision)) {}

  // y = x w, `count` of them: one product forward, two backward. `converted`: x comes in the bits
  // of the product.
  void linear(double m, double n, double k, double count = 1, double efficiency = 1,
              bool converted = false) {
    const double forward = count * rates_.product_seconds(m, n, k) / efficiency;
    const double input = count * rates_.product_seconds(m, k, n) / efficiency;
    const double weights = count * rates_.product_seconds(n, k, m) / efficiency;
    forward_ += forward;
    backward_ += input + weights;
    weights_ += weights;
    if (!converts_) return;
    // Operands go to fewer bits, in both layouts: read 2 bytes, write 1 twice.
    const double in = 4 * m * k * count, out = 4 * m * n * count;
    if (!converted) forward_ += rates_.pass_seconds(in);
    backward_ += rates_.pass_seconds(out);
  }
  void attention(double flops, double sequence, double head_dim) {
    forward_ += rates_.attention_seconds(flops, sequence, head_dim, false);
    backward_ += rates_.attention_seconds(2 * flops, sequence, head_dim, true);
  }
  // Elements that a kernel of the forward (backward) reads or writes, in all.
  void elements(double forward, double backward, double kernels = 1) {
    forward_ += rates_.pass_seconds(forward * kElement) + (kernels - 1) * launch(forward);
    backward_ += rates_.pass_seconds(backward * kElement) + (kernels - 1) * launch(backward);
  }
  // `count` nets of `rows` rows each: both products (three matrices: the first is twice as wide)
  // and the activation between them.
  void feed_forward(double rows, double hidden, double ffn, int64_t matrices, double count = 1,
                    double efficiency = 1, bool converted = false) {
    const double up = matrices == 3 ? 2 : 1;
    linear(rows, up * ffn, hidden, count, efficiency, converted);
    linear(rows, hidden, ffn, count, efficiency);
    elements((up + 1) * rows * count * ffn, (2 * up + 1) * rows * count * ffn);
  }
  double forward() const { return forward_; }
  double backward() const { return backward_; }
  double weights() const { return weights_; }

 private:
  double launch(double elements) const { return elements > 0 ? rates_.launch_seconds() : 0; }
  const Rates& rates_;
  bool converts_;
  double forward_ = 0, backward_ = 0, weights_ = 0;
};

}  // namespace piper::cost
