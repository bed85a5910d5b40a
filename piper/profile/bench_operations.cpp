#include <piper/base/error.h>
#include <piper/nn/causal_attention.h>
#include <piper/nn/cuda/stream.h>
#include <piper/nn/expert_residuals.h>
#include <piper/nn/fused_attention.h>
#include <piper/nn/kernels.h>
#include <piper/nn/product.h>
#include <piper/nn/tensor_ops.h>
#include <piper/profile/bench_operations.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

namespace piper::profile {
namespace {

// More than a core's private caches hold, and than the L2 of an H100 or a B200.
constexpr double kRotatedBytes = 24e6, kRotatedBytesOnDevice = 256e6;
constexpr double kEpsilon = 1e-6;

struct HeadTensors {
  at::Tensor q, k, v;  // [batch, heads, sequence, head_dim]
};

HeadTensors head_tensors(const AttentionShape& s, const OperandsOn& on) {
  const auto make = [&](int64_t heads) {
    return at::rand({s.batch, heads, s.sequence, s.head_dim}, on.device.with(on.dtype));
  };
  return {make(s.heads), make(s.kv_heads), make(s.kv_heads)};
}

// What computes on an accelerator is chosen by a trial (nn/fused_attention.h).
void choose_attention(const AttentionShape& shape, const OperandsOn& on) {
  if (on.device.is_cpu()) return;
  nn::try_fused_attention(on.device.device, {.dtype = on.dtype,
                                             .key_width = shape.head_dim,
                                             .value_width = shape.head_dim,
                                             .queries_per_key = shape.heads / shape.kv_heads});
}

// So many that they fill more than these caches.
int64_t rotated_copies(int64_t num_elements, at::ScalarType dtype, const BenchDevice& device) {
  const double bytes =
      static_cast<double>(num_elements) * static_cast<double>(at::elementSize(dtype));
  return static_cast<int64_t>(
      std::clamp((device.is_cpu() ? kRotatedBytes : kRotatedBytesOnDevice) / bytes, 1.0, 64.0));
}

struct ExpertTensors {
  at::Tensor x, h, act, out, gate_up, down;
};

ExpertTensors expert_tensors(const ExpertsShape& s, const OperandsOn& on) {
  const int64_t total = std::accumulate(s.rows.begin(), s.rows.end(), int64_t{0});
  const auto experts = static_cast<int64_t>(s.rows.size());
  const at::TensorOptions options = on.device.with(on.dtype);
  return {at::rand({total, s.hidden}, options),
          at::empty({total, 2 * s.ffn}, options),
          at::empty({total, s.ffn}, options),
          at::empty({total, s.hidden}, options),
          at::ones({experts, 2 * s.ffn, s.hidden}, options),
          at::ones({experts, s.hidden, s.ffn}, options)};
}

}  // namespace

Prepare gemm(int64_t m, int64_t n, int64_t k, const OperandsOn& on) {
  return [=] {
    const at::TensorOptions options = on.device.with(on.dtype);
    // A device that multiplies equal numbers takes less power, and so is faster than in training.
    const auto made = [&](at::IntArrayRef shape) {
      return on.device.is_cpu() ? at::ones(shape, options) : at::rand(shape, options);
    };
    auto x = made({m, k}), y = at::empty({m, n}, options);
    auto weights = made({rotated_copies(n * k, on.dtype, on.device), n, k});
    return [=, next = int64_t{0}]() mutable {
      nn::product_out(y, x, weights[next].t());
      next = (next + 1) % weights.size(0);
    };
  };
}

Prepare product_of(const nn::ProductClass& shape, nn::ProductLibrary library,
                   const BenchDevice& device) {
  return [=] {
    using enum nn::ProductForm;
    // y[rows, out] = x[rows, in] W[out, in]^T, gx = gy W, gW = gy^T x: `width` is the last
    // dimension of the result.
    const int64_t in = shape.form == kForward ? nn::kMeasuredInner : shape.width,
                  out = shape.form == kForward ? shape.width : nn::kMeasuredInner;
    const at::TensorOptions options = device.with(at::kFloat);
    const auto x = at::rand({shape.rows, in}, options), y = at::rand({shape.rows, out}, options);
    const auto weights = at::rand({rotated_copies(in * out, at::kFloat, device), out, in}, options);
    return [=, next = int64_t{0}]() mutable {
      const at::Tensor w = weights[next];
      next = (next + 1) % weights.size(0);
      const bool is_done = shape.form == kForward    ? nn::product_by(library, y, x, w.t())
                           : shape.form == kBackward ? nn::product_by(library, x, y, w)
                                                     : nn::product_by(library, w, y.t(), x);
      PIPER_CHECK(is_done, "a library does not do the product that it was asked for");
    };
  };
}

double AttentionShape::flops(bool backward) const {
  const double products = backward ? 4 : 2;
  return products * 2 * static_cast<double>(batch * heads) * static_cast<double>(sequence) *
         static_cast<double>(sequence) / 2 * static_cast<double>(head_dim);
}

Prepare attention(const AttentionShape& shape, bool backward, const OperandsOn& on) {
  return [=]() -> std::function<void()> {
    choose_attention(shape, on);
    const HeadTensors x = head_tensors(shape, on);
    if (!backward) return [=] { nn::causal_attention(x.q, x.k, x.v); };
    const nn::CausalAttention forward = nn::causal_attention(x.q, x.k, x.v);
    const at::Tensor g = x.q.clone();
    return [=] { nn::causal_attention_backward(g, x.q, x.k, x.v, forward); };
  };
}

double ExpertsShape::flops() const {
  const double total = std::accumulate(rows.begin(), rows.end(), 0.0);
  return 6 * total * static_cast<double>(hidden) * static_cast<double>(ffn);
}

double ExpertsShape::bytes(at::ScalarType dtype) const {
  const double total = std::accumulate(rows.begin(), rows.end(), 0.0);
  const auto d = static_cast<double>(hidden), f = static_cast<double>(ffn);
  return (3 * static_cast<double>(rows.size()) * d * f + total * (2 * d + 3 * f)) *
         static_cast<double>(at::elementSize(dtype));
}

Prepare experts_one_by_one(const ExpertsShape& shape, const OperandsOn& on) {
  return [=] {
    const ExpertTensors t = expert_tensors(shape, on);
    return [=] {
      int64_t start = 0;
      for (size_t expert = 0; expert < shape.rows.size(); ++expert) {
        const int64_t n = shape.rows[expert];
        if (n == 0) continue;
        const auto e = static_cast<int64_t>(expert);
        const at::Tensor h = t.h.narrow(0, start, n), act = t.act.narrow(0, start, n);
        nn::product_out(h, t.x.narrow(0, start, n), t.gate_up.select(0, e).t());
        nn::swiglu_out(act, h);
        nn::product_out(t.out.narrow(0, start, n), act, t.down.select(0, e).t());
        start += n;
      }
    };
  };
}

Prepare experts_grouped(const ExpertsShape& shape, const OperandsOn& on) {
  return [=] {
    const ExpertTensors t = expert_tensors(shape, on);
    std::vector<int32_t> ends;
    int32_t end = 0;
    for (const int64_t n : shape.rows) ends.push_back(end += static_cast<int32_t>(n));
    const at::Tensor offsets = at::tensor(ends, at::kInt).to(on.device.device);
    return [=] {
      const at::Tensor h = at::_grouped_mm(t.x, t.gate_up.transpose(1, 2), offsets);
      nn::swiglu_out(t.act, h);
      at::_grouped_mm(t.act, t.down.transpose(1, 2), offsets);
    };
  };
}

std::vector<int64_t> skewed_rows(int64_t num_experts, int64_t total, double skew) {
  std::vector<double> ends;  // of each expert's part, cumulated: rounding them keeps the sum
  double sum = 0;
  for (int64_t e = 0; e < num_experts; ++e)
    ends.push_back(sum += std::pow(static_cast<double>(e + 1), -skew));
  std::vector<int64_t> rows;
  int64_t before = 0;
  for (const double end : ends) {
    const auto until = static_cast<int64_t>(std::llround(end / sum * static_cast<double>(total)));
    rows.push_back(until - before);
    before = until;
  }
  return rows;
}

double AttentionPart::flops() const {
  const AttentionShape& a = attention;
  const double tokens = static_cast<double>(a.batch * a.sequence);
  const auto wide = static_cast<double>((2 * a.heads + 2 * a.kv_heads) * a.head_dim);
  return 2 * tokens * static_cast<double>(hidden) * wide + a.flops(false);
}

Prepare attention_part(const AttentionPart& part, const OperandsOn& on) {
  return [=] {
    const AttentionShape& a = part.attention;
    choose_attention(a, on);
    const at::TensorOptions options = on.device.with(on.dtype);
    const int64_t tokens = a.batch * a.sequence, wide = (a.heads + 2 * a.kv_heads) * a.head_dim;
    const at::Tensor x = at::rand({tokens, part.hidden}, options),
                     qkv = at::empty({tokens, wide}, options), out = at::empty_like(x),
                     w_qkv = at::ones({wide, part.hidden}, options) * 1e-3,
                     w_out = at::ones({part.hidden, a.heads * a.head_dim}, options);
    return [=] {
      nn::product_out(qkv, x, w_qkv.t());
      const auto parts = qkv.view({a.batch, a.sequence, a.heads + 2 * a.kv_heads, a.head_dim})
                             .split_with_sizes({a.heads, a.kv_heads, a.kv_heads}, 2);
      const at::Tensor mixed =
          nn::causal_attention(parts[0].transpose(1, 2), parts[1].transpose(1, 2),
                               parts[2].transpose(1, 2))
              .out_BSHd;
      nn::product_out(out, mixed.view({tokens, a.heads * a.head_dim}), w_out.t());
    };
  };
}

Prepare rms_norm(int64_t tokens, int64_t hidden, bool backward, const OperandsOn& on) {
  return [=]() -> std::function<void()> {
    const at::TensorOptions options = on.device.with(on.dtype);
    // The backward's gradient stays as large as it is.
    const at::Tensor x = at::randn({tokens, hidden}, options),
                     y = at::randn({tokens, hidden}, options), weight = at::ones({hidden}, options);
    if (!backward) return [=] { nn::rms_norm_out(y, x, weight, kEpsilon); };
    const at::Tensor g_weight = at::zeros({hidden}, on.device.with(nn::main_type(on.dtype)));
    return [=] { nn::rms_norm_backward_(y, x, weight, kEpsilon, g_weight, 0); };
  };
}

Prepare route(int64_t tokens, int64_t num_experts, int64_t top_k, const OperandsOn& on) {
  return [=] {
    const at::TensorOptions options = on.device.with(nn::main_type(on.dtype));
    const at::Tensor logits = at::randn({tokens, num_experts}, options), scores = logits.clone(),
                     expert = at::empty({tokens, top_k}, on.device.with(at::kInt));
    return [=] {
      scores.copy_(logits);
      nn::softmax_(scores);
      nn::choose_experts_out(expert, scores);
    };
  };
}

Prepare permute(int64_t rows, int64_t hidden, const OperandsOn& on) {
  return [=] {
    const at::Tensor x = at::rand({rows, hidden}, on.device.with(on.dtype)),
                     out = at::empty_like(x);
    const at::Tensor order = at::randperm(rows, on.device.with(at::kLong)).to(at::kInt);
    return [=] { nn::gather_rows_out(out, x, order); };
  };
}

Prepare multiply_elements(int64_t num_elements, const OperandsOn& on) {
  return [=] {
    const at::TensorOptions options = on.device.with(on.dtype);
    auto a = at::ones({num_elements}, options), b = at::ones({num_elements}, options),
         c = at::empty({num_elements}, options);
    return [=]() mutable { at::mul_out(c, a, b); };
  };
}

Prepare silu(int64_t num_elements, const OperandsOn& on) {
  return [=] {
    auto a = at::ones({num_elements}, on.device.with(on.dtype)), c = at::empty_like(a);
    return [=]() mutable { at::silu_out(c, a); };
  };
}

double adamw_bytes(at::ScalarType dtype) {
  constexpr double kOfMasters = 7 * 4;
  return kOfMasters + (dtype == at::kBFloat16 ? 2 : 0);
}

Prepare adamw(int64_t num_parameters, const OperandsOn& on) {
  return [=]() -> std::function<void()> {
    const BenchDevice& device = on.device;
    // Written, not zeros: those would be one page of the system's, read again and again.
    const auto ones = [&](at::ScalarType dtype) {
      return at::ones({num_parameters}, device.with(dtype));
    };
    const at::Tensor w = ones(at::kFloat), g = ones(at::kFloat), m = ones(at::kFloat),
                     v = ones(at::kFloat);
    const bool rounds = on.dtype == at::kBFloat16;
    const at::Tensor rounded = rounds ? ones(at::kBFloat16) : at::Tensor();
    const nn::kernels::AdamWScalars<float> scalars{.keep = 1,
                                                   .one_minus_beta1 = 0.1F,
                                                   .beta2 = 0.9F,
                                                   .one_minus_beta2 = 0.1F,
                                                   .step_size = 1e-3F,
                                                   .inverse_root_correction2 = 1,
                                                   .epsilon = 1e-8F,
                                                   .gradient_scale = 1};
    if (nn::has_cuda_kernels(w) && rounds)
      return [=] {
        nn::cuda::adamw_rounded(nn::cuda::Place(w).stream(), w.data_ptr<float>(),
                                g.data_ptr<float>(), m.data_ptr<float>(), v.data_ptr<float>(),
                                rounded.data_ptr<c10::BFloat16>(), w.numel(), scalars);
      };
    if (nn::has_cuda_kernels(w))
      return [=] {
        nn::cuda::adamw(nn::cuda::Place(w).stream(), w.data_ptr<float>(), g.data_ptr<float>(),
                        m.data_ptr<float>(), v.data_ptr<float>(), w.numel(), scalars);
      };
    if (!device.is_cpu()) {
      const at::Tensor step = at::ones({}, device.with(at::kFloat));
      return [=] {
        at::_fused_adamw_({w}, {g}, {m}, {v}, {}, {step}, 1e-3, 0.9, 0.9, 0.0, 1e-8, false, false);
        if (rounds) rounded.copy_(w);
      };
    }
    if (rounds)
      return [=] {
        nn::kernels::adamw_rounded(w.data_ptr<float>(), g.data_ptr<float>(), m.data_ptr<float>(),
                                   v.data_ptr<float>(), rounded.data_ptr<c10::BFloat16>(),
                                   w.numel(), scalars);
      };
    return [=] {
      nn::kernels::adamw<float>(w.data_ptr<float>(), g.data_ptr<float>(), m.data_ptr<float>(),
                                v.data_ptr<float>(), w.numel(), scalars);
    };
  };
}

Prepare find_residuals(int64_t num_elements, const OperandsOn& on) {
  return [=]() -> std::function<void()> {
    strategy::Strategy s;
    s.mesh = {.ep = 1, .dp = 1};
    s.expert_compression = 50;
    const auto drawn = [&] { return at::rand({num_elements}, on.device.with(on.dtype)); };
    const at::Tensor now = drawn(), told = drawn();
    const strategy::ResidualCode code =
        strategy::residual_code(s, num_elements, static_cast<int64_t>(now.element_size()));
    return [=] { nn::encode_residuals(now, told, code); };
  };
}

Prepare copy_bytes(int64_t bytes, const BenchDevice& from, const BenchDevice& to) {
  return [=]() -> std::function<void()> {
    // As training copies: memory of a GPU's host is pinned.
    const auto on = [&](const BenchDevice& here, const BenchDevice& other) {
      return here.with(at::kByte).pinned_memory(here.is_cpu() && other.device.is_cuda());
    };
    const at::Tensor source = at::empty({bytes}, on(from, to)).fill_(1),
                     target = at::empty({bytes}, on(to, from));
    if (!from.is_cpu() || !to.is_cpu()) return [=] { target.copy_(source, /*non_blocking=*/true); };
    return [=] {
      std::memcpy(target.mutable_data_ptr(), source.const_data_ptr(), static_cast<size_t>(bytes));
    };
  };
}

}  // namespace piper::profile
