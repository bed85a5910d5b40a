#include <bench/moe_layer.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <piper/base/median.h>
#include <piper/nn/aten.h>
#include <piper/nn/experts.h>
#include <piper/nn/stage.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <limits>

namespace piper::nn {
namespace {

// Returns the CPU time of this thread, on which every product and kernel runs.
double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Returns how long `work` takes: CPU time on the CPU, wall time on a device.
template <class Work>
double seconds_of(at::Device device, Work work) {
  if (device.is_cpu()) {
    const double start = processor_seconds();
    work();
    return processor_seconds() - start;
  }
  const c10::impl::VirtualGuardImpl driver(device.type());
  driver.synchronizeDevice(device.index());
  const auto start = std::chrono::steady_clock::now();
  work();
  driver.synchronizeDevice(device.index());
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::unique_ptr<Stage> stage_of(const MoeLayerShape& shape) {
  const model::Model model = mixture_layer_model(shape);
  strategy::Strategy strategy;
  strategy.layers_per_stage = {1};
  strategy.sequence = shape.tokens;
  return make_stage(model, strategy, Rank(0),
                    {.dtype = at::typeMetaToScalarType(shape.options.dtype()),
                     .device = shape.options.device(),
                     .seed = 1});
}

at::Tensor uniform(at::IntArrayRef shape, const at::TensorOptions& options) {
  return (at::rand(shape, options.dtype(at::kFloat)) - 0.5).to(options);
}

}  // namespace

model::Model mixture_layer_model(const MoeLayerShape& shape) {
  model::Model m;
  m.name = "bench";
  m.hidden = shape.hidden;
  m.vocabulary = 8;
  model::Layer layer;
  layer.attention = {.num_heads = shape.num_heads, .num_kv_heads = shape.num_heads, .head_dim = 8};
  layer.feed_forward = {.ffn = shape.ffn, .num_experts = shape.num_experts, .top_k = shape.top_k};
  layer.feed_forward.normalise_top_k = true;
  m.layers = {layer};
  return m;
}

struct MoeLayerBench::Buffers {
  MoeLayerShape shape;
  std::unique_ptr<Stage> stage;
  at::Tensor x, gx;
  std::unique_ptr<MoeProducts> products;

  void run_layer();
};

MoeLayerBench::MoeLayerBench(const MoeLayerShape& shape) : buffers_(std::make_unique<Buffers>()) {
  Buffers& b = *buffers_;
  b.shape = shape;
  b.stage = stage_of(shape);
  b.x = uniform({shape.tokens, shape.hidden}, shape.options);
  b.gx = uniform({shape.tokens, shape.hidden}, shape.options);
  Routing routing;
  b.stage->gate_forward(0, b.x, shape.tokens, routing, nullptr);
  b.products = std::make_unique<MoeProducts>(MoeProductsShape{.tokens = shape.tokens,
                                                              .hidden = shape.hidden,
                                                              .ffn = shape.ffn,
                                                              .num_experts = shape.num_experts,
                                                              .rows = known_counts(routing),
                                                              .options = shape.options});
}

MoeLayerBench::~MoeLayerBench() = default;

double MoeLayerBench::run_layer() {
  Buffers& b = *buffers_;
  b.stage->zero_gradients();
  return seconds_of(b.x.device(), [&] { b.run_layer(); });
}

void MoeLayerBench::Buffers::run_layer() {
  Buffers& b = *this;
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
}

double MoeLayerBench::run_gemms(const MoeGemms& how) {
  return seconds_of(buffers_->x.device(), [&] { buffers_->products->run(how); });
}

double MoeLayerBench::flops() const { return buffers_->products->flops(); }

MoeLayerTimes bench_moe_layer(const MoeLayerShape& shape, int64_t rounds) {
  MoeLayerBench bench(shape);
  bench.run_layer();
  const std::vector<MoeGemms> ways = ways_to_multiply();
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

}  // namespace piper::nn
