// RMSNorm and the rotary embedding.
#include <piper/nn/kernels.h>
#include <piper/nn/simd.h>

#include <cmath>
#include <vector>

namespace piper::nn::kernels {
namespace {

template <class T>
PIPER_INLINE Main<T> reciprocal_root_mean_square(const T* x, int64_t width, Main<T> epsilon) {
  using M = Main<T>;
  M squares = 0;
#pragma omp simd reduction(+ : squares)
  for (int64_t d = 0; d < width; ++d) squares += widen(x[d]) * widen(x[d]);
  return M(1) / std::sqrt(squares / static_cast<M>(width) + epsilon);
}

// One row of the backward: g becomes the input's gradient and weight_sum collects the weight's.
template <class T>
PIPER_INLINE void norm_row_backward(T* g, const T* x, const T* weight, Main<T>* weight_sum,
                                    const T* residual, int64_t width, Main<T> epsilon) {
  using M = Main<T>;
  const M r = reciprocal_root_mean_square(x, width, epsilon);
  M dot = 0;
#pragma omp simd reduction(+ : dot)
  for (int64_t d = 0; d < width; ++d) {
    dot += widen(g[d]) * widen(weight[d]) * widen(x[d]);
    weight_sum[d] += widen(g[d]) * widen(x[d]) * r;
  }
  const M c = dot * r * r / static_cast<M>(width);
  if (residual != nullptr) {
#pragma omp simd
    for (int64_t d = 0; d < width; ++d)
      g[d] = narrow<T>(r * (widen(g[d]) * widen(weight[d]) - widen(x[d]) * c) + widen(residual[d]));
  } else {
#pragma omp simd
    for (int64_t d = 0; d < width; ++d)
      g[d] = narrow<T>(r * (widen(g[d]) * widen(weight[d]) - widen(x[d]) * c));
  }
}

}  // namespace

template <class T>
void rms_norm(Rows<const T> x, const T* weight, double epsilon, Rows<T> y) {
  widest([&] PIPER_INLINE_LAMBDA {
    for (int64_t i = 0; i < x.n0; ++i)
      for (int64_t j = 0; j < x.n1; ++j) {
        const T* from = x.data + i * x.s0 + j * x.s1;
        T* to = y.data + i * y.s0 + j * y.s1;
        const Main<T> r = reciprocal_root_mean_square(from, x.width, static_cast<Main<T>>(epsilon));
#pragma omp simd
        for (int64_t d = 0; d < x.width; ++d)
          to[d] = narrow<T>(widen(weight[d]) * (widen(from[d]) * r));
      }
  });
}

template <class T>
void rms_norm_backward(Rows<T> g, Rows<const T> x, const T* weight, double epsilon,
                       Main<T>* weight_gradient, double beta, Rows<const T> residual) {
  std::vector<Main<T>> weight_sum(static_cast<size_t>(x.width), Main<T>(0));
  if (weight_gradient != nullptr && beta != 0)
    weight_sum.assign(weight_gradient, weight_gradient + x.width);
  Main<T>* sum = weight_sum.data();
  widest([&] PIPER_INLINE_LAMBDA {
    for (int64_t i = 0; i < x.n0; ++i)
      for (int64_t j = 0; j < x.n1; ++j)
        norm_row_backward(
            g.data + i * g.s0 + j * g.s1, x.data + i * x.s0 + j * x.s1, weight, sum,
            residual.data ? residual.data + i * residual.s0 + j * residual.s1 : nullptr, x.width,
            static_cast<Main<T>>(epsilon));
  });
  if (weight_gradient != nullptr) std::copy(weight_sum.begin(), weight_sum.end(), weight_gradient);
}

template <class T>
void rotate_neighbours(Rows<T> x, const Main<T>* cosine, const Main<T>* sine, int64_t sequence,
                       int64_t half, Main<T> direction) {
  for (int64_t i = 0; i < x.n0; ++i) {
    const Main<T>* c = cosine + (i % sequence) * half;
    const Main<T>* s = sine + (i % sequence) * half;
    for (int64_t j = 0; j < x.n1; ++j) {
      T* pair = x.data + i * x.s0 + j * x.s1;
      for (int64_t d = 0; d < half; ++d, pair += 2) {
        const Main<T> a = widen(pair[0]), b = widen(pair[1]), turn = direction * s[d];
        pair[0] = narrow<T>(a * c[d] - b * turn);
        pair[1] = narrow<T>(b * c[d] + a * turn);
      }
    }
  }
}

template <class T>
void rotate(Rows<T> x, const Main<T>* cosine, const Main<T>* sine, int64_t sequence, int64_t half,
            Main<T> direction, bool interleaved) {
  if (interleaved) return rotate_neighbours(x, cosine, sine, sequence, half, direction);
  widest([&] PIPER_INLINE_LAMBDA {
    for (int64_t i = 0; i < x.n0; ++i) {
      const Main<T>* c = cosine + (i % sequence) * half;
      const Main<T>* s = sine + (i % sequence) * half;
      for (int64_t j = 0; j < x.n1; ++j) {
        T* low = x.data + i * x.s0 + j * x.s1;
        T* high = low + half;
#pragma omp simd
        for (int64_t d = 0; d < half; ++d) {
          const Main<T> a = widen(low[d]), b = widen(high[d]), turn = direction * s[d];
          low[d] = narrow<T>(a * c[d] - b * turn);
          high[d] = narrow<T>(b * c[d] + a * turn);
        }
      }
    }
  });
}

#define PIPER_INSTANTIATE(T)                                                                  \
  template void rms_norm(Rows<const T>, const T*, double, Rows<T>);                           \
  template void rms_norm_backward(Rows<T>, Rows<const T>, const T*, double, Main<T>*, double, \
                                  Rows<const T>);                                             \
  template void rotate(Rows<T>, const Main<T>*, const Main<T>*, int64_t, int64_t, Main<T>, bool);
PIPER_INSTANTIATE(float)
PIPER_INSTANTIATE(double)
PIPER_INSTANTIATE(c10::BFloat16)

}  // namespace piper::nn::kernels
