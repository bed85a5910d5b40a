// The functions of tensor_ops.h that have kernels for CUDA devices, case by case: on a device
// (kernels_test.cpp) and on the CPU, which runs the kernels thread by thread (tests/cuda_on_cpu).
// Each is compared with the compositions on the same tensors.
#pragma once

#include <doctest/doctest.h>
#include <piper/nn/init.h>
#include <piper/nn/tensor_ops.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <vector>

namespace piper::nn::cuda::testing {

// Returns the largest error as a part of the largest element.
inline double error(const at::Tensor& made, const at::Tensor& expected) {
  if (expected.numel() == 0) return made.numel() == 0 ? 0 : 1;
  const at::Tensor a = made.cpu().to(at::kDouble), b = expected.cpu().to(at::kDouble);
  return ((a - b).abs().max() / (b.abs().max() + 1e-30)).item<double>();
}

// Sums of up to some thousand terms in another order, and a rounding of what is stored.
inline double tolerance(at::ScalarType dtype) {
  return dtype == at::kDouble ? 1e-11 : dtype == at::kFloat ? 1e-4 : 2e-2;
}

// `compute` works on the tensors in place: by the kernels, and on copies by the compositions.
inline void check(const char* what, const std::vector<at::Tensor>& tensors,
                  const std::function<void(const std::vector<at::Tensor>&)>& compute) {
  std::vector<at::Tensor> expected;
  for (const at::Tensor& tensor : tensors) expected.push_back(tensor.clone());
  compute(tensors);
  compute_by_compositions(true);
  compute(expected);
  compute_by_compositions(false);
  for (size_t i = 0; i < tensors.size(); ++i) {
    INFO(what, ", tensor ", i);
    CHECK(error(tensors[i], expected[i]) <= tolerance(tensors[i].scalar_type()));
  }
}

struct Sizes {
  int64_t rows = 0, width = 0;
};

// The tensors of a case, drawn. They begin at multiples of 64 bytes but the one whose number, in
// the order of drawing, is `shifted`: it begins one element later.
class Operands {
 public:
  static constexpr int kNone = -1;
  static constexpr int kAllByPack = -2;  // all begin 16 bytes later
  Operands(const at::Device& device, at::ScalarType dtype, int shifted)
      : options_(at::TensorOptions(device).dtype(dtype)), shifted_(shifted) {}

  at::Tensor random(at::IntArrayRef shape) { return drawn(shape, options_); }
  // Returns a random tensor of the dtype's main_type().
  at::Tensor main(at::IntArrayRef shape) { return drawn(shape, main_options()); }
  // Rows with `gap` elements between them.
  at::Tensor rows(const Sizes& s, int64_t gap) {
    return random({s.rows, s.width + gap}).narrow(1, 0, s.width);
  }
  at::TensorOptions main_options() const {
    return options_.dtype(main_type(c10::typeMetaToScalarType(options_.dtype())));
  }
  at::TensorOptions of(at::ScalarType dtype) const { return options_.dtype(dtype); }

 private:
  at::Tensor drawn(at::IntArrayRef shape, const at::TensorOptions& options) {
    int64_t n = 1;
    for (const int64_t size : shape) n *= size;
    const int64_t pack = 16 / static_cast<int64_t>(options.dtype().itemsize());
    const int64_t first = shifted_ == kAllByPack ? pack : next_++ == shifted_ ? 1 : 0;
    return at::randn({n + first}, options).narrow(0, first, n).view(shape);
  }

