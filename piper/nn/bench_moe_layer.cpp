#include <ATen/ATen.h>
#include <piper/nn/bench_moe_layer.h>
#include <piper/nn/product.h>
#include <piper/nn/stage.h>

#include <algorithm>
#include <ctime>
#include <limits>

namespace piper::nn {
namespace {

// Of this thread; every product and kernel runs on it.
double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

model::Model one_layer(const MoeLayerShape& shape) {
  model::Model m;
  m.name = "bench";
  m.hidden = shape.hidden;
  m.vocabulary = 8;
  model::Layer layer;
  layer.attention = {.num_heads = 1, .num_kv_heads = 1, .head_dim = 8};
  layer.feed_forward = {.ffn = shape.ffn, .num_experts = shape.num_experts, .top_k = shape.top_k};
  layer.feed_forward.normalise_top_k = true;
  m.layers = {layer};
  return m;
}

std::unique_ptr<Stage> stage_of(const MoeLayerShape& shape) {
  const model::Model model = one_layer(shape);
  strategy::Strategy strategy;
  strategy.layers_per_stage = {1};
  strategy.sequence = shape.tokens;
  return make_stage(model, strategy, Rank(0), {.seed = 1});
}

// out := a b.
using Multiply = void (*)(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b);

void multiply_here(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b) {
  product_out(out, a, b);
}

void multiply_aten(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b) {
  at::Tensor to = out;
  at::mm_out(to, a, b);
}

at::Tensor uniform(at::IntArrayRef shape) { return at::rand(shape, at::kFloat) - 0.5; }

}  // namespace

struct MoeLayerBench::Buffers {
  MoeLayerShape shape;
  std::unique_ptr<Stage> stage;
  at::Tensor x, gx;
  std::vector<int64_t> counts;
  // The products' operands and results; weights (and their gradients) in both layouts.
  at::Tensor rows, h, act, out, logits;
  at::Tensor up, down, router, up_t, down_t;  // [E, 2F, D], [E, D, F], [E, D]; transposed
  at::Tensor g_up, g_down, g_router, g_up_t, g_down_t;

