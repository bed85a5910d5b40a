// What the kernels of CUDA devices compute, written once for one row or one place and free of CUDA:
// the device runs it with the threads of a team (kernels.cu), a test with one loop
// (row_math_test.cpp), which is how it is held to the CPU's kernels where there is no device.
//
// A Team shares a row of packs of N elements:
//   each(n, f)   calls f(i) for every i < n; the same i is always the same thread's, so that a
//                later call may read what one has stored
//   sum(n, f)    adds the f(i), in an order that n and the team's size fix, and gives all the sum
//   max(n, f)    the same of the largest
//   is_first()   true of one thread
// Functions named _at compute one pack, or one element, by its number among all.
//
// Values are widened when they are read (fp32 for bf16) and rounded when they are stored. The rows
// of a call with N > 1 begin at multiples of N elements, and their width is one.
#pragma once

#include <piper/nn/cuda/host_device.h>
#include <piper/nn/kernels.h>
#include <piper/nn/normal.h>

#include <cmath>
#include <cstdint>
#include <limits>

namespace piper::nn::cuda {

using kernels::AdamWScalars;
using kernels::Main;
using kernels::RowRange;
using kernels::Rows;

// i = quotient * n + remainder, for i and n that are not negative. It divides numbers of 32 bits
// where they suffice, since CUDA devices divide those of 64 by a longer routine.
struct Division {
  int64_t quotient, remainder;
};
PIPER_EVERYWHERE Division divide(int64_t i, int64_t n) {
  if (((i | n) >> 32) == 0) {
    const auto of = static_cast<uint32_t>(i), by = static_cast<uint32_t>(n);
    const uint32_t quotient = of / by;
    return {quotient, of - quotient * by};
  }
  return {i / n, i % n};
}

template <class T, int N>
struct alignas(sizeof(T) * N) Pack {
  T at[N];
};

template <int N, class T>
PIPER_EVERYWHERE Pack<Main<T>, N> load(const T* row, int64_t pack) {
  const Pack<T, N> stored = reinterpret_cast<const Pack<T, N>*>(row)[pack];
  Pack<Main<T>, N> wide;
  for (int v = 0; v < N; ++v) wide.at[v] = static_cast<Main<T>>(stored.at[v]);
  return wide;
}

template <int N, class T>
PIPER_EVERYWHERE void store(T* row, int64_t pack, const Pack<Main<T>, N>& wide) {
  Pack<T, N> stored;
  for (int v = 0; v < N; ++v) stored.at[v] = static_cast<T>(wide.at[v]);
  reinterpret_cast<Pack<T, N>*>(row)[pack] = stored;
}

template <int N, class T, class Team>
PIPER_EVERYWHERE Main<T> reciprocal_root_mean_square(const Team& team, const T* x, int64_t width,
                                                     Main<T> epsilon) {
  using M = Main<T>;
  const M squares = team.sum(width / N, [&](int64_t p) {
    const Pack<M, N> at = load<N>(x, p);
    M sum = 0;
    for (int v = 0; v < N; ++v) sum += at.at[v] * at.at[v];
    return sum;
  });
  return M(1) / std::sqrt(squares / static_cast<M>(width) + epsilon);
}

// y = weight * x / rms(x); y may be x.
template <int N, class T, class Team>
PIPER_EVERYWHERE void norm_row(const Team& team, const T* x, const T* weight, Main<T> epsilon, T* y,
                               int64_t width) {
  const Main<T> r = reciprocal_root_mean_square<N>(team, x, width, epsilon);
  team.each(width / N, [&](int64_t p) {
    Pack<Main<T>, N> at = load<N>(x, p);
    const Pack<Main<T>, N> w = load<N>(weight, p);
    for (int v = 0; v < N; ++v) at.at[v] = w.at[v] * (at.at[v] * r);
    store<N>(y, p, at);
  });
}

// g becomes the input's gradient, plus `residual` where it is not null. `sums` collects the
// weight's: sums(p) is the Pack of place p, which stays with the thread that has p.
template <int N, class T, class Team, class Sums>
PIPER_EVERYWHERE void norm_row_backward(const Team& team, T* g, const T* x, const T* weight,
                                        const T* residual, Main<T> epsilon, int64_t width,
                                        Sums& sums) {
  using M = Main<T>;
  const M r = reciprocal_root_mean_square<N>(team, x, width, epsilon);
  const M dot = team.sum(width / N, [&](int64_t p) {
    const Pack<M, N> g_p = load<N>(g, p), w_p = load<N>(weight, p), x_p = load<N>(x, p);
    M sum = 0;
    for (int v = 0; v < N; ++v) sum += g_p.at[v] * w_p.at[v] * x_p.at[v];
    return sum;
  });
  const M c = dot * r * r / static_cast<M>(width);
  sums.each(team, width / N, [&](int64_t p, Pack<M, N>& sum) {
    Pack<M, N> g_p = load<N>(g, p);
    const Pack<M, N> w_p = load<N>(weight, p), x_p = load<N>(x, p);
    Pack<M, N> added{};
    if (residual != nullptr) added = load<N>(residual, p);
    for (int v = 0; v < N; ++v) {
      sum.at[v] += g_p.at[v] * x_p.at[v] * r;
      g_p.at[v] = r * (g_p.at[v] * w_p.at[v] - x_p.at[v] * c) + added.at[v];
    }
    store<N>(g, p, g_p);
  });
}

// Column d of what strips of rows have summed.
template <class M>
PIPER_EVERYWHERE M sum_of_strips(int64_t d, const M* strips, int64_t num_strips, int64_t width) {
  M sum = 0;
  for (int64_t strip = 0; strip < num_strips; ++strip) sum += strips[strip * width + d];
  return sum;
}

// Pair `i` among all rows' `half` pairs turns by the angle of its row's position.
template <class T>
PIPER_EVERYWHERE void rotate_at(int64_t i, const Rows<T>& x, const Main<T>* cosine,
                                const Main<T>* sine, int64_t sequence, int64_t half,
                                Main<T> direction, bool interleaved) {
  using M = Main<T>;
  const auto [row, d] = divide(i, half);
  const auto [first, head_of_row] = divide(row, x.n1);
  T* head = x.row(first, head_of_row);
  T* low = head + (interleaved ? 2 * d : d);
  T* high = interleaved ? low + 1 : low + half;
  const int64_t angle = divide(first, sequence).remainder * half + d;
  const M a = static_cast<M>(*low), b = static_cast<M>(*high);
  const M c = cosine[angle], s = direction * sine[angle];
  *low = static_cast<T>(a * c - b * s);
  *high = static_cast<T>(b * c + a * s);
}

template <class M>
PIPER_EVERYWHERE M sigmoid(M x) {
  return M(1) / (M(1) + std::exp(-x));
}

// Pack `i` among all of act [n, F]; a row of h is gate, then up.
template <int N, class T>
PIPER_EVERYWHERE void swiglu_at(int64_t i, const T* h, T* act, int64_t ffn) {
  const auto [row, p] = divide(i, ffn / N);
  const T* gate = h + row * 2 * ffn;
  Pack<Main<T>, N> g = load<N>(gate, p);
  const Pack<Main<T>, N> up = load<N>(gate + ffn, p);
  for (int v = 0; v < N; ++v) g.at[v] = g.at[v] * sigmoid(g.at[v]) * up.at[v];
  store<N>(act + row * ffn, p, g);
}

// h becomes its gradient; g_act, the gradient of act, becomes act.
template <int N, class T>
PIPER_EVERYWHERE void swiglu_backward_at(int64_t i, T* h, T* g_act, int64_t ffn) {
  using M = Main<T>;
  const auto [row, p] = divide(i, ffn / N);
  T* gates = h + row * 2 * ffn;
  Pack<M, N> gate = load<N>(gates, p), up = load<N>(gates + ffn, p),
             g = load<N>(g_act + row * ffn, p);
  for (int v = 0; v < N; ++v) {
    const M s = sigmoid(gate.at[v]), silu = gate.at[v] * s, g_act_v = g.at[v], up_v = up.at[v];
    g.at[v] = silu * up_v;
    up.at[v] = g_act_v * silu;
    gate.at[v] = g_act_v * up_v * s * (M(1) + gate.at[v] * (M(1) - s));
  }
  store<N>(gates, p, gate);
  store<N>(gates + ffn, p, up);
  store<N>(g_act + row * ffn, p, g);
}

// Pack `i` among all of out; T is only moved.
template <int N, class T>
PIPER_EVERYWHERE void gather_row_at(int64_t i, const T* x, const int32_t* index, T* out,
                                    int64_t width) {
  using Stored = Pack<T, N>;
  const auto [row, p] = divide(i, width / N);
  reinterpret_cast<Stored*>(out + row * width)[p] =
      reinterpret_cast<const Stored*>(x + index[row] * width)[p];
}

// out = x1 (nothing where it is null) + sum over j of weights[q] (1 where null) * rows[q], q =
// position[t, j]; none for q < 0. Pack `i` among all of out.
template <int N, class T>
PIPER_EVERYWHERE void sum_rows_at(int64_t i, const T* rows, const Main<T>* weights,
                                  const int32_t* position, const T* x1, T* out, int64_t k,
                                  int64_t width) {
  const auto [token, p] = divide(i, width / N);
  Pack<Main<T>, N> sum{};
  for (int64_t j = 0; j < k; ++j) {
    const int64_t q = position[token * k + j];
    if (q < 0) continue;
    const Main<T> weight = weights == nullptr ? Main<T>(1) : weights[q];
    const Pack<Main<T>, N> row = load<N>(rows + q * width, p);
    for (int v = 0; v < N; ++v) sum.at[v] += weight * row.at[v];
  }
  if (x1 != nullptr) {
    const Pack<Main<T>, N> added = load<N>(x1 + token * width, p);
    for (int v = 0; v < N; ++v) sum.at[v] += added.at[v];
  }
  store<N>(out + token * width, p, sum);
}

// One token's copies; as kernels::merge_backward.
template <int N, class T, class Team>
PIPER_EVERYWHERE void merge_row_backward(const Team& team, int64_t token, const T* gx,
                                         const T* returned, const Main<T>* weights,
                                         const int32_t* position, T* g_returned, Main<T>* g_weights,
                                         RowRange own, int64_t k, int64_t width) {
  using M = Main<T>;
  const T* g = gx + token * width;
  for (int64_t j = 0; j < k; ++j) {
    const int64_t q = position[token * k + j];
    if (q < 0) continue;
    const M dot = team.sum(width / N, [&](int64_t p) {
      const Pack<M, N> g_p = load<N>(g, p), row = load<N>(returned + q * width, p);
      M sum = 0;
      for (int v = 0; v < N; ++v) sum += g_p.at[v] * row.at[v];
      return sum;
    });
    if (team.is_first()) g_weights[q] = dot;
    if (q < own.first || q >= own.first + own.count) continue;
    team.each(width / N, [&](int64_t p) {
      Pack<M, N> g_p = load<N>(g, p);
      for (int v = 0; v < N; ++v) g_p.at[v] *= weights[q];
      store<N>(g_returned + (q - own.first) * width, p, g_p);
    });
  }
}

// Row i of those sorted by where they go (`sorted`, and `order`: which row each is): the first of
// equal ones adds them all to table[sorted[i]], in their order.
template <int N, class T, class Team>
PIPER_EVERYWHERE void add_equal_rows(const Team& team, int64_t i, const int64_t* sorted,
                                     const int64_t* order, const T* rows, Main<T>* table, int64_t n,
                                     int64_t width) {
  if (i > 0 && sorted[i - 1] == sorted[i]) return;
  Main<T>* to = table + sorted[i] * width;
  team.each(width / N, [&](int64_t p) {
    Pack<Main<T>, N> sum = load<N>(to, p);
    for (int64_t at = i; at < n && sorted[at] == sorted[i]; ++at) {
      const Pack<Main<T>, N> row = load<N>(rows + order[at] * width, p);
      for (int v = 0; v < N; ++v) sum.at[v] += row.at[v];
    }
    store<N>(to, p, sum);
  });
}

// -log softmax(logits)[target], 0 for a target of -100, no number for one outside the vocabulary.
// With `gradient` the logits become scale times its gradient.
template <int N, class T, class Team>
PIPER_EVERYWHERE double cross_entropy_row(const Team& team, T* logits, int64_t target,
                                          int64_t vocabulary, bool gradient, double scale) {
  using M = Main<T>;
  const int64_t packs = vocabulary / N;
  if (target == -100) {
    if (gradient) team.each(packs, [&](int64_t p) { store<N>(logits, p, Pack<M, N>{}); });
    return 0;
  }
  const M largest = team.max(packs, [&](int64_t p) {
    const Pack<M, N> at = load<N>(logits, p);
    M most = at.at[0];
    for (int v = 1; v < N; ++v) most = at.at[v] > most ? at.at[v] : most;
    return most;
  });
  const M sum = team.sum(packs, [&](int64_t p) {
    const Pack<M, N> at = load<N>(logits, p);
    M of = 0;
    for (int v = 0; v < N; ++v) of += std::exp(at.at[v] - largest);
    return of;
  });
  // Read by all before it is overwritten: the sum has met in between.
  constexpr double kNoNumber = std::numeric_limits<double>::quiet_NaN();
  const double wanted = target >= 0 && target < vocabulary
                            ? static_cast<double>(static_cast<M>(logits[target]))
                            : kNoNumber;
  const double loss = std::log(static_cast<double>(sum)) + static_cast<double>(largest) - wanted;
  team.meet();
  if (gradient)
    team.each(packs, [&](int64_t p) {
      Pack<M, N> at = load<N>(logits, p);
      for (int v = 0; v < N; ++v) {
        const M probability = std::exp(at.at[v] - largest) / sum;
        at.at[v] = static_cast<M>(scale) * (probability - (p * N + v == target ? M(1) : M(0)));
      }
      store<N>(logits, p, at);
    });
  return loss;
}

// The sum of squares, in fp64, of part `part` of `parts` of x's packs.
template <int N, class Team>
PIPER_EVERYWHERE double squares_of_part(const Team& team, const float* x, int64_t packs,
                                        int64_t part, int64_t parts) {
  const int64_t each = (packs + parts - 1) / parts, first = part * each;
  const int64_t count = first >= packs ? 0 : packs - first < each ? packs - first : each;
  return team.sum(count, [&](int64_t p) {
    const Pack<float, N> at = load<N>(x, first + p);
    double sum = 0;
    for (int v = 0; v < N; ++v)
      sum += static_cast<double>(at.at[v]) * static_cast<double>(at.at[v]);
    return sum;
  });
}

// Element `at` of the whole tensor (init.h).
template <class T>
PIPER_EVERYWHERE T normal_at(uint64_t at, uint64_t seed, uint64_t hashed_name, double range) {
  const double value = range * normal_pair(seed, hashed_name, at / 2)[at % 2];
  return static_cast<T>(static_cast<Main<T>>(value));
}

// Pack `i` of the parameters; `rounded` (null without) takes the new weights in bf16.
template <int N, class T>
PIPER_EVERYWHERE void adamw_at(int64_t i, T* w, const T* gradient, T* m, T* v,
                               c10::BFloat16* rounded, const AdamWScalars<T>& s) {
  Pack<T, N> w_p = load<N>(w, i), m_p = load<N>(m, i), v_p = load<N>(v, i);
  const Pack<T, N> g_p = load<N>(gradient, i);
  for (int e = 0; e < N; ++e) {
    const T g = g_p.at[e] * s.gradient_scale;
    m_p.at[e] += s.one_minus_beta1 * (g - m_p.at[e]);
    v_p.at[e] = s.beta2 * v_p.at[e] + s.one_minus_beta2 * g * g;
    w_p.at[e] =
        s.keep * w_p.at[e] -
        s.step_size * m_p.at[e] / (std::sqrt(v_p.at[e]) * s.inverse_root_correction2 + s.epsilon);
  }
  store<N>(w, i, w_p);
  store<N>(m, i, m_p);
  store<N>(v, i, v_p);
  if (rounded == nullptr) return;
  Pack<float, N> narrow;
  for (int e = 0; e < N; ++e) narrow.at[e] = static_cast<float>(w_p.at[e]);
  store<N>(rounded, i, narrow);
}

}  // namespace piper::nn::cuda
