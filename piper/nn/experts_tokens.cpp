#include <piper/base/error.h>
#include <piper/nn/experts_tokens.h>
#include <piper/nn/tensor_ops.h>

#include <vector>

namespace piper::nn {
namespace {

at::Tensor copies(const at::Tensor& x_UD, const Routing& routing) {
  at::Tensor x_RD = at::empty({routing.received_row.size(0), x_UD.size(1)}, x_UD.options());
  gather_rows_out(x_RD, x_UD, routing.received_row);
  return x_RD;
}

}  // namespace

at::Tensor copies_of_rows(const at::Tensor& row_R, int64_t num_rows, int64_t width) {
  at::Tensor position = at::full({num_rows, width}, -1, at::kInt);
  const auto* row = row_R.const_data_ptr<int32_t>();
  auto* to = position.data_ptr<int32_t>();
  std::vector<int64_t> num_copies(static_cast<size_t>(num_rows));
  for (int64_t copy = 0; copy < row_R.size(0); ++copy) {
    int64_t& num = num_copies.at(static_cast<size_t>(row[copy]));
    PIPER_CHECK(num < width, "more copies of a row than experts");
    to[row[copy] * width + num++] = static_cast<int32_t>(copy);
  }
  return position;
}

at::Tensor token_experts_forward(ExpertsBlock& block, const at::Tensor& received_UD,
                                 const Routing& routing, Tape* tape) {
  const at::Tensor y_RD = experts_forward(block, copies(received_UD, routing), routing, tape);
  const at::Tensor nothing_UD = at::zeros_like(received_UD);
  at::Tensor out_UD = at::empty_like(received_UD);
  merge_out(out_UD, y_RD, routing.received_weights, routing.received_position, nothing_UD);
  if (tape != nullptr) tape->saved.push_back(y_RD);
  return out_UD;
}

at::Tensor token_experts_backward(ExpertsBlock& block, const at::Tensor& g_out_UD,
                                  const at::Tensor& received_UD, const Routing& routing,
                                  Tape& tape) {
  at::Tensor g_RD = at::empty_like(tape.saved.back());
  merge_backward_out(g_RD, routing.g_received_weights, g_out_UD, tape.saved.back(),
                     routing.received_weights, routing.received_position);
  tape.saved.pop_back();
  at::Tensor gx_RD;
  if (tape.defers_weights) {
    ExpertsDeferred deferred;
    gx_RD = experts_input_backward(block, g_RD, routing, tape, deferred);
    tape.weights_part([&block, &routing, deferred, g_RD, received_UD] {
      experts_weights_backward(block, g_RD, copies(received_UD, routing), routing, deferred);
    });
  } else {
    gx_RD = experts_backward(block, g_RD, copies(received_UD, routing), routing, tape);
  }
  g_RD.reset();
  at::Tensor gx_UD = at::empty_like(received_UD);
  sum_rows_out(gx_UD, gx_RD, routing.received_position);
  return gx_UD;
}

}  // namespace piper::nn
