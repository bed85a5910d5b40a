// RMSNorm and the rotary embedding.
#include <piper/nn/kernels.h>
#include <piper/nn/simd.h>

#include <cmath>
#include <vector>

namespace piper::nn::kernels {
namespace {

template <class T>
PIPER_INLINE T reciprocal_root_mean_square(const T* x, int64_t width, T epsilon) {
  T squares = 0;
#pragma omp simd reduction(+ : squares)
  for (int64_t d = 0; d < width; ++d) squares += x[d] * x[d];
  return T(1) / std::sqrt(squares / static_cast<T>(width) + epsilon);
}

// One row of the backward: g becomes the input's gradient and weight_sum collects the weight's.
template <class T>
PIPER_INLINE void norm_row_backward(T* g, const T* x, const T* weight, T* weight_sum,
                                    const T* residual, int64_t width, T epsilon) {
  const T r = reciprocal_root_mean_square(x, width, epsilon);
  T dot = 0;
#pragma omp simd reduction(+ : dot)
  for (int64_t d = 0; d < width; ++d) {
    dot += g[d] * weight[d] * x[d];
    weight_sum[d] += g[d] * x[d] * r;
  }
  const T c = dot * r * r / static_cast<T>(width);
  if (residual != nullptr) {
#pragma omp simd
    for (int64_t d = 0; d < width; ++d) g[d] = r * (g[d] * weight[d] - x[d] * c) + residual[d];
  } else {
#pragma omp simd
    for (int64_t d = 0; d < width; ++d) g[d] = r * (g[d] * weight[d] - x[d] * c);
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
        const T r = reciprocal_root_mean_square(from, x.width, static_cast<T>(epsilon));
#pragma omp simd
        for (int64_t d = 0; d < x.width; ++d) to[d] = weight[d] * (from[d] * r);
      }
  });
}

template <class T>
void rms_norm_backward(Rows<T> g, Rows<const T> x, const T* weight, double epsilon,
                       T* weight_gradient, double beta, Rows<const T> residual) {
  std::vector<T> weight_sum(static_cast<size_t>(x.width), T(0));
  if (beta != 0) weight_sum.assign(weight_gradient, weight_gradient + x.width);
  T* sum = weight_sum.data();
  widest([&] PIPER_INLINE_LAMBDA {
    for (int64_t i = 0; i < x.n0; ++i)
      for (int64_t j = 0; j < x.n1; ++j)
        norm_row_backward(
            g.data + i * g.s0 + j * g.s1, x.data + i * x.s0 + j * x.s1, weight, sum,
            residual.data ? residual.data + i * residual.s0 + j * residual.s1 : nullptr, x.width,
            static_cast<T>(epsilon));
  });
  std::copy(weight_sum.begin(), weight_sum.end(), weight_gradient);
}

template <class T>
void rotate_neighbours(Rows<T> x, const T* cosine, const T* sine, int64_t sequence, int64_t half,
                       T direction) {
  for (int64_t i = 0; i < x.n0; ++i) {
    const T* c = cosine + (i % sequence) * half;
    const T* s = sine + (i % sequence) * half;
    for (int64_t j = 0; j < x.n1; ++j) {
      T* pair = x.data + i * x.s0 + j * x.s1;
      for (int64_t d = 0; d < half; ++d, pair += 2) {
        const T a = pair[0], b = pair[1], turn = direction * s[d];
        pair[0] = a * c[d] - b * turn;
        pair[1] = b * c[d] + a * turn;
      }
    }
  }
}

template <class T>
void rotate(Rows<T> x, const T* cosine, const T* sine, int64_t sequence, int64_t half, T direction,
            bool interleaved) {
  if (interleaved) return rotate_neighbours(x, cosine, sine, sequence, half, direction);
  widest([&] PIPER_INLINE_LAMBDA {
    for (int64_t i = 0; i < x.n0; ++i) {
      const T* c = cosine + (i % sequence) * half;
      const T* s = sine + (i % sequence) * half;
      for (int64_t j = 0; j < x.n1; ++j) {
        T* low = x.data + i * x.s0 + j * x.s1;
        T* high = low + half;
#pragma omp simd
        for (int64_t d = 0; d < half; ++d) {
          const T a = low[d], b = high[d], turn = direction * s[d];
          low[d] = a * c[d] - b * turn;
          high[d] = b * c[d] + a * turn;
        }
      }
    }
  });
}

#define PIPER_INSTANTIATE(T)                                                            \
  template void rms_norm(Rows<const T>, const T*, double, Rows<T>);                     \
  template void rms_norm_backward(Rows<T>, Rows<const T>, const T*, double, T*, double, \
                                  Rows<const T>);                                       \
  template void rotate(Rows<T>, const T*, const T*, int64_t, int64_t, T, bool);
PIPER_INSTANTIATE(float)
PIPER_INSTANTIATE(double)

}  // namespace piper::nn::kernels
