// The same functions as compositions of at:: calls: slower and with scratch tensors, but they run
// on every device and are short enough to be believed. As the kernels, they compute in main_type().
// None of them makes the host wait for the device.
#include <piper/nn/host_read.h>
#include <piper/nn/tensor_ops.h>

namespace piper::nn::any_device {
namespace {

at::Tensor widened(const at::Tensor& x) { return x.to(main_type(x.scalar_type())); }

// The rows (or values) that `position` names, [T, K, ...]; zeros where it is -1.
at::Tensor rows_of(const at::Tensor& rows, const at::Tensor& position) {
  std::vector<int64_t> shape = rows.sizes().vec();
  shape.insert(shape.begin(), position.size(0));
  shape[1] = position.size(1);
  if (rows.size(0) == 0) return at::zeros(shape, rows.options());  // all are dropped
  const at::Tensor named = rows.index_select(0, position.clamp_min(0).reshape({-1})).view(shape);
  const at::Tensor dropped = position.lt(0);
  return named.masked_fill(rows.dim() == 1 ? dropped : dropped.unsqueeze(-1), 0);
}

at::Tensor reciprocal_root_mean_square(const at::Tensor& x, double epsilon) {
  return (x * x).mean(-1, true).add_(epsilon).rsqrt_();
}

}  // namespace

void rms_norm_out(at::Tensor y, const at::Tensor& x, const at::Tensor& weight, double epsilon) {
  const at::Tensor wide = widened(x);
  y.copy_(widened(weight) * (wide * reciprocal_root_mean_square(wide, epsilon)));
}

void rms_norm_backward_(at::Tensor g, const at::Tensor& x, const at::Tensor& weight, double epsilon,
                        at::Tensor weight_gradient, double beta, const at::Tensor& residual) {
  const at::Tensor wide = widened(x), g_wide = widened(g);
  const at::Tensor r = reciprocal_root_mean_square(wide, epsilon);
  const at::Tensor unit = wide * r;  // x / rms
  if (weight_gradient.defined()) {
    const at::Tensor g_weight = (g_wide * unit).reshape({-1, weight.size(0)}).sum(0);
    if (beta == 0)
      weight_gradient.copy_(g_weight);
    else
      weight_gradient.add_(g_weight);
  }
  const at::Tensor g_unit = g_wide * widened(weight);
  at::Tensor g_x = r * (g_unit - unit * (g_unit * unit).mean(-1, true));
  if (residual.defined()) g_x.add_(residual);
  g.copy_(g_x);
}

void rotate_(at::Tensor x, const RopeTable& table, int64_t sequence, bool back) {
  const int64_t half = table.cosine.size(1);
  const int64_t repeats = x.size(0) / sequence;
  const at::Tensor c = table.cosine.narrow(0, 0, sequence).repeat({repeats, 1}).unsqueeze(1);
  at::Tensor s = table.sine.narrow(0, 0, sequence).repeat({repeats, 1}).unsqueeze(1);
  if (back) s.neg_();
  const auto every_second = [&](int64_t first) { return x.slice(-1, first, 2 * half, 2); };
  const at::Tensor low = table.interleaved ? every_second(0) : x.narrow(-1, 0, half);
  const at::Tensor high = table.interleaved ? every_second(1) : x.narrow(-1, half, half);
  const at::Tensor turned_low = low * c - high * s, turned_high = high * c + low * s;
  low.copy_(turned_low);
  high.copy_(turned_high);
}

void swiglu_out(at::Tensor act, const at::Tensor& h) {
  const int64_t ffn = act.size(1);
  act.copy_(at::silu(widened(h.narrow(1, 0, ffn))) * h.narrow(1, ffn, ffn));
}

void swiglu_backward_(at::Tensor h, at::Tensor g_act) {
  const int64_t ffn = g_act.size(1);
  const at::Tensor gate = widened(h.narrow(1, 0, ffn)), up = widened(h.narrow(1, ffn, ffn));
  const at::Tensor g = widened(g_act), silu = at::silu(gate);
  const at::Tensor act = silu * up;
  const at::Tensor g_gate = at::silu_backward(g * up, gate);
  h.narrow(1, ffn, ffn).copy_(g * silu);
  h.narrow(1, 0, ffn).copy_(g_gate);
  g_act.copy_(act);
}

void gather_rows_out(at::Tensor out, const at::Tensor& x, const at::Tensor& index) {
  at::index_select_out(out, x, 0, index);
}

void sum_rows_out(at::Tensor out, const at::Tensor& rows, const at::Tensor& position) {
  out.copy_(widened(rows_of(rows, position)).sum(1));
}

void add_rows_(at::Tensor table, const at::Tensor& index, const at::Tensor& rows) {
  table.index_add_(0, index, rows.to(table.scalar_type()));
}

void merge_out(at::Tensor out, const at::Tensor& returned, const at::Tensor& weights,
               const at::Tensor& position, const at::Tensor& x1) {
  const at::Tensor weight = rows_of(weights, position).unsqueeze(-1);
  out.copy_(x1 + (rows_of(returned, position) * weight).sum(1));
}

void merge_backward_out(at::Tensor g_returned, at::Tensor g_weights, const at::Tensor& gx,
                        const at::Tensor& returned, const at::Tensor& weights,
                        const at::Tensor& position, int64_t first_row) {
  // Which copy each row is of: every row has one, and what was dropped falls on a row behind them.
  const int64_t rows = returned.size(0);
  const at::Tensor every = position.reshape({-1}).to(at::kLong);
  const at::Tensor copy = at::zeros({rows + 1}, every.options())
                              .scatter_(0, every.masked_fill(every.lt(0), rows),
                                        at::arange(every.size(0), every.options()))
                              .narrow(0, 0, rows);
  const at::Tensor g = widened(gx.index_select(0, at::floor_divide(copy, position.size(1))));
  g_weights.copy_((g * returned).sum(-1));
  g_returned.copy_((g * weights.unsqueeze(-1)).narrow(0, first_row, g_returned.size(0)));
}

void softmax_(at::Tensor x, at::Tensor log_sum) {
  if (log_sum.defined()) log_sum.copy_(at::logsumexp(x, -1));
  x.copy_(at::softmax(x, -1));
}

void choose_experts_out(at::Tensor expert, const at::Tensor& probabilities) {
  // A stable sort puts the lower index first among equals.
  const at::Tensor order =
      std::get<1>(at::sort(probabilities, /*stable=*/true, -1, /*descending=*/true));
  expert.copy_(order.narrow(1, 0, expert.size(1)));
}

void router_backward_(at::Tensor probabilities, const RouterGradients& in) {
  const at::Tensor expert = in.expert.to(at::kLong);
  at::Tensor g_softmax;
  if (in.g_log_sum.defined() && in.sigmoid) {
    g_softmax = at::softmax(probabilities, -1) * in.g_log_sum.unsqueeze(1);
    probabilities.sigmoid_();
  }
  at::Tensor g_chosen = rows_of(in.g_weights, in.position);
  if (in.normalised) {
    const at::Tensor w = rows_of(in.weights, in.position);
    const at::Tensor sum = probabilities.gather(1, expert).sum(1, true);
    g_chosen = (in.scaling * g_chosen - (w * g_chosen).sum(1, true)) / sum;
  } else {
    g_chosen = in.scaling * g_chosen;
  }
  at::Tensor g = at::zeros_like(probabilities);
  if (in.auxiliary.defined())
    g.copy_(in.auxiliary.repeat_interleave(in.sequence, 0)
                .narrow(0, in.first_token, probabilities.size(0)));
  if (in.auxiliary.defined() && in.sigmoid) {
    const at::Tensor total = probabilities.sum(1, true);
    g = (g - (g * probabilities).sum(1, true) / total) / total;
  }
  g.scatter_add_(1, expert, g_chosen);
  if (in.sigmoid) {
    probabilities.mul_((1 - probabilities) * g);
    if (g_softmax.defined()) probabilities.add_(g_softmax);
    return;
  }
  at::Tensor shift = (g * probabilities).sum(1, true);
  if (in.g_log_sum.defined()) shift = shift - in.g_log_sum.unsqueeze(1);
  probabilities.mul_(g - shift);
}

namespace {

// The k-th largest of each row's weights, -1 where there are not as many; those that are above it
// stay, then the first of those that equal it (`tie`; drop_smallest() in order_rows.cpp).
at::Tensor within_largest(const at::Tensor& weight_BES, int64_t rows, double tie) {
  const auto with_tie = [&](double one) {  // as the type of the weights has it
    return weight_BES.scalar_type() == at::kFloat
               ? static_cast<double>(static_cast<float>(one) + static_cast<float>(tie))
               : one + tie;
  };
  const at::Tensor cut_BE1 = std::get<0>(at::topk(weight_BES, rows, -1)).narrow(-1, rows - 1, 1);
  const at::Tensor above = weight_BES.gt(cut_BE1 * with_tie(1));
  const at::Tensor equal = (weight_BES * with_tie(1)).ge(cut_BE1).logical_and(above.logical_not());
  const at::Tensor room_BE1 = rows - above.sum(-1, /*keepdim=*/true);
  return above.logical_or(equal.logical_and(equal.cumsum(-1).le(room_BE1)));
}

// [T K]: whether a copy is among the `rows` that its expert keeps of its sequence. weights_TK: of
// whole sequences.
at::Tensor is_kept(const at::Tensor& weights_TK, const at::Tensor& chosen_TK, int64_t num_experts,
                   int64_t rows, const SequenceSpan& span, const CapacityLimit& limit) {
  const int64_t tokens = chosen_TK.size(0), counted = span.sequence - span.padding;
  // Those that are not chosen, and padding, have weight -1, and one that is no number 0.
  const at::Tensor weights = weights_TK.masked_fill(weights_TK.ge(0).logical_not(), 0);
  at::Tensor weight_BSE = at::full({tokens, num_experts}, -1.0, weights_TK.options())
                              .scatter_(1, chosen_TK, weights)
                              .view({span.num_sequences, span.sequence, num_experts});
  weight_BSE.narrow(1, counted, span.padding).fill_(-1);
  const at::Tensor weight_BES = weight_BSE.transpose(1, 2).contiguous();
  at::Tensor kept_BES = weight_BES.ge(0);
  if (rows < counted)
    kept_BES.logical_and_(limit.capacity.drop == strategy::Drop::kPosition
                              ? kept_BES.cumsum(-1).le(rows)
                              : within_largest(weight_BES, rows, limit.tie));
  return kept_BES.transpose(1, 2).reshape({tokens, num_experts}).gather(1, chosen_TK).reshape({-1});
}

// Moves every row to where it is when each expert has `each` rows. `rows_of`: what it has by
// expert, then those that are dropped; `expert`: of each copy, [T K].
void pad(DispatchOrder& order, const at::Tensor& rows_of, const at::Tensor& expert, int64_t each) {
  const int64_t num_experts = rows_of.size(0) - 1;
  const int64_t rows = num_experts * each;
  const at::Tensor begin_of = rows_of.cumsum(0) - rows_of;
  const at::Tensor shift_of = at::arange(num_experts + 1, rows_of.options()) * each - begin_of;
  // What is dropped falls on a row behind all.
  const at::Tensor sorted = std::get<0>(at::sort(expert, /*stable=*/true, 0, false));
  const at::Tensor to =
      (at::arange(expert.size(0), rows_of.options()) + shift_of.index_select(0, sorted))
          .clamp_max(rows);
  const auto spread = [&](const at::Tensor& values) {
    return at::zeros({rows + 1}, values.options()).scatter_(0, to, values).narrow(0, 0, rows);
  };
  order.token = spread(order.token);
  order.weights = spread(order.weights);
  const at::Tensor position = order.position.reshape({-1});
  const at::Tensor moved = to.index_select(0, position.clamp_min(0)).to(at::kInt);
  order.position = moved.masked_fill(position.lt(0), -1).view(order.position.sizes());
}

}  // namespace

DispatchOrder order_rows(const at::Tensor& scores, const at::Tensor& expert,
                         const SequenceSpan& span, bool normalised, double scaling,
                         const ExpertPlaces& places, const CapacityLimit& limit) {
  const int64_t tokens = expert.size(0), k = expert.size(1), num_experts = scores.size(1);
  const at::Tensor chosen_TK = expert.to(at::kLong);
  at::Tensor weights_TK = scores.gather(1, chosen_TK);
  if (normalised) weights_TK = weights_TK / weights_TK.sum(1, true);
  const bool is_limited = limit.capacity.is_limited();
  const int64_t rows_of_sequence = strategy::expert_capacity(
      limit.capacity.factor, span.sequence - span.padding, k, num_experts);
  const int64_t most = span.num_sequences * rows_of_sequence;  // of an expert
  at::Tensor dropped;                                          // [T K]; undefined: none
  if (is_limited)
    dropped =
        is_kept(weights_TK, chosen_TK, num_experts, rows_of_sequence, span, limit).logical_not();
  // What is dropped comes behind all others.
  const auto behind = [&](const at::Tensor& of_copy, int64_t last) {
    return dropped.defined() ? of_copy.masked_fill(dropped, last) : of_copy;
  };
  at::Tensor place = chosen_TK.reshape({-1});
  const int64_t num_places = places.empty() ? num_experts : places.num_places;
  if (!places.empty()) {
    const auto table = [&](const std::vector<int32_t>& values) {
      return put_on_device(at::tensor(at::ArrayRef<int32_t>(values)).to(place.dtype()),
                           place.device());
    };
    const at::Tensor first_E1 = table(places.first);
    at::Tensor entry = first_E1.index_select(0, place);
    if (std::ssize(places.place) > num_experts) {
      // The i-th row of an expert goes to the (i mod number)-th of its copies' places.
      const at::Tensor kept = behind(place, num_experts);
      const at::Tensor by_expert = at::argsort(kept, /*stable=*/true, 0, /*descending=*/false);
      const at::Tensor sorted = kept.index_select(0, by_expert);
      const at::Tensor rank = at::arange(place.numel(), place.options());
      const at::Tensor in_turn =
          at::empty_like(place).scatter_(0, by_expert, rank - at::searchsorted(sorted, sorted));
      const at::Tensor num =
          (first_E1.narrow(0, 1, num_experts) - first_E1.narrow(0, 0, num_experts))
              .index_select(0, place);
      entry = entry + at::remainder(in_turn, num);
    }
    place = table(places.place).index_select(0, entry);
  }
  place = behind(place, num_places);
  const at::Tensor ones = at::ones_like(place);
  const at::Tensor kept_and_dropped =
      at::zeros({num_places + 1}, place.options()).scatter_add_(0, place, ones);
  // By place, then by copy, which is by token.
  const at::Tensor copy_of_row = at::argsort(place, /*stable=*/true, 0, /*descending=*/false);
  const at::Tensor copies = at::arange(tokens * k, place.options());
  DispatchOrder order;
  order.token = at::floor_divide(copy_of_row, k).to(at::kInt);
  order.position = behind(at::empty_like(copies).scatter_(0, copy_of_row, copies), -1)
                       .to(at::kInt)
                       .view({tokens, k});
  order.weights = (weights_TK * scaling).reshape({-1}).index_select(0, copy_of_row);
  if (limit.capacity.pads) {
    pad(order, kept_and_dropped, place, most);
    order.counts.assign(static_cast<size_t>(num_experts), most);
  } else if (is_limited && places.empty() && num_experts * most < order.token.size(0)) {
    order.token = order.token.narrow(0, 0, num_experts * most).clone();
    order.weights = order.weights.narrow(0, 0, num_experts * most).clone();
  }

  const at::Tensor token = at::floor_divide(copies, k) + span.first_token;
  const at::Tensor sequence = at::floor_divide(token, span.sequence);
  const at::Tensor is_counted =
      at::remainder(token, span.sequence).lt(span.sequence - span.padding).to(at::kLong);
  order.kept_P = kept_and_dropped.narrow(0, 0, num_places);
  order.sequence_counts_BE =
      at::zeros({span.num_sequences * num_experts}, place.options())
          .scatter_add_(0, sequence * num_experts + chosen_TK.reshape({-1}), is_counted)
          .view({-1, num_experts});
  return order;
}

Amount cross_entropy_(at::Tensor logits, const at::Tensor& targets, bool gradient, double scale) {
  const at::Tensor wanted = targets.ne(-100);
  const at::Tensor target = targets.clamp_min(0).unsqueeze(1);
  const at::Tensor log_probability = at::log_softmax(widened(logits), -1);
  const Amount loss(-(log_probability.gather(1, target).squeeze(1) * wanted).to(at::kDouble).sum());
  if (!gradient) return loss;
  at::Tensor g = log_probability.exp();
  g.scatter_add_(1, target, at::full(target.sizes(), -1.0, g.options()));
  logits.copy_(g.mul_(wanted.unsqueeze(1).to(g.scalar_type()) * scale));
  return loss;
}

}  // namespace piper::nn::any_device
