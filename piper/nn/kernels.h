// The element-wise work of the segments on plain memory, for the CPU: one pass over the data each,
// no scratch tensor, one thread. float, double and bf16. tensor_ops.h is their front for tensors;
// its compositions of at:: calls are the oracle.
//
// Sums are taken in a fixed order, so the same inputs give the same bits. Legend: stage.h.
#pragma once

#include <c10/util/BFloat16.h>

#include <cstdint>

namespace piper::nn::kernels {

// In what is computed, summed and kept of the router: fp32 for bf16, else the type itself.
// Gradients of weights have it too ("main gradients").
template <class T>
struct MainOf {
  using type = T;
};
template <>
struct MainOf<c10::BFloat16> {
  using type = float;
};
template <class T>
using Main = typename MainOf<T>::type;

// A matrix of rows: row (i, j) of n0 x n1 starts at data + i * s0 + j * s1 and is `width`
// contiguous elements.
template <class T>
struct Rows {
  T* data = nullptr;
  int64_t n0 = 0, n1 = 1;
  int64_t s0 = 0, s1 = 0;
  int64_t width = 0;
  constexpr T* row(int64_t i, int64_t j) const { return data + i * s0 + j * s1; }
};

// y = weight * x / sqrt(mean(x^2) + epsilon), by row. y may be x.
template <class T>
void rms_norm(Rows<const T> x, const T* weight, double epsilon, Rows<T> y);

// `g` holds dL/dy and becomes dL/dx, plus `residual` (the same rows; data may be null).
// weight_gradient becomes beta * weight_gradient + its gradient; beta is 0 or 1 and 0 reads
// nothing.
template <class T>
void rms_norm_backward(Rows<T> g, Rows<const T> x, const T* weight, double epsilon,
                       Main<T>* weight_gradient, double beta, Rows<const T> residual);

// Rotates the first 2 * half elements of every row as Hugging Face does (pairs i, i + half;
// interleaved: 2i, 2i + 1), by the angle of position i mod sequence. cosine, sine: [sequence,
// half]. direction -1 rotates back.
template <class T>
void rotate(Rows<T> x, const Main<T>* cosine, const Main<T>* sine, int64_t sequence, int64_t half,
            Main<T> direction, bool interleaved);

// act = silu(gate) * up; a row of h is gate, then up: [n, 2F] -> [n, F].
template <class T>
void swiglu(const T* h, T* act, int64_t n, int64_t ffn);
// h becomes its gradient; g_act, the gradient of act, becomes act.
template <class T>
void swiglu_backward(T* h, T* g_act, int64_t n, int64_t ffn);

// out[i] = x[index[i]].
template <class T>
void gather_rows(const T* x, const int32_t* index, T* out, int64_t n, int64_t width);
// Positions below 0 are copies that were dropped: there is no row of theirs.
//
// out[t] = sum over j of rows[position[t, j]].
template <class T>
void sum_rows(const T* rows, const int32_t* position, T* out, int64_t tokens, int64_t k,
              int64_t width);
// table[index[i]] += rows[i], in the order of i.
template <class T>
void add_rows(Main<T>* table, const int64_t* index, const T* rows, int64_t n, int64_t width);

// to[i] += from[i]: a contribution to a main gradient.
void add_narrow(float* to, const c10::BFloat16* from, int64_t n);

// out[t] = x1[t] + sum over j of weights[p] * returned[p], p = position[t, j].
template <class T>
void merge(const T* returned, const Main<T>* weights, const int32_t* position, const T* x1, T* out,
           int64_t tokens, int64_t k, int64_t width);
// Consecutive rows.
struct RowRange {
  int64_t first = 0, count = 0;
};
// g_weights[p] = gx[t] . returned[p]; for the rows of `own`, g_returned[p - own.first] =
// weights[p] * gx[t].
template <class T>
void merge_backward(const T* gx, const T* returned, const Main<T>* weights, const int32_t* position,
                    T* g_returned, Main<T>* g_weights, RowRange own, int64_t tokens, int64_t k,
                    int64_t width);

// Softmax by row in place. log_sum: log(sum(exp(x))) of every row; may be null.
template <class T>
void softmax(T* x, T* log_sum, int64_t n, int64_t width);
// The k largest of each row, descending, the lower index first among equals. expert: [tokens, k].
template <class T>
void choose_experts(const T* probabilities, int32_t* expert, int64_t tokens, int64_t num_experts,
                    int64_t k);

// The inputs of the router's backward; see gate.cpp for the formulas.
template <class T>
struct RouterGradient {
  const int32_t* expert = nullptr;    // [tokens, k]
  const int32_t* position = nullptr;  // [tokens, k]; -1 = dropped
  const T* weights = nullptr;         // [rows], dispatch order
  const T* g_weights = nullptr;       // [rows], dispatch order
  const T* auxiliary = nullptr;  // [sequences, experts]: gradient of every probability; null = none
  const T* g_log_sum = nullptr;  // [tokens]: gradient of the logits' log-sum-exp; null = none
  int64_t tokens = 0, sequence = 0, num_experts = 0, k = 0;
  int64_t first_token = 0;  // the place of token 0 among those of all the sequences
  bool normalised = false;
  bool sigmoid = false;
  T scaling = 1;
};
// probabilities [tokens, experts] become the gradient of the logits. With sigmoid scores and
// g_log_sum they are the logits themselves.
template <class T>
void router_backward(T* probabilities, const RouterGradient<T>& in);

// Returns the sum of -log softmax(logits[i])[target[i]] over rows whose target is not -100. With
// `gradient`, the logits become scale * dloss/dlogits (0 in ignored rows).
template <class T>
double cross_entropy(T* logits, const int64_t* target, int64_t n, int64_t vocabulary, bool gradient,
                     double scale);

// The scalars of one AdamW update (Loshchilov and Hutter 2019, algorithm 2), as
// torch.optim.AdamW's: keep = 1 - learning rate * weight decay, step_size = learning rate / (1 -
// beta1^t), inverse_root_correction2 = 1 / sqrt(1 - beta2^t).
template <class T>
struct AdamWScalars {
  T keep, one_minus_beta1, beta2, one_minus_beta2, step_size, inverse_root_correction2, epsilon,
      gradient_scale;
};
// Weights, gradients and both moments of n parameters in one pass.
template <class T>
void adamw(T* w, const T* gradient, T* m, T* v, int64_t n, const AdamWScalars<T>& scalars);
// The same of fp32 master weights w, which are then rounded into the weights of the model.
void adamw_rounded(float* w, const float* gradient, float* m, float* v, c10::BFloat16* rounded,
                   int64_t n, const AdamWScalars<float>& scalars);

// In fp64, over 32 partial sums: the order of additions depends on n alone.
template <class T>
double sum_of_squares(const T* x, int64_t n);

}  // namespace piper::nn::kernels
