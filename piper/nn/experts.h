// The routed experts of a layer that this rank holds: received rows -> W_down swiglu(W_gate_up
// row), dropless.
//
// Received rows are ordered by peer, then local expert. With one peer an expert's rows are
// contiguous and the products read and write them where they lie; with several they are copied
// through a scratch of the largest expert's rows. Per expert: 2 products forward, 4 backward, and
// one pass of SwiGLU each way.
//
// Saved for the backward: h = W_gate_up row, [R, 2F], by expert (whatever the peers); the backward
// turns it into its gradient in place. An expert without rows costs nothing but the zeroing of its
// gradient in its first backward.
//
// Where ranks share the experts' matrices, F is this rank's part of the width, rows are those of
// all these ranks, and results are parts of a sum over them.
#pragma once

#include <piper/nn/parameters.h>
#include <piper/nn/stage.h>

#include <cstdint>
#include <vector>

namespace piper::nn {

// H homes, then C copies of experts whose home is on another rank (balance/expert_placement.h).
struct ExpertsBlock {
  int64_t local_experts = 0;         // L = H + C
  Weight* gate_up = nullptr;         // [H, 2F, D]: gate rows, then up rows
  Weight* down = nullptr;            // [H, D, F]
  Weight* copied_gate_up = nullptr;  // [C, 2F, D]; null without copies
  Weight* copied_down = nullptr;     // [C, D, F]

  int64_t num_homes() const { return gate_up->value.size(0); }
  // These return the weights and gradients of one of the rank's experts, which may be a copy.
  at::Tensor gate_up_value(int64_t expert) const {
    return of(gate_up, copied_gate_up, expert).value();
  }
  at::Tensor down_value(int64_t expert) const { return of(down, copied_down, expert).value(); }
  at::Tensor gate_up_gradient(int64_t expert) const {
    return of(gate_up, copied_gate_up, expert).gradient();
  }
  at::Tensor down_gradient(int64_t expert) const {
    return of(down, copied_down, expert).gradient();
  }

 private:
  struct One {
    const Weight* weight;
    int64_t index;
    at::Tensor value() const { return weight->value.select(0, index); }
    at::Tensor gradient() const { return weight->gradient.select(0, index); }
  };
  One of(const Weight* homes, const Weight* copies, int64_t expert) const {
    return expert < num_homes() ? One{homes, expert} : One{copies, expert - num_homes()};
  }
};

// Rows that are computed with, by peer and local expert. The host waits where the device has them
// alone (Routing::counts_E).
std::vector<int64_t> known_counts(const Routing& routing);

at::Tensor experts_forward(ExpertsBlock& block, const at::Tensor& received_RD,
                           const Routing& routing, Tape* tape);
// Consumes the tape. Where it defers, the rows and the routing must live until the weights' part.
at::Tensor experts_backward(ExpertsBlock& block, const at::Tensor& g_out_RD,
                            const at::Tensor& received_RD, const Routing& routing, Tape& tape);

// The two parts of the backward, for a caller with rows of its own making (experts_tokens.h): the
// input's leaves what the weights' needs, by expert; the latter brings together each expert's rows
// of both arguments again.
struct ExpertsDeferred {
  at::Tensor g_h_R2F, act_RF;
  std::vector<at::Tensor> rows_by_expert;  // of experts_grouped.cpp; empty: one by one
};
at::Tensor experts_input_backward(const ExpertsBlock& block, const at::Tensor& g_out_RD,
                                  const Routing& routing, Tape& tape, ExpertsDeferred& deferred);
void experts_weights_backward(ExpertsBlock& block, const at::Tensor& g_out_RD,
                              const at::Tensor& received_RD, const Routing& routing,
                              const ExpertsDeferred& deferred);

}  // namespace piper::nn
