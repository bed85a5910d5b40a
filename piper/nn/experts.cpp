#include <piper/base/error.h>
#include <piper/nn/experts.h>
#include <piper/nn/experts_grouped.h>
#include <piper/nn/host_read.h>
#include <piper/nn/product.h>
#include <piper/nn/tensor_ops.h>

#include <algorithm>
#include <vector>

namespace piper::nn {
namespace {

// Where the rows of each local expert lie among the received ones.
class Layout {
 public:
  Layout(const Routing& routing, int64_t local_experts, int64_t received)
      : local_experts_(local_experts),
        counts_(known_counts(routing)),
        num_peers_(std::ssize(counts_) / local_experts),
        rows_(static_cast<size_t>(local_experts)) {
    PIPER_CHECK(num_peers_ * local_experts == static_cast<int64_t>(counts_.size()),
                "received_counts is not [P * L]");
    int64_t offset = 0;
    for (const int64_t count : counts_) {
      starts_.push_back(offset);
      offset += count;
    }
    // Where the device has the counts, rows of dropped copies come last.
    PIPER_CHECK(offset == received || (routing.counts_E.defined() && offset < received),
                "received rows and received_counts disagree");
    for (size_t i = 0; i < counts_.size(); ++i) rows_[i % rows_.size()] += counts_[i];
  }

  bool scattered() const { return num_peers_ > 1; }
  int64_t rows(int64_t expert) const { return rows_[static_cast<size_t>(expert)]; }
  int64_t largest() const { return *std::max_element(rows_.begin(), rows_.end()); }

  // The expert's rows of x: a view, or a copy in `scratch` when they come from several peers.
  at::Tensor gather(const at::Tensor& x_RD, int64_t expert, const at::Tensor& scratch) const {
    if (!scattered()) return view(x_RD, expert);
    at::Tensor to = scratch.narrow(0, 0, rows(expert));
    each_segment(expert, [&](int64_t start, int64_t count, int64_t at) {
      to.narrow(0, at, count).copy_(x_RD.narrow(0, start, count));
    });
    return to;
  }
  // Where a product may write the expert's rows of out; scatter() then brings them home.
  at::Tensor destination(const at::Tensor& out_RD, int64_t expert,
                         const at::Tensor& scratch) const {
    return scattered() ? scratch.narrow(0, 0, rows(expert)) : view(out_RD, expert);
  }
  void scatter(const at::Tensor& out_RD, int64_t expert, const at::Tensor& from) const {
    if (!scattered()) return;
    each_segment(expert, [&](int64_t start, int64_t count, int64_t at) {
      out_RD.narrow(0, start, count).copy_(from.narrow(0, at, count));
    });
  }
  at::Tensor scratch(const at::Tensor& x_RD) const {
    return scattered() ? at::empty({largest(), x_RD.size(1)}, x_RD.options()) : at::Tensor();
  }

 private:
  at::Tensor view(const at::Tensor& x_RD, int64_t expert) const {
    return x_RD.narrow(0, starts_[static_cast<size_t>(expert)], rows(expert));
  }
  template <class F>
  void each_segment(int64_t expert, F f) const {
    int64_t at = 0;
    for (int64_t peer = 0; peer < num_peers_; ++peer) {
      const auto i = static_cast<size_t>(peer * local_experts_ + expert);
      if (counts_[i] > 0) f(starts_[i], counts_[i], at);
      at += counts_[i];
    }
  }

  int64_t local_experts_;
  std::vector<int64_t> counts_;
  int64_t num_peers_;
  std::vector<int64_t> starts_;
  std::vector<int64_t> rows_;
};

// What the experts of one call share.
struct Work {
  Layout layout;
  at::Tensor h_R2F;       // by expert
  at::Tensor scratch_ND;  // N: rows of the largest expert; undefined with one peer
  at::Tensor act_NF;
};

void forward_one(const ExpertsBlock& block, const Work& work, int64_t expert, int64_t start,
                 const at::Tensor& received_RD, const at::Tensor& out_RD) {
  const int64_t n = work.layout.rows(expert);
  const at::Tensor x_ND = work.layout.gather(received_RD, expert, work.scratch_ND);
  at::Tensor h_N2F = work.h_R2F.narrow(0, start, n);
  product_out(h_N2F, x_ND, block.gate_up_value(expert).t());
  const at::Tensor act_NF = work.act_NF.narrow(0, 0, n);
  swiglu_out(act_NF, h_N2F);
  at::Tensor to_ND =
      work.layout.destination(out_RD, expert, work.scratch_ND);  // x is not needed any more
  product_out(to_ND, act_NF, block.down_value(expert).t());
  work.layout.scatter(out_RD, expert, to_ND);
}

// Homes and copies have betas of their own, since their gradients are marked separately.
struct Betas {
  struct Of {
    double gate_up = 1, down = 1;
  };
  int64_t num_homes;
  Of homes, copies;

