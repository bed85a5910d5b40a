#include <piper/base/error.h>
#include <piper/nn/gate.h>
#include <piper/nn/host_read.h>
#include <piper/nn/product.h>
#include <piper/nn/tensor_ops.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace piper::nn {
namespace {

// The sequences of the tokens that are here: whole ones, or those that ranks share. `sequence`:
// its tokens, on one of the ranks of context parallelism.
SequenceSpan span_of(const GateBlock& block, int64_t tokens, int64_t sequence) {
  if (tokens % sequence == 0)
    return {.sequence = sequence, .num_sequences = tokens / sequence, .padding = block.own_padding};
  return {.sequence = sequence,
          .first_token = block.share.index * tokens,
          .num_sequences = block.share.count * tokens / sequence,
          .padding = block.own_padding};
}

// Zeroes the rows of padding among rows [T, ..] by token.
void zero_padding_(const SequenceSpan& span, const at::Tensor& rows) {
  for (int64_t end = span.padding > 0 ? span.sequence : 0;
       end > 0 && end <= span.num_sequences * span.sequence; end += span.sequence) {
    const int64_t from = std::max<int64_t>(0, end - span.padding - span.first_token);
    const int64_t to = std::min(rows.size(0), end - span.first_token);
    if (from < to) rows.narrow(0, from, to - from).zero_();
  }
}

// a E f_i / (S * global_sequences) for every sequence and expert, [B, E]. `counts`: choices, the
// same.
at::Tensor auxiliary_gradient(const GateBlock& block, const at::Tensor& counts_BE, int64_t sequence,
                              const at::Tensor& probabilities_TE) {
  const int64_t num_experts = probabilities_TE.size(1);
  const double scale =
      block.auxiliary * static_cast<double>(num_experts) /
      (static_cast<double>(sequence) * static_cast<double>(sequence * block.top_k));
  return (counts_BE.to(at::kDouble) * scale).to(probabilities_TE.options());
}

// The loss is linear in the probabilities: their product with its gradient.
Amount auxiliary_loss(const GateBlock& block, const at::Tensor& gradient_BE,
                      const at::Tensor& scores_TE, int64_t sequence) {
  const at::Tensor probabilities = block.sigmoid ? scores_TE / scores_TE.sum(1, true) : scores_TE;
  const at::Tensor sums = probabilities.unflatten(0, {-1, sequence})
                              .narrow(1, 0, sequence - block.own_padding)
                              .sum(1)
                              .to(at::kDouble);
  return Amount((sums * gradient_BE).sum());
}

// The same of a part of the sequences' tokens.
Amount auxiliary_loss_of_part(const GateBlock& block, const at::Tensor& gradient_BE,
                              const at::Tensor& scores_TE, const SequenceSpan& span) {
  const at::Tensor of_token_TE = gradient_BE.repeat_interleave(span.sequence, 0)
                                     .narrow(0, span.first_token, scores_TE.size(0))
                                     .contiguous();
  zero_padding_(span, of_token_TE);
  const at::Tensor probabilities = block.sigmoid ? scores_TE / scores_TE.sum(1, true) : scores_TE;
  return Amount((probabilities * of_token_TE).sum(at::kDouble));
}

void choose(const GateBlock& block, const at::Tensor& scores_TE, const at::Tensor& expert_TK) {
  const bool limited = block.num_groups > 1 && block.top_groups < block.num_groups;
  if (block.bias == nullptr && !limited) return choose_experts_out(expert_TK, scores_TE);
  const at::Tensor choice_TE =
      block.bias != nullptr ? scores_TE + block.bias->value : scores_TE.clone();
  if (limited)
    limit_groups_(choice_TE, block.num_groups, block.top_groups, /*two_best=*/block.sigmoid);
  choose_experts_out(expert_TK, choice_TE);
}

// The router's scores, and what its backward starts from.
struct Scores {
  at::Tensor scores_TE;
  at::Tensor kept_TE;  // the same; the logits, where sigmoid scores have a z-loss
  at::Tensor lse_T;    // of the logits; undefined without a z-loss
};

// Consumes the logits.
Scores scores_of(const GateBlock& block, const at::Tensor& logits_TE, bool z_loss) {
  if (!block.sigmoid) {
    const at::Tensor lse_T =
        z_loss ? at::empty({logits_TE.size(0)}, logits_TE.options()) : at::Tensor();
    softmax_(logits_TE, lse_T);
    return {logits_TE, logits_TE, lse_T};
  }
  if (z_loss) {
    const at::Tensor lse_T = at::logsumexp(logits_TE, -1);
    return {at::sigmoid(logits_TE), logits_TE, lse_T};
  }
  const at::Tensor scores_TE = logits_TE;
  scores_TE.sigmoid_();
  return {scores_TE, scores_TE, {}};
}

// The loss; lse becomes its gradient.
Amount z_loss_(const GateBlock& block, at::Tensor lse_T, const SequenceSpan& span,
               int64_t sequence) {
  const double scale = block.z_loss / static_cast<double>(sequence);
  zero_padding_(span, lse_T);
  const Amount loss = Amount(lse_T.to(at::kDouble).square().sum()) * scale;
  lse_T.mul_(2 * scale);
  return loss;
}

std::vector<int64_t> sum_over_sequences(const std::vector<int64_t>& counts_BE, size_t num_experts) {
  std::vector<int64_t> sums(num_experts);
  for (size_t i = 0; i < counts_BE.size(); ++i) sums[i % num_experts] += counts_BE[i];
  return sums;
}

// Keeps only the own tokens' part of what was made of all tokens, in memory of its own.
void keep_own(const TensorShare& gathered, Scores& s, at::Tensor& expert_TK) {
  const bool keeps_logits = !s.kept_TE.is_same(s.scores_TE);
  s.scores_TE = gathered.own(s.scores_TE).clone();
  s.kept_TE = keeps_logits ? gathered.own(s.kept_TE).clone() : s.scores_TE;
  if (s.lse_T.defined()) s.lse_T = gathered.own(s.lse_T).clone();
  expert_TK = gathered.own(expert_TK).clone();
}

at::Tensor router_logits(const GateBlock& block, const at::Tensor& xn_TD) {
  return product(xn_TD, block.router->value.t()).to(main_type(xn_TD.scalar_type()));
}

at::Tensor chosen_experts(const GateBlock& block, const at::Tensor& scores_TE) {
  const at::Tensor expert_TK =
      at::empty({scores_TE.size(0), block.top_k}, scores_TE.options().dtype(at::kInt));
  choose(block, scores_TE, expert_TK);
  return expert_TK;
}

// Which of own copies a capacity drops. `choices`: of all ranks, by rank of those that share
// matrices, then by rank of those that share sequences.
std::vector<char> dropped_of_own(const GateBlock& block, const at::Tensor& choices, int64_t tokens,
                                 int64_t num_experts, int64_t sequence, double tie) {
  const int64_t sequences = choices.size(0) / sequence;
  const int64_t sharers = choices.size(0) / (block.context.count * tokens);
  PIPER_CHECK(sharers == 1 || sharers == block.share.count, "choices of other tokens than these");
  const at::Tensor by_rank =
      choices.view({sharers, block.context.count, tokens, -1}).transpose(0, 1).flatten(0, 2);
  const std::vector<char> dropped = beyond_capacity(
      block.context.in_order(by_rank, sequences), num_experts, block.padding, block.capacity, tie);
  const at::Tensor mask = at::empty({sequences, sequence, block.top_k}, at::kChar);
  std::ranges::copy(dropped, mask.data_ptr<int8_t>());
  at::Tensor own = block.context.own(mask).flatten(0, 1);
  if (sharers > 1) own = block.share.own(own);
  const at::Tensor flat = own.contiguous();
  const auto* first = flat.const_data_ptr<int8_t>();
  return {first, first + flat.numel()};
}

}  // namespace