  void make_products();
  void router_products(Multiply multiply);
  void expert_products(Multiply multiply, int64_t expert, int64_t start, int64_t n,
                       bool transposed);
};

void MoeLayerBench::Buffers::make_products() {
  const int64_t r = shape.tokens * shape.top_k, e = shape.num_experts, d = shape.hidden,
                f = shape.ffn;
  rows = uniform({r, d});
  h = uniform({r, 2 * f});
  act = uniform({r, f});
  out = uniform({r, d});
  logits = uniform({shape.tokens, e});
  up = uniform({e, 2 * f, d});
  down = uniform({e, d, f});
  router = uniform({e, d});
  up_t = up.transpose(1, 2).contiguous();
  down_t = down.transpose(1, 2).contiguous();
  g_up = up.clone();
  g_down = down.clone();
  g_router = router.clone();
  g_up_t = up_t.clone();
  g_down_t = down_t.clone();
}

void MoeLayerBench::Buffers::router_products(Multiply multiply) {
  multiply(logits, x, router.t());
  multiply(g_router, logits.t(), x);
  multiply(gx, logits, router);
}

void MoeLayerBench::Buffers::expert_products(Multiply multiply, int64_t expert, int64_t start,
                                             int64_t n, bool transposed) {
  at::Tensor x_e = rows.narrow(0, start, n), h_e = h.narrow(0, start, n),
             a_e = act.narrow(0, start, n);
  at::Tensor o_e = out.narrow(0, start, n);
  // Each weight as [out, in], whatever its layout.
  const at::Tensor w_up = transposed ? up_t.select(0, expert).t() : up.select(0, expert);
  const at::Tensor w_down = transposed ? down_t.select(0, expert).t() : down.select(0, expert);
  multiply(h_e, x_e, w_up.t());
  multiply(o_e, a_e, w_down.t());
  multiply(a_e, o_e, w_down);
  multiply(x_e, h_e, w_up);
  at::Tensor gw_down = (transposed ? g_down_t : g_down).select(0, expert);
  at::Tensor gw_up = (transposed ? g_up_t : g_up).select(0, expert);
  if (transposed) {
    multiply(gw_down, a_e.t(), o_e);
    multiply(gw_up, x_e.t(), h_e);
  } else {
    multiply(gw_down, o_e.t(), a_e);
    multiply(gw_up, h_e.t(), x_e);
  }
}

MoeLayerBench::MoeLayerBench(const MoeLayerShape& shape) : buffers_(std::make_unique<Buffers>()) {
  Buffers& b = *buffers_;
  b.shape = shape;
  b.stage = stage_of(shape);
  b.x = uniform({shape.tokens, shape.hidden});
  b.gx = uniform({shape.tokens, shape.hidden});
  Routing routing;
  b.stage->gate_forward(0, b.x, shape.tokens, routing, nullptr);
  b.counts = routing.counts;
  b.make_products();
}

MoeLayerBench::~MoeLayerBench() = default;

double MoeLayerBench::run_layer() {
  Buffers& b = *buffers_;
  b.stage->zero_gradients();
  const double start = processor_seconds();
  Routing routing;
  Tape gate_tape, experts_tape;
  at::Tensor rows = b.stage->gate_forward(0, b.x, b.shape.tokens, routing, &gate_tape);
  at::Tensor returned = b.stage->experts_forward(0, rows, routing, &experts_tape);
  at::Tensor x = b.stage->merge_forward(0, returned, routing, b.x);
  x.reset();
  Stage::MergeGradients g = b.stage->merge_backward(0, b.gx, returned, routing);
  returned.reset();
  at::Tensor g_rows = b.stage->experts_backward(0, g.returned, rows, routing, experts_tape);
  g.returned.reset();
  rows.reset();
  const at::Tensor gx = b.stage->gate_backward(0, g_rows, g.weights, b.gx, b.x, routing, gate_tape);
  return processor_seconds() - start;
}

double MoeLayerBench::run_gemms(const MoeGemms& how) {
  Buffers& b = *buffers_;
  const Multiply multiply = how.libtorch ? multiply_aten : multiply_here;
  const double start = processor_seconds();
  b.router_products(multiply);
  int64_t row = 0;
  for (int64_t e = 0; e < b.shape.num_experts; ++e) {
    const int64_t n = b.counts[static_cast<size_t>(e)];
    if (n > 0) b.expert_products(multiply, e, row, n, how.transposed);
    row += n;
  }
  return processor_seconds() - start;
}

double MoeLayerBench::flops() const {
  const MoeLayerShape& s = buffers_->shape;
  const auto product = [](int64_t m, int64_t n, int64_t k) {
    return 2.0 * static_cast<double>(m * n * k);
  };
  return 3 * (product(s.tokens, s.num_experts, s.hidden) +
              product(s.tokens * s.top_k, 3 * s.ffn, s.hidden));
}

MoeLayerTimes bench_moe_layer(const MoeLayerShape& shape, int64_t rounds) {
  MoeLayerBench bench(shape);
  bench.run_layer();
  std::vector<MoeGemms> ways{{false, false}, {true, false}};
  if (uses_onednn()) ways.insert(ways.end(), {{false, true}, {true, true}});
  for (const MoeGemms& way : ways) bench.run_gemms(way);
  std::vector<double> layer, ratio;
  std::vector<std::vector<double>> gemms(ways.size());
  for (int64_t i = 0; i < rounds; ++i) {
    layer.push_back(bench.run_layer());
    double fastest = std::numeric_limits<double>::infinity();
    for (size_t w = 0; w < ways.size(); ++w) {
      gemms[w].push_back(bench.run_gemms(ways[w]));
      fastest = std::min(fastest, gemms[w].back());
    }
    ratio.push_back(layer.back() / fastest);
  }
  double fastest = std::numeric_limits<double>::infinity();
  for (const std::vector<double>& of_way : gemms) fastest = std::min(fastest, median(of_way));
  return {.layer_seconds = median(layer),
          .gemm_seconds = fastest,
          .ratio = median(ratio),
          .flops = bench.flops()};
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

}  // namespace piper::nn