  explicit Betas(ExpertsBlock& block)
      : num_homes(block.num_homes()), homes{block.gate_up->beta(), block.down->beta()} {
    if (block.copied_gate_up != nullptr)
      copies = {block.copied_gate_up->beta(), block.copied_down->beta()};
  }
  const Of& of(int64_t expert) const { return expert < num_homes ? homes : copies; }
};

// One expert's rows in the backward.
struct ExpertRows {
  const ExpertsBlock& block;
  const Work& work;
  int64_t expert;
  at::Tensor h_N2F, act_NF;

  at::Tensor gather(const at::Tensor& x_RD) const {
    return work.layout.gather(x_RD, expert, work.scratch_ND);
  }
  // act from the gradient of the result; h becomes its gradient.
  void activation(const at::Tensor& g_ND) const {
    product_out(act_NF, g_ND, block.down_value(expert));
    swiglu_backward_(h_N2F, act_NF);
  }
  void down_gradient(const at::Tensor& g_ND, const Betas& beta) const {
    accumulate(block.down_gradient(expert), beta.of(expert).down, g_ND, act_NF);
  }
  void gate_up_gradient(const at::Tensor& x_ND, const Betas& beta) const {
    accumulate(block.gate_up_gradient(expert), beta.of(expert).gate_up, h_N2F, x_ND);
  }
  void input_gradient(const at::Tensor& gx_RD) const {
    at::Tensor to_ND = work.layout.destination(gx_RD, expert, work.scratch_ND);
    product_out(to_ND, h_N2F, block.gate_up_value(expert));
    work.layout.scatter(gx_RD, expert, to_ND);
  }
};

// `act_has_all`: act is [R, F], by expert as h; else [N, F], of the expert in turn.
template <class Visit>
void for_each_expert(const ExpertsBlock& block, const Work& work, bool act_has_all, Visit visit) {
  int64_t start = 0;
  for (int64_t expert = 0; expert < block.local_experts; ++expert) {
    const int64_t n = work.layout.rows(expert);
    if (n > 0)
      visit(ExpertRows{block, work, expert, work.h_R2F.narrow(0, start, n),
                       work.act_NF.narrow(0, act_has_all ? start : 0, n)});
    start += n;
  }
}

// The gradients of experts without rows, in their first backward.
void zero_idle(ExpertsBlock& block, const Layout& layout, const Betas& beta) {
  for (int64_t expert = 0; expert < block.local_experts; ++expert) {
    if (beta.of(expert).gate_up != 0 || layout.rows(expert) > 0) continue;
    block.gate_up_gradient(expert).zero_();
    block.down_gradient(expert).zero_();
  }
}

}  // namespace

std::vector<int64_t> known_counts(const Routing& routing) {
  if (!routing.counts_E.defined()) return routing.computed_counts();
  const at::Tensor read = read_on_host(routing.counts_E);
  return {read.const_data_ptr<int64_t>(), read.const_data_ptr<int64_t>() + read.numel()};
}

at::Tensor experts_forward(ExpertsBlock& block, const at::Tensor& received_RD,
                           const Routing& routing, Tape* tape) {
  if (computes_grouped(block, received_RD))
    return grouped_forward(block, received_RD, routing, tape);
  const int64_t received = received_RD.size(0), ffn = block.down->value.size(2);
  Layout layout(routing, block.local_experts, received);
  const Work work{.layout = layout,
                  .h_R2F = at::empty({received, 2 * ffn}, received_RD.options()),
                  .scratch_ND = layout.scratch(received_RD),
                  .act_NF = at::empty({layout.largest(), ffn}, received_RD.options())};
  const at::Tensor out_RD = at::empty_like(received_RD);
  int64_t start = 0;
  for (int64_t expert = 0; expert < block.local_experts; start += layout.rows(expert++))
    if (layout.rows(expert) > 0) forward_one(block, work, expert, start, received_RD, out_RD);
  if (tape != nullptr) tape->saved = {work.h_R2F};
  return out_RD;
}

at::Tensor experts_input_backward(const ExpertsBlock& block, const at::Tensor& g_out_RD,
                                  const Routing& routing, Tape& tape, ExpertsDeferred& deferred) {
  if (computes_grouped(block, g_out_RD))
    return grouped_input_backward(block, g_out_RD, routing, tape, deferred);
  const int64_t received = g_out_RD.size(0), ffn = block.down->value.size(2);
  Layout layout(routing, block.local_experts, received);
  const Work work{.layout = layout,
                  .h_R2F = tape.saved.at(0),
                  .scratch_ND = layout.scratch(g_out_RD),
                  .act_NF = at::empty({received, ffn}, g_out_RD.options())};
  const at::Tensor gx_RD = at::empty_like(g_out_RD);
  for_each_expert(block, work, true, [&](const ExpertRows& rows) {
    rows.activation(rows.gather(g_out_RD));
    rows.input_gradient(gx_RD);
  });
  tape.saved.clear();
  deferred = {.g_h_R2F = work.h_R2F, .act_RF = work.act_NF, .rows_by_expert = {}};
  return gx_RD;
}

void experts_weights_backward(ExpertsBlock& block, const at::Tensor& g_out_RD,
                              const at::Tensor& received_RD, const Routing& routing,
                              const ExpertsDeferred& deferred) {
  if (computes_grouped(block, received_RD))
    return grouped_weights_backward(block, g_out_RD, received_RD, routing, deferred);
  Layout layout(routing, block.local_experts, received_RD.size(0));
  const Work work{.layout = layout,
                  .h_R2F = deferred.g_h_R2F,
                  .scratch_ND = layout.scratch(received_RD),
                  .act_NF = deferred.act_RF};
  const Betas beta(block);
  for_each_expert(block, work, true, [&](const ExpertRows& rows) {
    rows.down_gradient(rows.gather(g_out_RD), beta);
    rows.gate_up_gradient(rows.gather(received_RD), beta);
  });
  zero_idle(block, layout, beta);
}

at::Tensor experts_backward(ExpertsBlock& block, const at::Tensor& g_out_RD,
                            const at::Tensor& received_RD, const Routing& routing, Tape& tape) {
  if (tape.defers_weights) {
    ExpertsDeferred deferred;
    at::Tensor gx_RD = experts_input_backward(block, g_out_RD, routing, tape, deferred);
    tape.weights_part([&block, &routing, deferred, g_out_RD, received_RD] {
      experts_weights_backward(block, g_out_RD, received_RD, routing, deferred);
    });
    return gx_RD;
  }
  if (computes_grouped(block, received_RD)) {
    ExpertsDeferred parts;
    at::Tensor gx_RD = grouped_input_backward(block, g_out_RD, routing, tape, parts);
    grouped_weights_backward(block, g_out_RD, received_RD, routing, parts);
    return gx_RD;
  }
  const int64_t received = received_RD.size(0), ffn = block.down->value.size(2);
  Layout layout(routing, block.local_experts, received);
  const Work work{.layout = layout,
                  .h_R2F = tape.saved.at(0),
                  .scratch_ND = layout.scratch(received_RD),
                  .act_NF = at::empty({layout.largest(), ffn}, received_RD.options())};
  const at::Tensor gx_RD = at::empty_like(received_RD);
  const Betas beta(block);
  for_each_expert(block, work, false, [&](const ExpertRows& rows) {
    {
      const at::Tensor g_ND = rows.gather(g_out_RD);
      rows.activation(g_ND);
      rows.down_gradient(g_ND, beta);
    }
    rows.gate_up_gradient(rows.gather(received_RD), beta);
    rows.input_gradient(gx_RD);
  });
  zero_idle(block, layout, beta);
  tape.saved.clear();
  return gx_RD;
}

}  // namespace piper::nn