at::Tensor choose_forward(const GateBlock& block, const at::Tensor& x1_TD) {
  const at::Tensor scores_TE =
      scores_of(block, router_logits(block, rms_norm(x1_TD, block.norm->value, block.epsilon)),
                /*z_loss=*/false)
          .scores_TE;
  const at::Tensor expert_TK = chosen_experts(block, scores_TE);
  at::Tensor choices = at::empty({x1_TD.size(0), 2 * block.top_k}, scores_TE.options());
  choices.narrow(1, 0, block.top_k).copy_(expert_TK);
  at::Tensor weights_TK = scores_TE.gather(1, expert_TK.to(at::kLong));
  if (block.normalised) weights_TK.div_(weights_TK.sum(1, true));
  choices.narrow(1, block.top_k, block.top_k).copy_(weights_TK);
  return choices;
}

GateOutput gate_forward(GateBlock& block, const at::Tensor& x1_TD, const at::Tensor& choices,
                        int64_t sequence, std::span<Routing> chunks, Tape* tape, bool counts_stay) {
  PIPER_CHECK(!counts_stay || (chunks.size() == 1 && block.places.empty() &&
                               block.divided.count == 1 && !choices.defined()),
              "rows that the host counts");
  const at::Tensor xn_TD = rms_norm(x1_TD, block.norm->value, block.epsilon);
  Scores s = scores_of(block, router_logits(block, xn_TD), block.z_loss != 0 && tape != nullptr);
  at::Tensor expert_TK = chosen_experts(block, s.scores_TE);
  const int64_t own_sequence = sequence / block.context.count;
  const bool is_shared = block.context.count > 1 || x1_TD.size(0) % sequence != 0;
  PIPER_CHECK(choices.defined() == (is_shared && block.capacity.is_limited()),
              "a capacity of shared sequences is that of all ranks' choices");
  const double tie = capacity_tie(x1_TD.scalar_type());
  const std::vector<char> dropped =
      choices.defined()
          ? dropped_of_own(block, choices, x1_TD.size(0), s.scores_TE.size(1), sequence, tie)
          : std::vector<char>{};
  const auto order_of = [&](const at::Tensor& scores_TE, const at::Tensor& chosen_TK) {
    DispatchOrder order =
        order_rows(scores_TE, chosen_TK, span_of(block, chosen_TK.size(0), own_sequence),
                   block.normalised, block.scaling, block.capacity, tie, block.places, dropped);
    if (!counts_stay && !block.capacity.pads) read_counts(order);
    return order;
  };
  DispatchOrder sent = order_of(s.scores_TE, expert_TK);
  std::optional<DispatchOrder> of_own_tokens;
  if (block.gathered.count > 1) {
    keep_own(block.gathered, s, expert_TK);
    of_own_tokens = order_of(s.scores_TE, expert_TK);
  }
  const DispatchOrder& order = of_own_tokens ? *of_own_tokens : sent;
  const SequenceSpan span = span_of(block, expert_TK.size(0), own_sequence);
  GateOutput out;
  if (order.sequence_counts.empty())
    out.counts_there = at::stack({order.sequence_counts_BE.sum(0), order.kept_P});
  else
    out.chosen =
        sum_over_sequences(order.sequence_counts, static_cast<size_t>(s.scores_TE.size(1)));
  const auto counts_BE = [&] {
    if (order.sequence_counts_BE.defined()) return order.sequence_counts_BE;
    return put_on_device(
        at::tensor(at::ArrayRef<int64_t>(order.sequence_counts)).view({-1, s.scores_TE.size(1)}),
        s.scores_TE.device());
  };
  at::Tensor auxiliary_BE;
  if (block.auxiliary != 0 && tape != nullptr && !is_shared) {
    auxiliary_BE = auxiliary_gradient(block, counts_BE(), sequence - block.padding, s.scores_TE);
    out.auxiliary_loss = auxiliary_loss(block, auxiliary_BE, s.scores_TE, sequence);
  }
  if (s.lse_T.defined()) out.z_loss = z_loss_(block, s.lse_T, span, sequence - block.padding);
  if (tape != nullptr) tape->saved = {s.kept_TE, expert_TK, auxiliary_BE, s.lse_T};
  const at::Tensor shared_counts_BE = is_shared ? counts_BE() : at::Tensor();
  s.scores_TE.reset();  // before there are rows
  out.rows_of_expert = order.kept;
  of_own_tokens.reset();
  const bool by_peers = block.peers > 0 && chunks.size() > 1;
  std::vector<DispatchOrder> orders =
      by_peers ? split_order_by_peers(sent, std::ssize(chunks), block.peers, block.peer)
               : split_order(std::move(sent), std::ssize(chunks));
  sent = {};  // before there are rows
  for (size_t c = 0; c < chunks.size(); ++c) {
    if (block.divided.count > 1)
      orders[c] = divide_order(orders[c], block.divided.count, block.divided.index);
    chunks[c] = {.weights = std::move(orders[c].weights),
                 .token = std::move(orders[c].token),
                 .position = std::move(orders[c].position),
                 .counts = std::move(orders[c].counts),
                 .counts_E = counts_stay ? std::move(orders[c].kept_P) : at::Tensor(),
                 .divided_rows = std::move(orders[c].divided_rows),
                 .first_own_row = orders[c].first_own_row,
                 .of_all_tokens = by_peers,
                 .is_padded = block.capacity.pads};
  }
  chunks.front().sequence_counts = shared_counts_BE;
  chunks.front().sequence = own_sequence;
  if (block.deduplicated) {
    PIPER_CHECK(chunks.size() == 1, "chunks of tokens that travel in place of their copies");
    chunks.front().deduplicated = true;
    out.rows = {xn_TD};
    return out;
  }
  int64_t first = 0;
  for (const Routing& routing : chunks) {
    const int64_t tokens = routing.position.size(0);
    out.rows.push_back(at::empty({routing.token.size(0), x1_TD.size(1)}, x1_TD.options()));
    gather_rows_out(out.rows.back(), xn_TD.narrow(0, first, tokens), routing.token);
    if (!by_peers) first += tokens;
  }
  return out;
}

