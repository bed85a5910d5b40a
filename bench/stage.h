// Stages whose steps a bench runs and times (train/step_bench.h): only the segments that are
// measured compute, the others hand on what they are given. In a micro-batch the executor's
// `tokens_BS` is the input x [T, D], and `targets_T` is what the last stage compares its output
// with, or the output's gradient, [T, D].
#pragma once

#include <bench/moe_layer.h>
#include <piper/nn/stage.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace piper::nn {

// Segments that a bench does not have are InternalErrors.
class BenchStage : public Stage {
 public:
  at::Tensor embedding_forward(const at::Tensor& x_TD) override { return x_TD; }
  void embedding_backward(const at::Tensor&, const at::Tensor&) override {}
  at::Tensor attention_forward(int32_t layer, const at::Tensor& x_TD, int64_t sequence,
                               Tape* tape) override;
  at::Tensor attention_backward(int32_t layer, const at::Tensor& gx1_TD, const at::Tensor& x_TD,
                                const at::Tensor& x1_TD, int64_t sequence, Tape& tape) override;
  at::Tensor dense_mlp_forward(int32_t layer, const at::Tensor& x1_TD, Tape* tape) override;
  at::Tensor dense_mlp_backward(int32_t layer, const at::Tensor& gx_TD, const at::Tensor& x1_TD,
                                Tape& tape) override;
  at::Tensor choose_forward(int32_t layer, const at::Tensor& x1_TD) override;
  std::vector<at::Tensor> gate_forward(int32_t layer, const at::Tensor& x1_TD,
                                       const at::Tensor& choices, int64_t sequence,
                                       std::span<Routing> chunks, Tape* tape) override;
  at::Tensor gate_backward(int32_t layer, const std::vector<at::Tensor>& g_rows,
                           const std::vector<at::Tensor>& g_weights, const at::Tensor& gx_TD,
                           const at::Tensor& x1_TD, const Routings& chunks, Tape& tape) override;
  at::Tensor shared_forward(int32_t layer, const at::Tensor& x1_TD, Tape* tape) override;
  at::Tensor shared_backward(int32_t layer, const at::Tensor& gx_TD, const at::Tensor& x1_TD,
                             Tape& tape) override;
  at::Tensor experts_forward(int32_t layer, const at::Tensor& received_RD, const Routing& routing,
                             Tape* tape) override;
  at::Tensor experts_backward(int32_t layer, const at::Tensor& g_out_RD,
                              const at::Tensor& received_RD, const Routing& routing,
                              Tape& tape) override;
  at::Tensor merge_forward(int32_t layer, const std::vector<at::Tensor>& returned,
                           const Routings& chunks, const at::Tensor& x1_TD) override;
  std::vector<MergeGradients> merge_backward(int32_t layer, const at::Tensor& gx_TD,
                                             const std::vector<at::Tensor>& returned,
                                             const Routings& chunks) override;
  at::Tensor logits(const at::Tensor& x_TD) override;
  at::Tensor mtp_join_forward(int32_t layer, const at::Tensor& x_TD,
                              const at::Tensor& tokens_BS) override;
  at::Tensor mtp_join_backward(int32_t layer, const at::Tensor& g_input_TD,
                               const at::Tensor& g_x_TD, const at::Tensor& x_TD,
                               const at::Tensor& tokens_BS, Tape& tape) override;
  void mtp_head_forward(int32_t layer, const at::Tensor& x_TD, const at::Tensor& targets_T,
                        Tape* tape) override;
  at::Tensor mtp_head_backward(int32_t layer, const at::Tensor& x_TD, Tape& tape) override;
  void weights_backward(Tape& tape) override;
  std::vector<NamedPiece> named_pieces() override { return {}; }
  at::Tensor gradients(int32_t, strategy::Axis) override { return {}; }
  at::Tensor weights(int32_t, strategy::Axis) override { return {}; }
  at::Tensor tied_embedding_gradient() override { return {}; }
  at::Tensor selection_bias(int32_t) override { return {}; }
  void place_experts(int32_t layer, const balance::ExpertPlacement& placement) override;
  std::vector<size_t> expert_parameters(int32_t) override { return {}; }
  StageStatistics take_statistics() override { return {}; }

  // The rank's loss of the last step, where the bench has one.
  virtual double take_loss() { return 0; }
  // What the last step left behind that another implementation must find, too: by name.
  struct Result {
    std::string name;
    at::Tensor value;
  };
  virtual std::vector<Result> results() { return {}; }

  // The matrix products of one micro-batch's forward and backward alone, on buffers made
  // beforehand, in the fastest of the ways that this machine has (tried when the products are first
  // asked for): the limit of any implementation here. After a step; results() are void then.
  virtual void run_products() = 0;
};

// Linear layers without biases, two a layer of the model: attention is x W_a^T, the dense MLP x
// W_m^T. The head is the mean squared error over the step's micro-batches. The first layer's
// backward makes no gradient of its input.
struct LinearStageShape {
  int64_t rows = 64;  // of a micro-batch
  int64_t hidden = 512;
  int64_t num_micro_batches = 8;
  std::vector<int32_t> layers;  // of the rank's chunks, ascending
  uint64_t seed = 1;
};
std::unique_ptr<BenchStage> make_linear_stage(const LinearStageShape& shape);

// One mixture layer over `strategy`'s expert ranks: its segments are those of
// make_stage(mixture_layer_model(shape)). The head keeps the output and hands in its gradient.
// Dense gradients are the layer's (norms, router, a stand-in's attention); embedding and head have
// one element each.
std::unique_ptr<BenchStage> make_mixture_stage(const MoeLayerShape& shape,
                                               const strategy::Strategy& strategy, Rank rank);

}  // namespace piper::nn
