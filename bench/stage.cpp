#include <bench/stage.h>
#include <piper/base/error.h>
#include <piper/nn/parameters.h>

namespace piper::nn {
namespace {

[[noreturn]] void no_such_segment() {
  PIPER_CHECK(false, "a segment that this bench does not have");
  __builtin_unreachable();
}

}  // namespace

at::Tensor BenchStage::attention_forward(int32_t, const at::Tensor&, int64_t, Tape*) {
  no_such_segment();
}
at::Tensor BenchStage::attention_backward(int32_t, const at::Tensor&, const at::Tensor&,
                                          const at::Tensor&, int64_t, Tape&) {
  no_such_segment();
}
at::Tensor BenchStage::dense_mlp_forward(int32_t, const at::Tensor&, Tape*) { no_such_segment(); }
at::Tensor BenchStage::dense_mlp_backward(int32_t, const at::Tensor&, const at::Tensor&, Tape&) {
  no_such_segment();
}
at::Tensor BenchStage::choose_forward(int32_t, const at::Tensor&) { no_such_segment(); }
std::vector<at::Tensor> BenchStage::gate_forward(int32_t, const at::Tensor&, const at::Tensor&,
                                                 int64_t, std::span<Routing>, Tape*) {
  no_such_segment();
}
at::Tensor BenchStage::gate_backward(int32_t, const std::vector<at::Tensor>&,
                                     const std::vector<at::Tensor>&, const at::Tensor&,
                                     const at::Tensor&, const Routings&, Tape&) {
  no_such_segment();
}
at::Tensor BenchStage::shared_forward(int32_t, const at::Tensor&, Tape*) { no_such_segment(); }
at::Tensor BenchStage::shared_backward(int32_t, const at::Tensor&, const at::Tensor&, Tape&) {
  no_such_segment();
}
at::Tensor BenchStage::experts_forward(int32_t, const at::Tensor&, const Routing&, Tape*) {
  no_such_segment();
}
at::Tensor BenchStage::experts_backward(int32_t, const at::Tensor&, const at::Tensor&,
                                        const Routing&, Tape&) {
  no_such_segment();
}
at::Tensor BenchStage::merge_forward(int32_t, const std::vector<at::Tensor>&, const Routings&,
                                     const at::Tensor&) {
  no_such_segment();
}
std::vector<Stage::MergeGradients> BenchStage::merge_backward(int32_t, const at::Tensor&,
                                                              const std::vector<at::Tensor>&,
                                                              const Routings&) {
  no_such_segment();
}
at::Tensor BenchStage::logits(const at::Tensor&) { no_such_segment(); }
at::Tensor BenchStage::mtp_join_forward(int32_t, const at::Tensor&, const at::Tensor&) {
  no_such_segment();
}
at::Tensor BenchStage::mtp_join_backward(int32_t, const at::Tensor&, const at::Tensor&,
                                         const at::Tensor&, const at::Tensor&, Tape&) {
  no_such_segment();
}
void BenchStage::weights_backward(Tape& tape) { run_deferred(tape); }
void BenchStage::mtp_head_forward(int32_t, const at::Tensor&, const at::Tensor&, Tape*) {
  no_such_segment();
}
at::Tensor BenchStage::mtp_head_backward(int32_t, const at::Tensor&, Tape&) { no_such_segment(); }
void BenchStage::place_experts(int32_t, const balance::ExpertPlacement&) { no_such_segment(); }

}  // namespace piper::nn
