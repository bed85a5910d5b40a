#include <bench/moe_products.h>
#include <piper/nn/product.h>
#include <piper/nn/product_onednn.h>

#include <numeric>

namespace piper::nn {
namespace {

// out := a b.
void multiply_here(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b) {
  product_out(out, a, b);
}

void multiply_libtorch(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b) {
  at::Tensor to = out;
  at::mm_out(to, a, b);
}

}  // namespace

std::vector<MoeGemms> ways_to_multiply() {
  std::vector<MoeGemms> ways{{false, false}, {true, false}};
  if (has_onednn()) ways.insert(ways.end(), {{false, true}, {true, true}});
  return ways;
}

MoeProducts::MoeProducts(const MoeProductsShape& shape) : shape_(shape) {
  const int64_t r = std::accumulate(shape.rows.begin(), shape.rows.end(), int64_t{0}),
                e = std::ssize(shape.rows), d = shape.hidden, f = shape.ffn;
  const auto uniform = [&](at::IntArrayRef sizes) {
    return (at::rand(sizes, shape.options.dtype(at::kFloat)) - 0.5).to(shape.options);
  };
  x_ = uniform({shape.tokens, d});
  gx_ = uniform({shape.tokens, d});
  logits_ = uniform({shape.tokens, shape.num_experts});
  router_ = uniform({shape.num_experts, d});
  rows_ = uniform({r, d});
  h_ = uniform({r, 2 * f});
  act_ = uniform({r, f});
  out_ = uniform({r, d});
  up_ = uniform({e, 2 * f, d});
  down_ = uniform({e, d, f});
  up_t_ = up_.transpose(1, 2).contiguous();
  down_t_ = down_.transpose(1, 2).contiguous();
  g_router_ = router_.clone();
  g_up_ = up_.clone();
  g_down_ = down_.clone();
  g_up_t_ = up_t_.clone();
  g_down_t_ = down_t_.clone();
}

void MoeProducts::run(const MoeGemms& how) {
  const Multiply multiply = how.libtorch ? multiply_libtorch : multiply_here;
  multiply(logits_, x_, router_.t());
  multiply(g_router_, logits_.t(), x_);
  multiply(gx_, logits_, router_);
  int64_t row = 0;
  for (int64_t e = 0; e < std::ssize(shape_.rows); ++e) {
    const int64_t n = shape_.rows[static_cast<size_t>(e)];
    if (n > 0) expert_products(multiply, e, row, n, how.transposed);
    row += n;
  }
}

void MoeProducts::expert_products(Multiply multiply, int64_t expert, int64_t start, int64_t n,
                                  bool transposed) {
  at::Tensor x_e = rows_.narrow(0, start, n), h_e = h_.narrow(0, start, n),
             a_e = act_.narrow(0, start, n);
  at::Tensor o_e = out_.narrow(0, start, n);
  // Each weight as [out, in], whatever its layout.
  const at::Tensor w_up = transposed ? up_t_.select(0, expert).t() : up_.select(0, expert);
  const at::Tensor w_down = transposed ? down_t_.select(0, expert).t() : down_.select(0, expert);
  multiply(h_e, x_e, w_up.t());
  multiply(o_e, a_e, w_down.t());
  multiply(a_e, o_e, w_down);
  multiply(x_e, h_e, w_up);
  at::Tensor gw_down = (transposed ? g_down_t_ : g_down_).select(0, expert);
  at::Tensor gw_up = (transposed ? g_up_t_ : g_up_).select(0, expert);
  if (transposed) {
    multiply(gw_down, a_e.t(), o_e);
    multiply(gw_up, x_e.t(), h_e);
  } else {
    multiply(gw_down, o_e.t(), a_e);
    multiply(gw_up, h_e.t(), x_e);
  }
}

double MoeProducts::flops() const {
  const auto product = [](int64_t m, int64_t n, int64_t k) {
    return 2.0 * static_cast<double>(m * n * k);
  };
  const int64_t r = std::accumulate(shape_.rows.begin(), shape_.rows.end(), int64_t{0});
  return 3 * (product(shape_.tokens, shape_.num_experts, shape_.hidden) +
              product(r, 3 * shape_.ffn, shape_.hidden));
}

}  // namespace piper::nn
