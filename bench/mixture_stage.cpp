// Legend: stage.h.
#include <bench/moe_products.h>
#include <bench/stage.h>
#include <piper/base/error.h>

#include <chrono>
#include <limits>
#include <optional>

namespace piper::nn {
namespace {

class MixtureStage final : public BenchStage {
 public:
  MixtureStage(const MoeLayerShape& shape, const strategy::Strategy& strategy, Rank rank)
      : shape_(shape),
        layer_(make_stage(mixture_layer_model(shape), strategy, rank, {.seed = 1})),
        local_experts_(shape.num_experts / strategy.mesh.ep),
        local_ffn_(shape.ffn / strategy.mesh.etp),
        stand_in_(at::zeros({1})) {}

  at::Tensor attention_forward(int32_t, const at::Tensor& x_TD, int64_t, Tape*) override {
    return x_TD;
  }
  at::Tensor attention_backward(int32_t, const at::Tensor& gx1_TD, const at::Tensor&,
                                const at::Tensor&, int64_t, Tape&) override {
    return gx1_TD;
  }
  void embedding_backward(const at::Tensor&, const at::Tensor& gx_TD) override { gx_TD_ = gx_TD; }
  void head_forward(const at::Tensor& x_TD, const at::Tensor&, Tape*) override { y_TD_ = x_TD; }
  at::Tensor head_backward(const at::Tensor&, const at::Tensor& gradient_TD, Tape&) override {
    return gradient_TD;
  }

  at::Tensor choose_forward(int32_t layer, const at::Tensor& x1_TD) override {
    return layer_->choose_forward(layer, x1_TD);
  }
  std::vector<at::Tensor> gate_forward(int32_t layer, const at::Tensor& x1_TD,
                                       const at::Tensor& choices, int64_t sequence,
                                       std::span<Routing> chunks, Tape* tape) override {
    return layer_->gate_forward(layer, x1_TD, choices, sequence, chunks, tape);
  }
  at::Tensor gate_backward(int32_t layer, const std::vector<at::Tensor>& g_rows,
                           const std::vector<at::Tensor>& g_weights, const at::Tensor& gx_TD,
                           const at::Tensor& x1_TD, const Routings& chunks, Tape& tape) override {
    return layer_->gate_backward(layer, g_rows, g_weights, gx_TD, x1_TD, chunks, tape);
  }
  at::Tensor experts_forward(int32_t layer, const at::Tensor& received_RD, const Routing& routing,
                             Tape* tape) override {
    const std::vector<int64_t>& counts = routing.computed_counts();
    computed_counts_.insert(computed_counts_.end(), counts.begin(), counts.end());
    return layer_->experts_forward(layer, received_RD, routing, tape);
  }
  at::Tensor experts_backward(int32_t layer, const at::Tensor& g_out_RD,
                              const at::Tensor& received_RD, const Routing& routing,
                              Tape& tape) override {
    return layer_->experts_backward(layer, g_out_RD, received_RD, routing, tape);
  }
  at::Tensor merge_forward(int32_t layer, const std::vector<at::Tensor>& returned,
                           const Routings& chunks, const at::Tensor& x1_TD) override {
    return layer_->merge_forward(layer, returned, chunks, x1_TD);
  }
  std::vector<MergeGradients> merge_backward(int32_t layer, const at::Tensor& gx_TD,
                                             const std::vector<at::Tensor>& returned,
                                             const Routings& chunks) override {
    return layer_->merge_backward(layer, gx_TD, returned, chunks);
  }

  std::vector<Parameter>& parameters() override { return layer_->parameters(); }
  void zero_gradients() override {
    computed_counts_.clear();  // a step begins, whose chunks add theirs
    layer_->zero_gradients();
  }
  void weights_backward(Tape& tape) override { layer_->weights_backward(tape); }
  at::Tensor gradients(int32_t layer, strategy::Axis replicas) override {
    return layer < 0 ? stand_in_ : layer_->gradients(layer, replicas);
  }
  at::Tensor weights(int32_t layer, strategy::Axis replicas) override {
    return layer < 0 ? stand_in_ : layer_->weights(layer, replicas);
  }
  std::vector<Result> results() override { return {{"y", y_TD_}, {"x.gradient", gx_TD_}}; }

  void run_products() override {
    if (!products_) choose_way();
    products_->run(way_);
  }

 private:
  void choose_way() {
    PIPER_CHECK(!computed_counts_.empty(), "a step comes before its products");
    MoeProductsShape products{.tokens = shape_.tokens,
                              .hidden = shape_.hidden,
                              .ffn = local_ffn_,
                              .num_experts = shape_.num_experts,
                              .rows = std::vector<int64_t>(static_cast<size_t>(local_experts_))};
    for (size_t i = 0; i < computed_counts_.size(); ++i)
      products.rows[i % products.rows.size()] += computed_counts_[i];
    products_.emplace(products);
    double best = std::numeric_limits<double>::infinity();
    for (const MoeGemms& way : ways_to_multiply()) {
      products_->run(way);
      const auto start = std::chrono::steady_clock::now();
      for (int round = 0; round < 3; ++round) products_->run(way);
      const double seconds =
          std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      if (seconds < best) way_ = way;
      best = std::min(best, seconds);
    }
  }

  const MoeLayerShape shape_;
  std::unique_ptr<Stage> layer_;
  int64_t local_experts_, local_ffn_;
  at::Tensor stand_in_;  // for the gradients of what the bench leaves out
  at::Tensor y_TD_, gx_TD_;
  std::vector<int64_t> computed_counts_;  // of the last step, by peer and local expert
  std::optional<MoeProducts> products_;
  MoeGemms way_;
};

}  // namespace

std::unique_ptr<BenchStage> make_mixture_stage(const MoeLayerShape& shape,
                                               const strategy::Strategy& strategy, Rank rank) {
  return std::make_unique<MixtureStage>(shape, strategy, rank);
}

}  // namespace piper::nn
