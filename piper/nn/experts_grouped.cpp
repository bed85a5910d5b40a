#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/nn/cuda/kernels.h>
#include <piper/nn/device_trials.h>
#include <piper/nn/experts_grouped.h>
#include <piper/nn/host_read.h>
#include <piper/nn/tensor_ops.h>

#include <cstdint>
#include <exception>
#include <vector>

namespace piper::nn {
namespace {

// Received rows lie by peer, then expert; a grouped product wants them by expert. Made once for a
// forward and its backward: the tape keeps it, in two integers of 4 bytes a row.
class RowsByExpert {
 public:
  RowsByExpert(const Routing& routing, int64_t num_experts, const at::Tensor& like_RD) {
    if (routing.counts_E.defined()) {  // of one peer
      ends_ = routing.counts_E.cumsum(0).to(at::kInt);
      return;
    }
    const std::vector<int64_t>& counts = routing.computed_counts();  // [P * L]
    const int64_t num_peers = std::ssize(counts) / num_experts;
    PIPER_CHECK(num_peers * num_experts == std::ssize(counts), "received_counts is not [P * L]");
    std::vector<int64_t> starts{0};
    for (const int64_t count : counts) starts.push_back(starts.back() + count);
    PIPER_CHECK(starts.back() == like_RD.size(0), "received rows and received_counts disagree");
    // By expert, where its rows end; by segment in the order of the experts, where it ends and how
    // far its rows come. One copy.
    const int64_t num_segments = std::ssize(counts);
    const at::Tensor on_host = at::empty({num_experts + 2 * num_segments}, at::kLong);
    auto* ends = on_host.mutable_data_ptr<int64_t>();
    auto* segment_ends = ends + num_experts;
    auto* shifts = segment_ends + num_segments;
    int64_t at = 0;
    for (int64_t expert = 0; expert < num_experts; ++expert) {
      for (int64_t peer = 0; peer < num_peers; ++peer) {
        const auto segment = static_cast<size_t>(peer * num_experts + expert);
        *shifts++ = starts[segment] - at;
        at += counts[segment];
        *segment_ends++ = at;
      }
      ends[expert] = at;
    }
    const at::Tensor tables = put_on_device(on_host, like_RD.device());
    ends_ = tables.narrow(0, 0, num_experts).to(at::kInt);
    if (num_peers == 1) return;
    const at::Tensor row = at::arange(at, tables.options());
    const at::Tensor segment = at::searchsorted(tables.narrow(0, num_experts, num_segments), row,
                                                /*out_int32=*/false, /*right=*/true);
    const at::Tensor source =
        row + tables.narrow(0, num_experts + num_segments, num_segments).index_select(0, segment);
    source_ = source.to(at::kInt);
    place_ = at::empty_like(row).scatter_(0, source, row).to(at::kInt);
  }

  // As `kept` says, or made now where it is empty: what began was computed one by one.
  static RowsByExpert of(const std::vector<at::Tensor>& kept, const Routing& routing,
                         int64_t num_experts, const at::Tensor& like_RD) {
    return kept.empty() ? RowsByExpert(routing, num_experts, like_RD) : RowsByExpert(kept);
  }
  std::vector<at::Tensor> kept() const { return {ends_, source_, place_}; }

  // [E] int32: where the rows of each expert end.
  const at::Tensor& ends() const { return ends_; }
  at::Tensor by_expert(const at::Tensor& x_RD) const { return taken(x_RD, source_); }
  at::Tensor as_received(const at::Tensor& x_RD) const { return taken(x_RD, place_); }

 private:
  explicit RowsByExpert(const std::vector<at::Tensor>& kept)
      : ends_(kept.at(0)), source_(kept.at(1)), place_(kept.at(2)) {}

  static at::Tensor taken(const at::Tensor& x_RD, const at::Tensor& index) {
    if (!index.defined()) return x_RD;
    at::Tensor out_RD = at::empty_like(x_RD);
    gather_rows_out(out_RD, x_RD, index);
    return out_RD;
  }

