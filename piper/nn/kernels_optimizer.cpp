// The optimizer's passes over a rank's parameters.
#include <piper/nn/kernels.h>
#include <piper/nn/simd.h>

#include <array>
#include <cmath>

namespace piper::nn::kernels {

template <class T>
void adamw(T* __restrict w, const T* __restrict gradient, T* __restrict m, T* __restrict v,
           int64_t n, const AdamWScalars<T>& scalars) {
  const AdamWScalars<T> s = scalars;
  widest([&] PIPER_INLINE_LAMBDA {
    T* __restrict w_ = w;
    const T* __restrict g_ = gradient;
    T* __restrict m_ = m;
    T* __restrict v_ = v;
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
      const T g = g_[i] * s.gradient_scale;
      m_[i] += s.one_minus_beta1 * (g - m_[i]);
      v_[i] = s.beta2 * v_[i] + s.one_minus_beta2 * g * g;
      w_[i] = w_[i] * s.keep -
              s.step_size * m_[i] / (std::sqrt(v_[i]) * s.inverse_root_correction2 + s.epsilon);
    }
  });
}

void adamw_rounded(float* w, const float* gradient, float* m, float* v, c10::BFloat16* rounded,
                   int64_t n, const AdamWScalars<float>& scalars) {
  adamw(w, gradient, m, v, n, scalars);
  widest([&] PIPER_INLINE_LAMBDA {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) rounded[i] = narrow<c10::BFloat16>(w[i]);
  });
}

template <class T>
double sum_of_squares(const T* x, int64_t n) {
  constexpr int64_t kLanes = 32;
  std::array<double, kLanes> sums{};
  double rest = 0;
  widest([&] PIPER_INLINE_LAMBDA {
    std::array<double, kLanes> lanes{};
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
#pragma omp simd
      for (int64_t lane = 0; lane < kLanes; ++lane) {
        const auto value = static_cast<double>(x[i + lane]);
        lanes[static_cast<size_t>(lane)] += value * value;
      }
    }
    for (; i < n; ++i) rest += static_cast<double>(x[i]) * static_cast<double>(x[i]);
    sums = lanes;
  });
  double total = rest;
  for (const double sum : sums) total += sum;
  return total;
}

template void adamw(float*, const float*, float*, float*, int64_t, const AdamWScalars<float>&);
template void adamw(double*, const double*, double*, double*, int64_t, const AdamWScalars<double>&);
template double sum_of_squares(const float*, int64_t);
template double sum_of_squares(const double*, int64_t);

}  // namespace piper::nn::kernels
