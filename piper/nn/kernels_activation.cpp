// SwiGLU, softmax, the router and the cross-entropy.
#include <piper/nn/kernels.h>
#include <piper/nn/simd.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace piper::nn::kernels {
namespace {

template <class T>
PIPER_INLINE Main<T> row_maximum(const T* x, int64_t width) {
  Main<T> largest = widen(x[0]);
#pragma omp simd reduction(max : largest)
  for (int64_t i = 0; i < width; ++i) {
    const Main<T> value = widen(x[i]);
    largest = value > largest ? value : largest;
  }
  return largest;
}

// x := exp(x - largest); returns the sum.
template <class T>
PIPER_INLINE Main<T> exponentials(T* x, int64_t width, Main<T> largest) {
  Main<T> sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < width; ++i) {
    const Main<T> value = vector_exp(widen(x[i]) - largest);
    x[i] = narrow<T>(value);
    sum += value;
  }
  return sum;
}

template <class T>
PIPER_INLINE void scale_row(T* x, int64_t width, Main<T> factor) {
#pragma omp simd
  for (int64_t i = 0; i < width; ++i) x[i] = narrow<T>(widen(x[i]) * factor);
}

}  // namespace

template <class T>
void swiglu(const T* h, T* act, int64_t n, int64_t ffn) {
  widest([&] PIPER_INLINE_LAMBDA {
    for (int64_t i = 0; i < n; ++i) {
      const T* gate = h + i * 2 * ffn;
      const T* up = gate + ffn;
      T* to = act + i * ffn;
#pragma omp simd
      for (int64_t f = 0; f < ffn; ++f) {
        const Main<T> g = widen(gate[f]);
        to[f] = narrow<T>(g / (Main<T>(1) + vector_exp(-g)) * widen(up[f]));
      }
    }
  });
}

template <class T>
void swiglu_backward(T* h, T* g_act, int64_t n, int64_t ffn) {
  using M = Main<T>;
  widest([&] PIPER_INLINE_LAMBDA {
    for (int64_t i = 0; i < n; ++i) {
      T* gate = h + i * 2 * ffn;
      T* up = gate + ffn;
      T* g = g_act + i * ffn;
#pragma omp simd
      for (int64_t f = 0; f < ffn; ++f) {
        const M sigmoid = M(1) / (M(1) + vector_exp(-widen(gate[f])));
        const M silu = widen(gate[f]) * sigmoid;
        const M slope = sigmoid + silu * (M(1) - sigmoid);
        const M g_out = widen(g[f]), u = widen(up[f]);
        g[f] = narrow<T>(silu * u);
        up[f] = narrow<T>(g_out * silu);
        gate[f] = narrow<T>(g_out * u * slope);
      }
    }
  });
}

template <class T>
void softmax(T* x, T* log_sum, int64_t n, int64_t width) {
  widest([&] PIPER_INLINE_LAMBDA {
    for (int64_t i = 0; i < n; ++i) {
      T* row = x + i * width;
      const T largest = row_maximum(row, width);
      const T sum = exponentials(row, width, largest);
      if (log_sum) log_sum[i] = largest + std::log(sum);
      scale_row(row, width, T(1) / sum);
    }
  });
}

template <class T>
void choose_experts(const T* probabilities, int32_t* expert, int64_t tokens, int64_t num_experts,
                    int64_t k) {
  for (int64_t t = 0; t < tokens; ++t) {
    const T* p = probabilities + t * num_experts;
    int32_t* chosen = expert + t * k;
    // Insertion into a sorted list of k: strictly greater moves up, so equals keep their order.
    int64_t held = 0;
    for (int64_t e = 0; e < num_experts; ++e) {
      if (held == k && !(p[e] > p[chosen[k - 1]])) continue;
      int64_t at = held < k ? held++ : k - 1;
      for (; at > 0 && p[e] > p[chosen[at - 1]]; --at) chosen[at] = chosen[at - 1];
      chosen[at] = static_cast<int32_t>(e);
    }
  }
}

namespace {

// The logits become their sigmoids; `g` holds scale * softmax(logits), the gradient of scale *
// log-sum-exp.
template <class T>
void sigmoid_and_softmax(T* logits, T* g, int64_t width, T scale) {
  const T largest = *std::max_element(logits, logits + width);
  T sum = 0;
  for (int64_t e = 0; e < width; ++e) sum += g[e] = std::exp(logits[e] - largest);
  for (int64_t e = 0; e < width; ++e) {
    g[e] *= scale / sum;
    logits[e] = T(1) / (T(1) + std::exp(-logits[e]));
  }
}

}  // namespace

