#include <piper/base/error.h>
#include <piper/cost/activation.h>
#include <piper/nn/head.h>
#include <piper/nn/product.h>
#include <piper/nn/tensor_ops.h>

#include <algorithm>

namespace piper::nn {
namespace {

void check_targets(const at::Tensor& targets_T, int64_t tokens, int64_t vocabulary) {
  PIPER_CHECK(targets_T.numel() == tokens && targets_T.scalar_type() == at::kLong,
              "one int64 target a token");
  // On a device it would make the host wait; where batches are made, every token was checked.
  if (!targets_T.device().is_cpu()) return;
  const at::Tensor known =
      targets_T.eq(-100).logical_or_(targets_T.ge(0).logical_and_(targets_T.lt(vocabulary)));
  PIPER_CHECK(known.all().item<bool>(), "a target outside the vocabulary");
}

}  // namespace

HeadLoss head_forward(HeadBlock& block, const at::Tensor& x_TD, const at::Tensor& targets_T,
                      Tape* tape) {
  const int64_t tokens = x_TD.size(0), vocabulary = block.table->value.size(0);
  check_targets(targets_T, tokens, vocabulary);
  const at::Tensor targets = targets_T.reshape({-1}).contiguous();
  HeadLoss loss{.sum = 0, .target_tokens = Amount(targets.ne(-100).sum())};
  // With a tape, a chunk of norm(x) is replaced by its gradient once its logits are known.
  const at::Tensor xn_TD = rms_norm(x_TD, block.norm->value, block.epsilon);
  const int64_t chunk = cost::head_chunk_rows(vocabulary, tokens);
  const at::Tensor logits_CV = at::empty({chunk, vocabulary}, x_TD.options());
  for (int64_t start = 0; start < tokens; start += chunk) {
    const int64_t n = std::min(chunk, tokens - start);
    at::Tensor logits = logits_CV.narrow(0, 0, n);
    at::Tensor xn = xn_TD.narrow(0, start, n);
    product_out(logits, xn, block.table->value.t());
    loss.sum += cross_entropy_(logits, targets.narrow(0, start, n), tape != nullptr, block.scale);
    if (tape == nullptr) continue;
    accumulate(block.table->gradient, block.table->beta(), logits, xn);
    product_out(xn, logits, block.table->value);
  }
  if (tape != nullptr) tape->saved = {xn_TD};
  return loss;
}

at::Tensor head_backward(HeadBlock& block, const at::Tensor& x_TD, Tape& tape) {
  at::Tensor gx_TD = at::empty_like(x_TD);
  gx_TD.copy_(tape.saved.at(0));
  tape.saved.clear();
  rms_norm_backward_(gx_TD, x_TD, block.norm->value, block.epsilon, block.norm->gradient,
                     block.norm->beta());
  return gx_TD;
}

at::Tensor head_logits(const HeadBlock& block, const at::Tensor& x_TD) {
  return product(rms_norm(x_TD, block.norm->value, block.epsilon), block.table->value.t());
}

at::Tensor embedding_forward(const Weight& table, const at::Tensor& tokens_BS) {
  return table.value.index_select(0, tokens_BS.reshape({-1}));
}

void embedding_backward(Weight& table, const at::Tensor& tokens_BS, const at::Tensor& gx_TD) {
  if (table.beta() == 0) table.gradient.zero_();
  add_rows_(table.gradient, tokens_BS.reshape({-1}).contiguous(), gx_TD);
}

}  // namespace piper::nn
