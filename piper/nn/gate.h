// The gate segment: x1 -> rows in dispatch order, and the routing.
//
//   xn = norm(x1);  p = softmax(W_router xn);  e_1..e_k = the k largest;  w_j = p_ej (/ sum_j p_ej when normalised)
//
// Saved for the backward: p [T, E] and e [T, k] (int32); the backward turns p into the gradient of the logits in place.
//
// Auxiliary loss, by sequence so that it does not depend on the mesh (the Switch form, Fedus et al. 2021, eq. 4-6, with
// the fraction taken over all k choices):
//   a * E * sum_i f_i P_i / global_sequences,  f_i = count_i / (S k),  P_i = mean over the sequence of p_i
// f is a constant to the gradient, so dL/dp_ti = a * E * f_i / (S * global_sequences).
#pragma once

#include <piper/nn/parameters.h>
#include <piper/nn/stage.h>

#include <vector>

namespace piper::nn {

struct GateBlock {
  double epsilon = 1e-6;
  int64_t top_k = 0;
  bool normalised = false;
  double auxiliary = 0;  // coefficient / global_sequences
  Weight* norm = nullptr;
  Weight* router = nullptr;  // [E, D]
};

struct GateOutput {
  at::Tensor rows;
  double auxiliary_loss = 0;
};

// Fills weights, token, position and counts of the routing. x1: [B * sequence, D].
GateOutput gate_forward(GateBlock& block, const at::Tensor& x1_TD, int64_t sequence,
                        Routing& routing, Tape* tape);
// Consumes the tape.
at::Tensor gate_backward(GateBlock& block, const at::Tensor& g_rows, const at::Tensor& g_weights,
                         const at::Tensor& gx_TD, const at::Tensor& x1_TD, const Routing& routing,
                         Tape& tape);

}  // namespace piper::nn