  at::Tensor ends_;
  // [R] int32, undefined where one order is the other: where a row by expert lies, and the reverse.
  at::Tensor source_, place_;
};

at::Tensor grouped(const at::Tensor& rows, const at::Tensor& matrices, const at::Tensor& ends) {
  return at::_grouped_mm(rows, matrices, ends);
}

// gradient := beta gradient + the sum over each expert's rows of a^T b.
void add_gradient(Weight& weight, double beta, const at::Tensor& a, const at::Tensor& b,
                  const at::Tensor& ends) {
  const at::Tensor made = at::_grouped_mm(a.t(), b, ends);
  if (beta == 0)
    weight.gradient.copy_(made);
  else
    weight.gradient.add_(made);
}

// Rows of matrices begin at multiples of 16 bytes, or the product refuses them.
constexpr int64_t kAlignedBytes = 16;
bool begins_aligned(const at::Tensor& rows) {
  return reinterpret_cast<uintptr_t>(rows.const_data_ptr()) % kAlignedBytes == 0;
}
bool is_aligned(const at::Tensor& matrices) {
  const auto element = static_cast<int64_t>(matrices.element_size());
  return matrices.size(2) * element % kAlignedBytes == 0 &&
         matrices.size(1) * element % kAlignedBytes == 0 && begins_aligned(matrices);
}

using GroupedTrials = DeviceTrials<at::ScalarType, bool>;
GroupedTrials& grouped_trials() {
  static GroupedTrials all;
  return all;
}

// Elsewhere libtorch's product is a loop over the experts for which the host waits.
bool has_one_launch(const at::Device& device, at::ScalarType dtype) {
  if (device.is_cpu() || dtype != at::kBFloat16) return false;
  if (!device.is_cuda()) return true;
  const int major = cuda::compute_capability(device.index()) / 10;
  return major == 9 || major == 10;
}

// Three experts, one without rows.
bool computes_right(const at::Device& device, at::ScalarType dtype) {
  constexpr int64_t kRows = 48, kIn = 32, kOut = 64;
  const at::TensorOptions options = at::TensorOptions(device).dtype(dtype);
  const std::vector<int32_t> ends{20, 20, 48};
  const at::Tensor x = trial_operand({kRows, kIn}, 0, options),
                   w = trial_operand({3, kOut, kIn}, 1, options),
                   g = trial_operand({kRows, kOut}, 2, options);
  const at::Tensor at_ends = at::tensor(at::ArrayRef<int32_t>(ends)).to(device);
  const at::Tensor y = grouped(x, w.transpose(1, 2), at_ends), gx = grouped(g, w, at_ends),
                   gw = at::_grouped_mm(g.t(), x, at_ends);
  const auto differs = [&](const at::Tensor& made, const at::Tensor& expected) {
    const at::Tensor a = made.cpu().to(at::kDouble), b = expected.cpu().to(at::kDouble);
    const double most = b.numel() == 0 ? 0 : b.abs().max().item<double>();
    const double error = b.numel() == 0 ? 0 : (a - b).abs().max().item<double>();
    return !(error <= 0.05 * most);
  };
  int64_t from = 0;
  for (int64_t expert = 0; expert < 3; ++expert) {
    const int64_t n = ends[static_cast<size_t>(expert)] - from;
    const at::Tensor x_e = x.narrow(0, from, n), g_e = g.narrow(0, from, n),
                     w_e = w.select(0, expert);
    if (differs(y.narrow(0, from, n), at::mm(x_e, w_e.t())) ||
        differs(gx.narrow(0, from, n), at::mm(g_e, w_e)) ||
        differs(gw.select(0, expert), at::mm(g_e.t(), x_e)))
      return false;
    from += n;
  }
  return true;
}

// Set by choose_grouped_products() alone.
cost::GroupedChoice& grouped_choice() {
  static cost::GroupedChoice choice;
  return choice;
}

cost::ExpertsSize size_of(const ExpertsBlock& block, int64_t num_rows) {
  const auto experts = static_cast<double>(block.local_experts);
  return {.rows = static_cast<double>(num_rows) / experts,
          .hidden = static_cast<double>(block.down->value.size(1)),
          .ffn = static_cast<double>(block.down->value.size(2)),
          .experts = experts};
}

}  // namespace

void choose_grouped_products(const cost::GroupedChoice& choice) { grouped_choice() = choice; }

bool try_grouped_products(const at::Device& device, at::ScalarType dtype) {
  if (device.is_cpu()) return false;
  return grouped_trials().once(device, dtype, [&] {
    return has_one_launch(device, dtype) &&
           succeeds(device, [&] { return computes_right(device, dtype); });
  });
}

std::vector<std::string> grouped_products_found() {
  return grouped_trials().lines([](at::ScalarType dtype, bool works) {
    return fmt::format("experts, {}: {}", at::toString(dtype),
                       works ? "one product" : "one by one");
  });
}

bool computes_grouped(const ExpertsBlock& block, const at::Tensor& rows_RD) {
  return computes_grouped(block, rows_RD.size(0), rows_RD.options()) && begins_aligned(rows_RD);
}

bool computes_grouped(const ExpertsBlock& block, int64_t num_rows, const at::TensorOptions& rows) {
  if (rows.device().is_cpu() || num_rows == 0 || block.copied_gate_up != nullptr) return false;
  return is_aligned(block.gate_up->value) && is_aligned(block.down->value) &&
         grouped_trials().found(rows.device(), c10::typeMetaToScalarType(rows.dtype())) &&
         grouped_choice().of(size_of(block, num_rows));
}

at::Tensor grouped_forward(ExpertsBlock& block, const at::Tensor& received_RD,
                           const Routing& routing, Tape* tape) {
  const RowsByExpert rows(routing, block.local_experts, received_RD);
  const at::Tensor h_R2F =
      grouped(rows.by_expert(received_RD), block.gate_up->value.transpose(1, 2), rows.ends());
  const at::Tensor act_RF = at::empty({h_R2F.size(0), h_R2F.size(1) / 2}, h_R2F.options());
  swiglu_out(act_RF, h_R2F);
  const at::Tensor out_RD = grouped(act_RF, block.down->value.transpose(1, 2), rows.ends());
  if (tape != nullptr) {
    tape->saved = rows.kept();
    tape->saved.insert(tape->saved.begin(), h_R2F);
  }
  return rows.as_received(out_RD);
}

at::Tensor grouped_input_backward(const ExpertsBlock& block, const at::Tensor& g_out_RD,
                                  const Routing& routing, Tape& tape, ExpertsDeferred& deferred) {
  const at::Tensor h_R2F = tape.saved.at(0);
  const auto rows = RowsByExpert::of({tape.saved.begin() + 1, tape.saved.end()}, routing,
                                     block.local_experts, g_out_RD);
  tape.saved.clear();
  const at::Tensor act_RF =
      grouped(rows.by_expert(g_out_RD), block.down->value, rows.ends());  // its gradient, first
  swiglu_backward_(h_R2F, act_RF);
  deferred = {.g_h_R2F = h_R2F, .act_RF = act_RF, .rows_by_expert = rows.kept()};
  return rows.as_received(grouped(h_R2F, block.gate_up->value, rows.ends()));
}

void grouped_weights_backward(ExpertsBlock& block, const at::Tensor& g_out_RD,
                              const at::Tensor& received_RD, const Routing& routing,
                              const ExpertsDeferred& deferred) {
  const auto rows =
      RowsByExpert::of(deferred.rows_by_expert, routing, block.local_experts, received_RD);
  add_gradient(*block.down, block.down->beta(), rows.by_expert(g_out_RD), deferred.act_RF,
               rows.ends());
  add_gradient(*block.gate_up, block.gate_up->beta(), deferred.g_h_R2F, rows.by_expert(received_RD),
               rows.ends());
}

}  // namespace piper::nn