GateGradient gate_backward(GateBlock& block, const std::vector<at::Tensor>& g_rows,
                           const std::vector<at::Tensor>& g_weights, const at::Tensor& gx_TD,
                           const at::Tensor& x1_TD, const Routings& chunks, Tape& tape) {
  const at::Tensor& sequence_counts = chunks.front()->sequence_counts;
  const at::Tensor g_logits_TE = tape.saved.at(0);  // still the probabilities (or logits)
  GateGradient out;
  at::Tensor auxiliary_BE = tape.saved.at(2);
  const int64_t tokens = x1_TD.size(0);
  const SequenceSpan span = span_of(block, tokens, chunks.front()->sequence);
  if (block.auxiliary != 0 && sequence_counts.defined()) {
    auxiliary_BE = auxiliary_gradient(
        block, sequence_counts, span.sequence * block.context.count - block.padding, g_logits_TE);
    const bool are_logits = block.sigmoid && tape.saved.at(3).defined();
    out.auxiliary_loss = auxiliary_loss_of_part(
        block, auxiliary_BE, are_logits ? g_logits_TE.sigmoid() : g_logits_TE, span);
  }
  const at::Tensor& g_log_sum_T = tape.saved.at(3);
  const auto through_router = [&](int64_t first, const JoinedCopies& copies) {
    const int64_t count = copies.position.size(0);
    router_backward_(
        g_logits_TE.narrow(0, first, count),
        {.expert = tape.saved.at(1).narrow(0, first, count),
         .position = copies.position,
         .weights = copies.weights,
         .g_weights = copies.g_weights,
         .auxiliary = auxiliary_BE,
         .g_log_sum = g_log_sum_T.defined() ? g_log_sum_T.narrow(0, first, count) : at::Tensor(),
         .sequence = span.sequence,
         .first_token = span.first_token + first,
         .normalised = block.normalised,
         .sigmoid = block.sigmoid,
         .scaling = block.scaling});
  };
  if (chunks.front()->of_all_tokens) {  // the scores of a token become gradients once
    std::vector<at::Tensor> position, weights;
    for (const Routing* chunk : chunks) {
      position.push_back(chunk->position);
      weights.push_back(chunk->weights);
    }
    through_router(0, join_chunks(position, weights, g_weights));
  } else {
    for_each_chunk(chunks, block.gathered,
                   [&](size_t c, int64_t first, const at::Tensor& position) {
                     through_router(first, {position, chunks[c]->weights, g_weights[c]});
                   });
  }
  zero_padding_(span, g_logits_TE);
  const at::Tensor g_TE = g_logits_TE.to(x1_TD.scalar_type());
  tape.weights_part([&block, g_TE, x1_TD] {
    accumulate(block.router->gradient, block.router->beta(), block.counted.own(g_TE),
               rms_norm(block.counted.own(x1_TD), block.norm->value, block.epsilon));
  });
  out.x1 = g_rows.front();
  if (!chunks.front()->deduplicated) {
    out.x1 = at::empty_like(x1_TD);
    for_each_chunk(chunks, block.gathered,
                   [&](size_t c, int64_t first, const at::Tensor& position) {
                     const at::Tensor sum = out.x1.narrow(0, first, position.size(0));
                     if (c == 0 || !chunks[c]->of_all_tokens)
                       sum_rows_out(sum, g_rows[c], position);
                     else
                       merge_out(sum, g_rows[c], at::ones_like(chunks[c]->weights), position, sum);
                   });
    if (block.copies > 1) out.x1.mul_(block.copies);
  }
  product_out(out.x1, g_TE, block.router->value, 1);
  tape.saved.clear();
  block.counted.whole_norm_backward_(out.x1, x1_TD, block.norm->value, block.epsilon,
                                     block.norm->gradient, block.norm->beta(), gx_TD);
  return out;
}

}  // namespace piper::nn
