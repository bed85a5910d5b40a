// The mathematics of the CUDA kernels, run here with one loop in place of a team of threads, against
// the CPU's kernels and the compositions: in fp64, fp32 and bf16, with packs and without.
#include <doctest/doctest.h>
#include <piper/base/hash.h>
#include <piper/nn/cuda/row_math.h>
#include <piper/nn/init.h>
#include <piper/nn/tensor_ops.h>
#include <testing/nn/numbers.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace piper::nn {
namespace {

using kernels::Main;
using kernels::Rows;

// All threads of a team in turn.
struct Loop {
  bool is_first() const { return true; }
  void meet() const {}
  template <class F>
  void each(int64_t n, F f) const {
    for (int64_t i = 0; i < n; ++i) f(i);
  }
  template <class F>
  auto sum(int64_t n, F f) const {
    decltype(f(int64_t{0})) all = 0;
    each(n, [&](int64_t i) { all += f(i); });
    return all;
  }
  template <class F>
  auto max(int64_t n, F f) const {
    auto most = -std::numeric_limits<decltype(f(int64_t{0}))>::infinity();
    each(n, [&](int64_t i) { most = std::max(most, f(i)); });
    return most;
  }
};

template <class M, int N>
struct Sums {
  std::vector<cuda::Pack<M, N>> of;
  template <class F>
  void each(const Loop&, int64_t n, F f) {
    of.resize(static_cast<size_t>(n));
    for (int64_t p = 0; p < n; ++p) f(p, of[static_cast<size_t>(p)]);
  }
};

template <class T>
at::ScalarType type_of() {
  return c10::CppTypeToScalarType<T>::value;
}
template <class T>
double tolerance() {
  return type_of<T>() == at::kDouble ? 1e-12 : type_of<T>() == at::kFloat ? 2e-5 : 4e-2;
}

// Calls f(T{}, number of elements of a pack) for what the device's launches choose from.
template <class F>
void in_every_form(F f) {
  f(double{}, std::integral_constant<int, 2>{});
  f(double{}, std::integral_constant<int, 1>{});
  f(float{}, std::integral_constant<int, 4>{});
  f(float{}, std::integral_constant<int, 1>{});
  f(c10::BFloat16{}, std::integral_constant<int, 8>{});
  f(c10::BFloat16{}, std::integral_constant<int, 1>{});
}

constexpr Loop kTeam;
constexpr int64_t kWidth = 48, kRows = 7;

TEST_CASE("places are divided by 32 bits and by 64, and squares summed in parts") {
  for (const int64_t i : {int64_t{0}, int64_t{7}, int64_t{1} << 31, (int64_t{1} << 32) - 1,
                          int64_t{1} << 32, (int64_t{1} << 40) + 12345})
    for (const int64_t n : {int64_t{1}, int64_t{3}, int64_t{896}, (int64_t{1} << 33) + 1}) {
      const auto [quotient, remainder] = cuda::divide(i, n);
      CHECK(quotient == i / n);
      CHECK(remainder == i % n);
    }
  for (const int64_t n : {4, 60, 4096})
    for (const int64_t parts : {1, 7, 32}) {
      const at::Tensor x = wave({n}, 0.5, at::kFloat);
      const auto* values = x.const_data_ptr<float>();
      double in_packs = 0, one_by_one = 0;
      for (int64_t part = 0; part < parts; ++part) {
        in_packs += cuda::squares_of_part<4>(kTeam, values, n / 4, part, parts);
        one_by_one += cuda::squares_of_part<1>(kTeam, values, n, part, parts);
      }
      const double expected = x.to(at::kDouble).square().sum().item<double>();
      CHECK(in_packs == doctest::Approx(expected).epsilon(1e-12));
      CHECK(one_by_one == doctest::Approx(expected).epsilon(1e-12));
    }
}

TEST_CASE("a device's initial weights are the processor's, bit for bit") {
  const TensorPart part = part_along({6, 9}, 1, 3, 5);
  in_every_form([&]<class T, int N>(T, std::integral_constant<int, N>) {
    const at::Tensor expected = at::empty({6, 5}, type_of<T>());
    fill_normal(expected, 7, "w", 0.02, part);
    at::Tensor made = at::empty_like(expected);
    for (int64_t i = 0; i < made.numel(); ++i)
      made.data_ptr<T>()[i] =
          cuda::normal_at<T>(static_cast<uint64_t>(places_of(part).of(i)), 7, fnv1a64("w"), 0.02);
    CHECK(at::equal(made, expected));
  });
}

TEST_CASE("the norm's rows and their backward, in strips") {
  in_every_form([]<class T, int N>(T, std::integral_constant<int, N>) {
    using M = Main<T>;
    const at::ScalarType dtype = type_of<T>();
    const at::Tensor x = wave({kRows, kWidth}, 0, dtype), w = wave({kWidth}, 1, dtype);
    const at::Tensor y = at::empty_like(x), expected = at::empty_like(x);
    for (int64_t row = 0; row < kRows; ++row)
      cuda::norm_row<N>(kTeam, x.const_data_ptr<T>() + row * kWidth, w.const_data_ptr<T>(), M(1e-5),
                        y.data_ptr<T>() + row * kWidth, kWidth);
    rms_norm_out(expected, x, w, 1e-5);
    CHECK(difference(y, expected) < tolerance<T>());
    for (const double beta : {0.0, 1.0}) {
      const at::Tensor residual = beta == 0 ? at::Tensor() : wave({kRows, kWidth}, 4, dtype);
      const at::Tensor g = wave({kRows, kWidth}, 2, dtype), g_expected = g.clone();
      const at::Tensor gw = wave({kWidth}, 3, main_type(dtype)), gw_expected = gw.clone();
      constexpr int64_t kStrips = 3;
      const at::Tensor strips = at::empty({kStrips, kWidth}, gw.options());
      for (int64_t strip = 0; strip < kStrips; ++strip) {
        Sums<M, N> sums;
        for (int64_t row = strip; row < kRows; row += kStrips)
          cuda::norm_row_backward<N>(
              kTeam, g.data_ptr<T>() + row * kWidth, x.const_data_ptr<T>() + row * kWidth,
              w.const_data_ptr<T>(),
              residual.defined() ? residual.const_data_ptr<T>() + row * kWidth : nullptr, M(1e-5),
              kWidth, sums);
        for (int64_t p = 0; p < kWidth / N; ++p)
          cuda::store<N>(strips.data_ptr<M>() + strip * kWidth, p, sums.of[static_cast<size_t>(p)]);
      }
      for (int64_t d = 0; d < kWidth; ++d)
        gw.data_ptr<M>()[d] = (beta == 0 ? M(0) : gw.data_ptr<M>()[d]) +
                              cuda::sum_of_strips(d, strips.const_data_ptr<M>(), kStrips, kWidth);
      rms_norm_backward_(g_expected, x, w, 1e-5, gw_expected, beta, residual);
      CHECK(difference(g, g_expected) < tolerance<T>());
      CHECK(difference(gw, gw_expected) < tolerance<T>());
    }
  });
}

TEST_CASE("rotation, of neighbours too, and back") {
  in_every_form([]<class T, int N>(T, std::integral_constant<int, N>) {
    if (N > 1) return;
    using M = Main<T>;
    const at::ScalarType dtype = type_of<T>();
    for (const bool interleaved : {false, true})
      for (const bool back : {false, true}) {
        const RopeTable table{.cosine = at::cos(wave({3, 4}, 5, main_type(dtype))),
                              .sine = at::sin(wave({3, 4}, 5, main_type(dtype))),
                              .interleaved = interleaved};
        const at::Tensor x = wave({6, 3, 10}, 0, dtype), expected = x.clone();
        const Rows<T> rows{
            .data = x.data_ptr<T>(), .n0 = 6, .n1 = 3, .s0 = 30, .s1 = 10, .width = 10};
        for (int64_t i = 0; i < 6 * 3 * 4; ++i)
          cuda::rotate_at(i, rows, table.cosine.const_data_ptr<M>(), table.sine.const_data_ptr<M>(),
                          3, 4, back ? M(-1) : M(1), interleaved);
        rotate_(expected, table, 3, back);
        CHECK(difference(x, expected) < tolerance<T>());
      }
  });
}

TEST_CASE("SwiGLU and its backward") {
  in_every_form([]<class T, int N>(T, std::integral_constant<int, N>) {
    const at::ScalarType dtype = type_of<T>();
    const at::Tensor h = wave({kRows, 2 * kWidth}, 0, dtype) * 3, h_expected = h.clone();
    const at::Tensor act = at::empty({kRows, kWidth}, h.options()), expected = at::empty_like(act);
    const int64_t packs = kRows * kWidth / N;
    for (int64_t i = 0; i < packs; ++i)
      cuda::swiglu_at<N>(i, h.const_data_ptr<T>(), act.data_ptr<T>(), kWidth);
    swiglu_out(expected, h);
    CHECK(difference(act, expected) < 4 * tolerance<T>());
    const at::Tensor g = wave({kRows, kWidth}, 1, dtype), g_expected = g.clone();
    for (int64_t i = 0; i < packs; ++i)
      cuda::swiglu_backward_at<N>(i, h.data_ptr<T>(), g.data_ptr<T>(), kWidth);
    swiglu_backward_(h_expected, g_expected);
    CHECK(difference(g, g_expected) < 4 * tolerance<T>());
    CHECK(difference(h, h_expected) < 4 * tolerance<T>());
  });
}

TEST_CASE("rows gathered, summed, merged and scattered; copies that were dropped") {
  in_every_form([]<class T, int N>(T, std::integral_constant<int, N>) {
    using M = Main<T>;
    const at::ScalarType dtype = type_of<T>();
    constexpr int64_t kTokens = 4, kCopies = 2, kFound = 6;  // two of the eight copies are dropped
    const at::Tensor position =
        at::tensor({3, 0, -1, 5, 1, -1, 4, 2}, at::kInt).view({kTokens, kCopies});
    const at::Tensor rows = wave({kFound, kWidth}, 0, dtype),
                     x1 = wave({kTokens, kWidth}, 1, dtype);
    const at::Tensor weights = wave({kFound}, 2, main_type(dtype));
    const auto* positions = position.const_data_ptr<int32_t>();
    const int64_t packs = kTokens * kWidth / N;

    const at::Tensor index = at::tensor({1, 3, 0, 3, 2}, at::kInt);
    const at::Tensor gathered = at::empty({5, kWidth}, rows.options()),
                     expected = at::empty_like(gathered);
    for (int64_t i = 0; i < 5 * kWidth / N; ++i)
      cuda::gather_row_at<N>(i, rows.const_data_ptr<T>(), index.const_data_ptr<int32_t>(),
                             gathered.data_ptr<T>(), kWidth);
    gather_rows_out(expected, rows, index);
    CHECK(at::equal(gathered, expected));

    const at::Tensor out = at::empty_like(x1), sums = at::empty_like(x1);
    for (int64_t i = 0; i < packs; ++i)
      cuda::sum_rows_at<N, T>(i, rows.const_data_ptr<T>(), nullptr, positions, nullptr,
                              out.data_ptr<T>(), kCopies, kWidth);
    sum_rows_out(sums, rows, position);
    CHECK(difference(out, sums) < tolerance<T>());
    for (int64_t i = 0; i < packs; ++i)
      cuda::sum_rows_at<N>(i, rows.const_data_ptr<T>(), weights.const_data_ptr<M>(), positions,
                           x1.const_data_ptr<T>(), out.data_ptr<T>(), kCopies, kWidth);
    merge_out(sums, rows, weights, position, x1);
    CHECK(difference(out, sums) < tolerance<T>());

    // All rows, and a share of them.
    for (const auto& [first, count] : {std::pair<int64_t, int64_t>{0, kFound}, {2, 3}}) {
      const at::Tensor g = at::zeros({count, kWidth}, rows.options()), g_expected = g.clone();
      const at::Tensor gw = at::zeros_like(weights), gw_expected = gw.clone();
      for (int64_t token = 0; token < kTokens; ++token)
        cuda::merge_row_backward<N>(kTeam, token, x1.const_data_ptr<T>(), rows.const_data_ptr<T>(),
                                    weights.const_data_ptr<M>(), positions, g.data_ptr<T>(),
                                    gw.data_ptr<M>(), {first, count}, kCopies, kWidth);
      merge_backward_out(g_expected, gw_expected, x1, rows, weights, position, first);
      CHECK(difference(g, g_expected) < tolerance<T>());
      CHECK(difference(gw, gw_expected) < tolerance<T>() * kWidth);
    }

    const at::Tensor to = at::tensor({2, 0, 2, 1, 2, 0}, at::kLong);
    const auto [sorted, order] = at::sort(to, /*stable=*/true, 0, /*descending=*/false);
    const at::Tensor table = wave({3, kWidth}, 6, main_type(dtype)), table_expected = table.clone();
    constexpr int kPack = sizeof(T) == sizeof(M) ? N : 1;
    for (int64_t i = 0; i < kFound; ++i)
      cuda::add_equal_rows<kPack>(kTeam, i, sorted.const_data_ptr<int64_t>(),
                                  order.const_data_ptr<int64_t>(), rows.const_data_ptr<T>(),
                                  table.data_ptr<M>(), kFound, kWidth);
    add_rows_(table_expected, to, rows);
    CHECK(difference(table, table_expected) < 1e-5);
  });
}

TEST_CASE("cross-entropy by row, and its gradient") {
  in_every_form([]<class T, int N>(T, std::integral_constant<int, N>) {
    const at::ScalarType dtype = type_of<T>();
    const at::Tensor target = at::tensor({3, -100, 47, 0, 11, -100, 20}, at::kLong);
    for (const bool gradient : {false, true}) {
      const at::Tensor logits = wave({kRows, kWidth}, 0, dtype) * 4, expected = logits.clone();
      double loss = 0;
      for (int64_t row = 0; row < kRows; ++row)
        loss += cuda::cross_entropy_row<N>(kTeam, logits.data_ptr<T>() + row * kWidth,
                                           target[row].item<int64_t>(), kWidth, gradient, 0.25);
      const double expected_loss = cross_entropy_(expected, target, gradient, 0.25).read();
      CHECK(loss == doctest::Approx(expected_loss).epsilon(1e-5));
      if (gradient) CHECK(difference(logits, expected) < 0.05 * tolerance<T>());
    }
    // Nothing beside the row is read.
    for (const int64_t outside : {int64_t{-1}, kWidth}) {
      const at::Tensor logits = wave({1, kWidth}, 0, dtype);
      CHECK(std::isnan(cuda::cross_entropy_row<N>(kTeam, logits.data_ptr<T>(), outside, kWidth,
                                                  /*gradient=*/true, 1)));
    }
  });
}

TEST_CASE("AdamW, with weights that are rounded") {
  in_every_form([]<class T, int N>(T, std::integral_constant<int, N>) {
    if constexpr (sizeof(T) > 2) {
      const at::ScalarType dtype = type_of<T>();
      const kernels::AdamWScalars<T> scalars{.keep = T(0.999),
                                             .one_minus_beta1 = T(0.1),
                                             .beta2 = T(0.95),
                                             .one_minus_beta2 = T(0.05),
                                             .step_size = T(2e-3),
                                             .inverse_root_correction2 = T(1.5),
                                             .epsilon = T(1e-8),
                                             .gradient_scale = T(0.5)};
      const at::Tensor g = wave({kWidth}, 1, dtype);
      std::vector<at::Tensor> ours, theirs;
      for (int i = 0; i < 3; ++i) {
        ours.push_back(wave({kWidth}, 2 + i, dtype).abs());
        theirs.push_back(ours.back().clone());
      }
      const at::Tensor rounded = at::empty({kWidth}, at::kBFloat16);
      for (int64_t i = 0; i < kWidth / N; ++i)
        cuda::adamw_at<N>(i, ours[0].data_ptr<T>(), g.const_data_ptr<T>(), ours[1].data_ptr<T>(),
                          ours[2].data_ptr<T>(), rounded.data_ptr<c10::BFloat16>(), scalars);
      kernels::adamw(theirs[0].data_ptr<T>(), g.const_data_ptr<T>(), theirs[1].data_ptr<T>(),
                     theirs[2].data_ptr<T>(), kWidth, scalars);
      for (size_t i = 0; i < 3; ++i) CHECK(difference(ours[i], theirs[i]) < tolerance<T>() / 10);
      CHECK(at::equal(rounded, ours[0].to(at::kFloat).to(at::kBFloat16)));
    }
  });
}

}  // namespace
}  // namespace piper::nn
