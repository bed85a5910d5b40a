// Moving, weighting and summing rows.
#include <piper/nn/kernels.h>
#include <piper/nn/simd.h>

#include <algorithm>
#include <cstring>

namespace piper::nn::kernels {

template <class T>
void gather_rows(const T* x, const int32_t* index, T* out, int64_t n, int64_t width) {
  const size_t bytes = sizeof(T) * static_cast<size_t>(width);
  for (int64_t i = 0; i < n; ++i) std::memcpy(out + i * width, x + index[i] * width, bytes);
}

template <class T>
void sum_rows(const T* rows, const int32_t* position, T* out, int64_t tokens, int64_t k,
              int64_t width) {
  widest([&] PIPER_INLINE_LAMBDA {
    for (int64_t t = 0; t < tokens; ++t) {
      T* to = out + t * width;
      int64_t j = 0;
      while (j < k && position[t * k + j] < 0) ++j;
      if (j == k) {
        std::fill(to, to + width, T(0));
        continue;
      }
      std::memcpy(to, rows + position[t * k + j] * width, sizeof(T) * static_cast<size_t>(width));
      for (++j; j < k; ++j) {
        if (position[t * k + j] < 0) continue;
        const T* from = rows + position[t * k + j] * width;
#pragma omp simd
        for (int64_t d = 0; d < width; ++d) to[d] = narrow<T>(widen(to[d]) + widen(from[d]));
      }
    }
  });
}

template <class T>
void add_rows(Main<T>* table, const int64_t* index, const T* rows, int64_t n, int64_t width) {
  widest([&] PIPER_INLINE_LAMBDA {
    for (int64_t i = 0; i < n; ++i) {
      Main<T>* to = table + index[i] * width;
      const T* from = rows + i * width;
#pragma omp simd
      for (int64_t d = 0; d < width; ++d) to[d] += widen(from[d]);
    }
  });
}

void add_narrow(float* to, const c10::BFloat16* from, int64_t n) {
  widest([&] PIPER_INLINE_LAMBDA {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) to[i] += widen(from[i]);
  });
}

template <class T>
void merge(const T* returned, const Main<T>* weights, const int32_t* position, const T* x1, T* out,
           int64_t tokens, int64_t k, int64_t width) {
  widest([&] PIPER_INLINE_LAMBDA {
    for (int64_t t = 0; t < tokens; ++t) {
      T* to = out + t * width;
      if (x1 != out) std::memcpy(to, x1 + t * width, sizeof(T) * static_cast<size_t>(width));
      for (int64_t j = 0; j < k; ++j) {
        const int64_t p = position[t * k + j];
        if (p < 0) continue;
        const T* from = returned + p * width;
        const Main<T> weight = weights[p];
#pragma omp simd
        for (int64_t d = 0; d < width; ++d)
          to[d] = narrow<T>(widen(to[d]) + weight * widen(from[d]));
      }
    }
  });
}

template <class T>
void merge_backward(const T* gx, const T* returned, const Main<T>* weights, const int32_t* position,
                    T* g_returned, Main<T>* g_weights, RowRange own, int64_t tokens, int64_t k,
                    int64_t width) {
  widest([&] PIPER_INLINE_LAMBDA {
    for (int64_t t = 0; t < tokens; ++t) {
      const T* g = gx + t * width;
      for (int64_t j = 0; j < k; ++j) {
        const int64_t p = position[t * k + j];
        if (p < 0) continue;
        const T* from = returned + p * width;
        Main<T> dot = 0;
        if (p < own.first || p >= own.first + own.count) {
#pragma omp simd reduction(+ : dot)
          for (int64_t d = 0; d < width; ++d) dot += widen(g[d]) * widen(from[d]);
          g_weights[p] = dot;
          continue;
        }
        T* to = g_returned + (p - own.first) * width;
        const Main<T> weight = weights[p];
#pragma omp simd reduction(+ : dot)
        for (int64_t d = 0; d < width; ++d) {
          to[d] = narrow<T>(weight * widen(g[d]));
          dot += widen(g[d]) * widen(from[d]);
        }
        g_weights[p] = dot;
      }
    }
  });
}

#define PIPER_INSTANTIATE(T)                                                                     \
  template void gather_rows(const T*, const int32_t*, T*, int64_t, int64_t);                     \
  template void sum_rows(const T*, const int32_t*, T*, int64_t, int64_t, int64_t);               \
  template void add_rows(Main<T>*, const int64_t*, const T*, int64_t, int64_t);                  \
  template void merge(const T*, const Main<T>*, const int32_t*, const T*, T*, int64_t, int64_t,  \
                      int64_t);                                                                  \
  template void merge_backward(const T*, const T*, const Main<T>*, const int32_t*, T*, Main<T>*, \
                               RowRange, int64_t, int64_t, int64_t);
PIPER_INSTANTIATE(float)
PIPER_INSTANTIATE(double)
PIPER_INSTANTIATE(c10::BFloat16)

}  // namespace piper::nn::kernels