  at::TensorOptions options_;
  int shifted_, next_ = 0;
};
using Draw = std::function<Operands()>;  // of another case

// Elements between rows. With one no second row begins at a multiple of 16 bytes.
struct Gaps {
  int64_t of_x = 0, of_y = 0, of_g = 0, of_residual = 0;
};

inline void check_norm(const Draw& draw, const Sizes& s) {
  for (const Gaps& gaps : {Gaps{}, Gaps{.of_x = s.width}, Gaps{.of_x = 1}, Gaps{.of_y = 1}}) {
    Operands o = draw();
    const at::Tensor x = o.rows(s, gaps.of_x), w = o.random({s.width});
    check("norm", {o.rows(s, gaps.of_y)}, [&](const auto& t) { rms_norm_out(t[0], x, w, 1e-5); });
  }
}

inline void check_norm_backward(const Draw& draw, const Sizes& s, const Gaps& gaps, double beta) {
  Operands o = draw();
  const at::Tensor x = o.rows(s, gaps.of_x), w = o.random({s.width});
  const at::Tensor g = o.rows(s, gaps.of_g), g_w = o.main({s.width});
  const at::Tensor residual = beta == 0 ? o.rows(s, gaps.of_residual) : at::Tensor();
  check("norm, backward", {g, g_w},
        [&](const auto& t) { rms_norm_backward_(t[0], x, w, 1e-5, t[1], beta, residual); });
}

inline void check_norm_without_weight_gradient(const Draw& draw, const Sizes& s) {
  Operands o = draw();
  const at::Tensor x = o.random({s.rows, s.width}), w = o.random({s.width});
  check("norm, backward without the weight's", {o.random({s.rows, s.width})},
        [&](const auto& t) { rms_norm_backward_(t[0], x, w, 1e-5, {}, 0.0, {}); });
}

// Heads beside others, which have no norm.
inline void check_norm_of_heads(const Draw& draw, const Sizes& s) {
  Operands o = draw();
  const auto heads = [&] { return o.random({s.rows, 5, s.width}).narrow(1, 1, 3); };
  const at::Tensor x = heads(), w = o.random({s.width});
  check("norm of heads", {heads()}, [&](const auto& t) { rms_norm_out(t[0], x, w, 1e-5); });
  check("norm of heads, backward", {heads(), o.main({s.width})},
        [&](const auto& t) { rms_norm_backward_(t[0], x, w, 1e-5, t[1], 1.0, {}); });
}

inline void check_swiglu(const Draw& draw, const Sizes& s) {
  Operands o = draw();
  check("SwiGLU", {o.random({s.rows, s.width}), o.random({s.rows, 2 * s.width})},
        [&](const auto& t) { swiglu_out(t[0], t[1]); });
  Operands of_backward = draw();
  check("SwiGLU, backward",
        {of_backward.random({s.rows, 2 * s.width}), of_backward.random({s.rows, s.width})},
        [&](const auto& t) { swiglu_backward_(t[0], t[1]); });
}

// Every token has three copies; `drops`: the last rows' are dropped.
inline void check_moved_rows(const Draw& draw, const Sizes& s, bool drops) {
  constexpr int64_t kCopies = 3;
  const int64_t copies = s.rows * kCopies, kept = drops ? copies - s.rows : copies;
  const auto operands = [&] { return draw(); };
  at::Tensor position = at::randperm(copies, at::kLong).to(at::kInt).view({s.rows, kCopies});
  position = position.masked_fill(position.ge(kept), -1).to(draw().of(at::kInt).device());
  {
    Operands o = operands();
    const at::Tensor token = at::arange(copies, o.of(at::kLong)).remainder(s.rows).to(at::kInt);
    const at::Tensor x = o.random({s.rows, s.width});
    check("permute", {o.random({copies, s.width})},
          [&](const auto& t) { gather_rows_out(t[0], x, token); });
  }
  {
    Operands o = operands();
    const at::Tensor returned = o.random({kept, s.width});
    check("sum", {o.random({s.rows, s.width})},
          [&](const auto& t) { sum_rows_out(t[0], returned, position); });
  }
  {
    Operands o = operands();
    const at::Tensor returned = o.random({kept, s.width}), x1 = o.random({s.rows, s.width}),
                     weights = o.main({kept});
    check("merge", {o.random({s.rows, s.width})},
          [&](const auto& t) { merge_out(t[0], returned, weights, position, x1); });
  }
  for (const int64_t first : {int64_t{0}, s.rows / 2}) {  // all rows' gradients, or a share's
    Operands o = operands();
    const at::Tensor returned = o.random({kept, s.width}), gx = o.random({s.rows, s.width}),
                     weights = o.main({kept});
    check("merge, backward",
          {o.random({first == 0 ? kept : s.rows, s.width}), at::empty_like(weights)},
          [&](const auto& t) {
            merge_backward_out(t[0], t[1], gx, returned, weights, position, first);
          });
  }
}

// Rows of a table of five: one that many add to, two that some do, and two that nobody does.
inline void check_embedding(const Draw& draw, const Sizes& s) {
  Operands o = draw();
  const at::Tensor each = at::arange(s.rows, o.of(at::kLong)).remainder(7);
  const at::Tensor to = each.masked_fill(each.gt(1), 3);
  const at::Tensor g = o.random({s.rows, s.width});
  check("embedding's gradient", {o.main({5, s.width})},
        [&](const auto& t) { add_rows_(t[0], to, g); });
}

inline void check_cross_entropy(const Draw& draw, const Sizes& s) {
  for (const bool gradient : {false, true}) {
    Operands o = draw();
    at::Tensor target = at::arange(s.rows, o.of(at::kLong)).remainder(s.width);
    target[0] = -100;
    target[s.rows - 1] = s.width - 1;
    double losses[2] = {0, 0};
    int which = 0;
    const at::Tensor logits = o.random({s.rows, s.width});
    if (!gradient) logits.sub_(200);  // whose exponentials are 0 in fp32
    check("cross-entropy", {logits}, [&](const auto& t) {
      losses[which++] = cross_entropy_(t[0], target, gradient, 0.5).read();
    });
    CHECK(losses[0] == doctest::Approx(losses[1]).epsilon(tolerance(logits.scalar_type())));
    target[0] = s.width;  // outside of the vocabulary
    CHECK(std::isnan(cross_entropy_(logits, target, gradient, 0.5).read()));
  }
}

// All of them. No rows are rows, too.
inline void check_sizes(const at::Device& device, at::ScalarType dtype, const Sizes& s,
                        int shifted = Operands::kNone) {
  const Draw draw = [&] { return Operands(device, dtype, shifted); };
  check_norm(draw, s);
  check_norm_backward(draw, s, {}, 0);
  check_norm_backward(draw, s, {.of_x = s.width}, 1);
  check_norm_without_weight_gradient(draw, s);
  check_swiglu(draw, s);
  if (s.rows == 0) return;
  check_moved_rows(draw, s, /*drops=*/false);
  check_moved_rows(draw, s, /*drops=*/true);
  check_embedding(draw, s);
  check_cross_entropy(draw, s);
}

// What only the norm knows: rows that lie apart, of each tensor.
inline void check_norm_of_rows_apart(const at::Device& device, at::ScalarType dtype) {
  const Draw draw = [&] { return Operands(device, dtype, Operands::kNone); };
  for (const int64_t width : {48, 136}) {
    const Sizes s{37, width};
    for (const Gaps& gaps : {Gaps{.of_x = 1}, Gaps{.of_g = 1}, Gaps{.of_residual = 1},
                             Gaps{.of_x = width, .of_g = width, .of_residual = width}})
      check_norm_backward(draw, s, gaps, 0);
    check_norm_of_heads(draw, s);
  }
  // Each begins at a multiple of 16 bytes and ends at none.
  check("norm", {draw().rows({37, 47}, 1)},
        [&](const auto& t) { rms_norm_out(t[0], t[0], at::ones({47}, t[0].options()), 1e-5); });
  check_norm_backward(draw, {37, 47}, {.of_x = 1, .of_g = 1, .of_residual = 1}, 0);
}

inline void check_rotation(const at::Device& device, at::ScalarType dtype) {
  Operands o(device, dtype, Operands::kNone);
  for (const bool interleaved : {false, true})
    for (const bool back : {false, true}) {
      const RopeTable table{.cosine = at::cos(o.main({6, 32})),
                            .sine = at::sin(o.main({6, 32})),
                            .interleaved = interleaved};
      check("rotation", {o.random({24, 3, 80})},
            [&](const auto& t) { rotate_(t[0], table, 6, back); });
    }
}

// Against the processor's own numbers; rows of a part, too.
inline void check_initial_weights(const at::Device& device, at::ScalarType dtype) {
  for (const bool has_gaps : {false, true}) {
    const auto drawn = [&] {
      at::Tensor to = at::zeros({6, 14}, at::TensorOptions(device).dtype(dtype));
      if (has_gaps) to = to.narrow(1, 3, 7);
      fill_normal(to, 5, "w", 0.02);
      fill_normal(to.narrow(0, 2, 3), 5, "w", 0.02, part_along({3, 40}, 1, 5, to.size(1)));
      return to;
    };
    const at::Tensor made = drawn();
    compute_by_compositions(true);
    const at::Tensor expected = drawn();
    compute_by_compositions(false);
    const double most = dtype == at::kBFloat16 ? 1e-2 : dtype == at::kFloat ? 1e-6 : 1e-13;
    CHECK(error(made, expected) <= most);
  }
}

}  // namespace piper::nn::cuda::testing