template <class T>
void router_backward(T* probabilities, const RouterGradient<T>& in) {
  std::vector<T> g_row(static_cast<size_t>(in.num_experts)), g_softmax(g_row.size());
  T* g = g_row.data();
  for (int64_t t = 0; t < in.tokens; ++t) {
    T* p = probabilities + t * in.num_experts;
    const T g_log_sum = in.g_log_sum ? in.g_log_sum[t] : T(0);
    if (in.g_log_sum && in.sigmoid)
      sigmoid_and_softmax(p, g_softmax.data(), in.num_experts, g_log_sum);
    const T* auxiliary =
        in.auxiliary ? in.auxiliary + (in.first_token + t) / in.sequence * in.num_experts : nullptr;
    for (int64_t e = 0; e < in.num_experts; ++e) g[e] = auxiliary ? auxiliary[e] : T(0);
    if (auxiliary && in.sigmoid) {  // of p / sum(p)
      T sum = 0, dot = 0;
      for (int64_t e = 0; e < in.num_experts; ++e) {
        sum += p[e];
        dot += g[e] * p[e];
      }
      for (int64_t e = 0; e < in.num_experts; ++e) g[e] = (g[e] - dot / sum) / sum;
    }
    // normalised: w = s p / chosen, dL/dp = (s dL/dw - sum(w dL/dw)) / chosen
    T chosen = 1, mean = 0;
    if (in.normalised) {
      chosen = 0;
      for (int64_t j = t * in.k; j < (t + 1) * in.k; ++j) {
        chosen += p[in.expert[j]];
        if (in.position[j] >= 0) mean += in.weights[in.position[j]] * in.g_weights[in.position[j]];
      }
    }
    for (int64_t j = t * in.k; j < (t + 1) * in.k; ++j) {
      const T g_weight = in.position[j] >= 0 ? in.g_weights[in.position[j]] : T(0);
      g[in.expert[j]] += (in.scaling * g_weight - mean) / chosen;
    }
    if (in.sigmoid) {
      for (int64_t e = 0; e < in.num_experts; ++e) p[e] *= (1 - p[e]) * g[e];
      if (in.g_log_sum)
        for (int64_t e = 0; e < in.num_experts; ++e) p[e] += g_softmax[static_cast<size_t>(e)];
      continue;
    }
    T dot = -g_log_sum;  // whose gradient is the softmax itself
    for (int64_t e = 0; e < in.num_experts; ++e) dot += g[e] * p[e];
    for (int64_t e = 0; e < in.num_experts; ++e) p[e] *= g[e] - dot;
  }
}

template <class T>
double cross_entropy(T* logits, const int64_t* target, int64_t n, int64_t vocabulary, bool gradient,
                     double scale) {
  double loss = 0;
  widest([&] PIPER_INLINE_LAMBDA {
    for (int64_t i = 0; i < n; ++i) {
      T* row = logits + i * vocabulary;
      if (target[i] == -100) {
        if (gradient) std::fill(row, row + vocabulary, T(0));
        continue;
      }
      const Main<T> largest = row_maximum(row, vocabulary);
      const double right =
          static_cast<double>(widen(row[target[i]])) - static_cast<double>(largest);
      const Main<T> sum = exponentials(row, vocabulary, largest);
      loss += std::log(static_cast<double>(sum)) - right;
      if (!gradient) continue;
      scale_row(row, vocabulary, static_cast<Main<T>>(scale / static_cast<double>(sum)));
      row[target[i]] = narrow<T>(widen(row[target[i]]) - static_cast<Main<T>>(scale));
    }
  });
  return loss;
}

#define PIPER_INSTANTIATE(T)                               \
  template void swiglu(const T*, T*, int64_t, int64_t);    \
  template void swiglu_backward(T*, T*, int64_t, int64_t); \
  template double cross_entropy(T*, const int64_t*, int64_t, int64_t, bool, double);
PIPER_INSTANTIATE(float)
PIPER_INSTANTIATE(double)
PIPER_INSTANTIATE(c10::BFloat16)
#undef PIPER_INSTANTIATE

// The router's.
#define PIPER_INSTANTIATE(T)                                                   \
  template void softmax(T*, T*, int64_t, int64_t);                             \
  template void choose_experts(const T*, int32_t*, int64_t, int64_t, int64_t); \
  template void router_backward(T*, const RouterGradient<T>&);
PIPER_INSTANTIATE(float)
PIPER_INSTANTIATE(double)

}  // namespace piper::nn::kernels
