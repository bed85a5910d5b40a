#include <piper/base/error.h>
#include <piper/nn/cuda/stream.h>
#include <piper/nn/kernels.h>
#include <piper/nn/tensor_ops.h>

#include <atomic>
#include <utility>

namespace piper::nn {
namespace {

std::atomic<bool> by_compositions_everywhere{false};

using kernels::Main;

// Calls f(float{}) or f(double{}): what is kept in Main.
template <class F>
auto by_main_type(const at::Tensor& t, F f) {
  if (t.scalar_type() == at::kFloat) return f(float{});
  PIPER_CHECK(t.scalar_type() == at::kDouble, "a tensor that is neither fp32 nor fp64");
  return f(double{});
}

// ... or f(c10::BFloat16{}).
template <class F>
auto by_type(const at::Tensor& t, F f) {
  return t.scalar_type() == at::kBFloat16 ? f(c10::BFloat16{}) : by_main_type(t, f);
}

template <class T>
kernels::Rows<T> rows(const at::Tensor& t) {
  PIPER_CHECK((t.dim() == 2 || t.dim() == 3) && t.stride(-1) == 1,
              "rows must be contiguous in themselves");
  using Value = std::remove_const_t<T>;
  const bool heads = t.dim() == 3;
  return {.data = t.data_ptr<Value>(),
          .n0 = t.size(0),
          .n1 = heads ? t.size(1) : 1,
          .s0 = t.stride(0),
          .s1 = heads ? t.stride(1) : 0,
          .width = t.size(-1)};
}

// A kernel of the CPU, and its twin on CUDA devices.
#define PIPER_TWINS(kernel) kernels::kernel, cuda::kernel

// The one of x's device.
template <class... Args>
void run(const at::Tensor& x, void (*on_cpu)(Args...),
         std::type_identity_t<void (*)(cuda::Stream, Args...)> on_cuda,
         std::type_identity_t<Args>... args) {
  if (!has_cuda_kernels(x)) return on_cpu(args...);
  on_cuda(cuda::Place(x).stream(), args...);
}

bool has_any_kernels(const at::Tensor& x) { return has_kernels(x) || has_cuda_kernels(x); }

const int32_t* indices(const at::Tensor& t) {
  PIPER_DCHECK(t.is_contiguous());
  return t.data_ptr<int32_t>();
}

}  // namespace

bool has_kernels(const at::Tensor& tensor) {
  return tensor.device().is_cpu() && !cuda::computes_with(tensor) &&
         !by_compositions_everywhere.load(std::memory_order_relaxed);
}

bool has_cuda_kernels(const at::Tensor& tensor) {
  return cuda::computes_with(tensor) && !by_compositions_everywhere.load(std::memory_order_relaxed);
}

void compute_by_compositions(bool everywhere) { by_compositions_everywhere = everywhere; }

void rms_norm_out(at::Tensor y, const at::Tensor& x, const at::Tensor& weight, double epsilon) {
  if (!has_any_kernels(x)) return any_device::rms_norm_out(y, x, weight, epsilon);
  by_type(x, [&]<class T>(T) {
    run(x, PIPER_TWINS(rms_norm<T>), rows<const T>(x), weight.data_ptr<T>(), epsilon, rows<T>(y));
  });
}

at::Tensor rms_norm(const at::Tensor& x_TD, const at::Tensor& weight, double epsilon) {
  at::Tensor y_TD = at::empty_like(x_TD);
  rms_norm_out(y_TD, x_TD, weight, epsilon);
  return y_TD;
}

void rms_norm_backward_(at::Tensor g, const at::Tensor& x, const at::Tensor& weight, double epsilon,
                        at::Tensor weight_gradient, double beta, const at::Tensor& residual) {
  const bool on_cuda = has_cuda_kernels(x) && x.size(-1) <= cuda::kNormBackwardWidth;
  if (!has_kernels(x) && !on_cuda)
    return any_device::rms_norm_backward_(g, x, weight, epsilon, weight_gradient, beta, residual);
  by_type(x, [&]<class T>(T) {
    const auto added = residual.defined() ? rows<const T>(residual) : kernels::Rows<const T>{};
    auto* sum = weight_gradient.defined() ? weight_gradient.data_ptr<Main<T>>() : nullptr;
    if (on_cuda) {
      const at::Tensor strips =
          sum == nullptr ? at::Tensor()
                         : at::empty({cuda::kNormStrips, x.size(-1)}, weight_gradient.options());
      return cuda::rms_norm_backward<T>(cuda::Place(x).stream(), rows<T>(g), rows<const T>(x),
                                        weight.data_ptr<T>(), epsilon, sum, beta, added,
                                        strips.defined() ? strips.data_ptr<Main<T>>() : nullptr);
    }
    kernels::rms_norm_backward<T>(rows<T>(g), rows<const T>(x), weight.data_ptr<T>(), epsilon, sum,
                                  beta, added);
  });
}

void rotate_(at::Tensor x, const RopeTable& table, int64_t sequence, bool back) {
  PIPER_CHECK(sequence <= table.cosine.size(0), "a position beyond the rotary table");
  if (!has_any_kernels(x)) return any_device::rotate_(x, table, sequence, back);
  by_type(x, [&]<class T>(T) {
    using M = Main<T>;
    run(x, PIPER_TWINS(rotate<T>), rows<T>(x), table.cosine.data_ptr<M>(), table.sine.data_ptr<M>(),
        sequence, table.cosine.size(1), back ? M(-1) : M(1), table.interleaved);
  });
}

void swiglu_out(at::Tensor act, const at::Tensor& h) {
  if (!has_any_kernels(h)) return any_device::swiglu_out(act, h);
  by_type(h, [&]<class T>(T) {
    run(h, PIPER_TWINS(swiglu<T>), h.data_ptr<T>(), act.data_ptr<T>(), act.size(0), act.size(1));
  });
}

void swiglu_backward_(at::Tensor h, at::Tensor g_act) {
  if (!has_any_kernels(h)) return any_device::swiglu_backward_(h, g_act);
  by_type(h, [&]<class T>(T) {
    run(h, PIPER_TWINS(swiglu_backward<T>), h.data_ptr<T>(), g_act.data_ptr<T>(), g_act.size(0),
        g_act.size(1));
  });
}

void gather_rows_out(at::Tensor out, const at::Tensor& x, const at::Tensor& index) {
  if (!has_any_kernels(x)) return any_device::gather_rows_out(out, x, index);
  by_type(x, [&]<class T>(T) {
    run(x, PIPER_TWINS(gather_rows<T>), x.data_ptr<T>(), indices(index), out.data_ptr<T>(),
        out.size(0), out.size(1));
  });
}

void sum_rows_out(at::Tensor out, const at::Tensor& rows, const at::Tensor& position) {
  if (!has_any_kernels(rows)) return any_device::sum_rows_out(out, rows, position);
  by_type(rows, [&]<class T>(T) {
    run(rows, PIPER_TWINS(sum_rows<T>), rows.data_ptr<T>(), indices(position), out.data_ptr<T>(),
        position.size(0), position.size(1), out.size(1));
  });
}

void add_rows_(at::Tensor table, const at::Tensor& index, const at::Tensor& rows) {
  if (!has_any_kernels(rows)) return any_device::add_rows_(table, index, rows);
  by_type(rows, [&]<class T>(T) {
    if (has_cuda_kernels(rows)) {
      const auto [sorted, order] = at::sort(index, /*stable=*/true, 0, /*descending=*/false);
      return cuda::add_rows<T>(cuda::Place(rows).stream(), table.data_ptr<Main<T>>(),
                               sorted.const_data_ptr<int64_t>(), order.const_data_ptr<int64_t>(),
                               rows.data_ptr<T>(), rows.size(0), rows.size(1));
    }
    kernels::add_rows<T>(table.data_ptr<Main<T>>(), index.data_ptr<int64_t>(), rows.data_ptr<T>(),
                         rows.size(0), rows.size(1));
  });
}

void merge_out(at::Tensor out, const at::Tensor& returned, const at::Tensor& weights,
               const at::Tensor& position, const at::Tensor& x1) {
  if (!has_any_kernels(x1)) return any_device::merge_out(out, returned, weights, position, x1);
  by_type(x1, [&]<class T>(T) {
    run(x1, PIPER_TWINS(merge<T>), returned.data_ptr<T>(), weights.data_ptr<Main<T>>(),
        indices(position), x1.data_ptr<T>(), out.data_ptr<T>(), position.size(0), position.size(1),
        x1.size(1));
  });
}

void merge_backward_out(at::Tensor g_returned, at::Tensor g_weights, const at::Tensor& gx,
                        const at::Tensor& returned, const at::Tensor& weights,
                        const at::Tensor& position, int64_t first_row) {
  if (!has_any_kernels(gx))
    return any_device::merge_backward_out(g_returned, g_weights, gx, returned, weights, position,
                                          first_row);
  by_type(gx, [&]<class T>(T) {
    run(gx, PIPER_TWINS(merge_backward<T>), gx.data_ptr<T>(), returned.data_ptr<T>(),
        weights.data_ptr<Main<T>>(), indices(position), g_returned.data_ptr<T>(),
        g_weights.data_ptr<Main<T>>(), {.first = first_row, .count = g_returned.size(0)},
        position.size(0), position.size(1), gx.size(1));
  });
}

void softmax_(at::Tensor x, at::Tensor log_sum) {
  if (!has_kernels(x)) return any_device::softmax_(x, log_sum);
  by_main_type(x, [&]<class T>(T) {
    kernels::softmax<T>(x.data_ptr<T>(), log_sum.defined() ? log_sum.data_ptr<T>() : nullptr,
                        x.size(0), x.size(1));
  });
}

void choose_experts_out(at::Tensor expert, const at::Tensor& probabilities) {
  if (!has_kernels(probabilities)) return any_device::choose_experts_out(expert, probabilities);
  by_main_type(probabilities, [&]<class T>(T) {
    kernels::choose_experts<T>(probabilities.data_ptr<T>(), expert.data_ptr<int32_t>(),
                               expert.size(0), probabilities.size(1), expert.size(1));
  });
}

void router_backward_(at::Tensor probabilities, const RouterGradients& in) {
  if (!has_kernels(probabilities)) return any_device::router_backward_(probabilities, in);
  by_main_type(probabilities, [&]<class T>(T) {
    kernels::router_backward<T>(
        probabilities.data_ptr<T>(),
        {.expert = indices(in.expert),
         .position = indices(in.position),
         .weights = in.weights.data_ptr<T>(),
         .g_weights = in.g_weights.data_ptr<T>(),
         .auxiliary = in.auxiliary.defined() ? in.auxiliary.data_ptr<T>() : nullptr,
         .g_log_sum = in.g_log_sum.defined() ? in.g_log_sum.data_ptr<T>() : nullptr,
         .tokens = probabilities.size(0),
         .sequence = in.sequence,
         .num_experts = probabilities.size(1),
         .k = in.expert.size(1),
         .first_token = in.first_token,
         .normalised = in.normalised,
         .sigmoid = in.sigmoid,
         .scaling = static_cast<T>(in.scaling)});
  });
}

Amount cross_entropy_(at::Tensor logits, const at::Tensor& targets, bool gradient, double scale) {
  if (!has_any_kernels(logits)) return any_device::cross_entropy_(logits, targets, gradient, scale);
  return by_type(logits, [&]<class T>(T) -> Amount {
    if (has_cuda_kernels(logits)) {
      const at::Tensor losses = at::empty({logits.size(0)}, logits.options().dtype(at::kDouble));
      cuda::cross_entropy<T>(cuda::Place(logits).stream(), logits.data_ptr<T>(),
                             targets.data_ptr<int64_t>(), losses.data_ptr<double>(), logits.size(0),
                             logits.size(1), gradient, scale);
      return Amount(losses.sum());
    }
    return kernels::cross_entropy<T>(logits.data_ptr<T>(), targets.data_ptr<int64_t>(),
                                     logits.size(0), logits.size(1), gradient, scale);
  });
}

}  // namespace piper::nn
