// The experts' side of a mixture layer where tokens travel in place of their copies
// (Routing::deduplicated):
//
//   received token u --> a copy for each of its experts here --> experts --> sum of weight * result, one row for u
//
// The forward keeps the results [R, D] besides what experts.h keeps; the backward makes the copies
// again. Sums are taken by ascending expert.
#pragma once

#include <piper/nn/experts.h>

#include <cstdint>

namespace piper::nn {

// Copies by peer, local expert, token, each with its row of U: to the copies of each row, [U,
// width]; -1 = none. On the host. `row` holds no row more than `width` times.
at::Tensor copies_of_rows(const at::Tensor& row_R, int64_t num_rows, int64_t width);

at::Tensor token_experts_forward(ExpertsBlock& block, const at::Tensor& received_UD,
                                 const Routing& routing, Tape* tape);
// Fills routing.g_received_weights. Consumes the tape.
at::Tensor token_experts_backward(ExpertsBlock& block, const at::Tensor& g_out_UD,
                                  const at::Tensor& received_UD, const Routing& routing,
                                  Tape& tape);

}  // namespace piper::nn
