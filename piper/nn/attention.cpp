#include <piper/nn/attention.h>
#include <piper/nn/causal_attention.h>
#include <piper/nn/product.h>

#include <utility>
#include <vector>

namespace piper::nn {
namespace {

// Views of the three parts of qkv (or of its weight's gradient, by rows).
struct Qkv {
  at::Tensor q, k, v;
};

Qkv parts(const at::Tensor& qkv_TC, const model::Attention& a) {
  const int64_t q = a.num_heads * a.head_dim, kv = a.num_kv_heads * a.head_dim;
  return {qkv_TC.narrow(1, 0, q), qkv_TC.narrow(1, q, kv), qkv_TC.narrow(1, q + kv, kv)};
}

int64_t query_width(const model::Attention& a) { return a.num_heads * a.head_dim; }
int64_t key_width(const model::Attention& a) { return a.num_kv_heads * a.head_dim; }

// The rows of a stored parameter, or of its gradient, that make q, k and v here. `of`: value or
// gradient.
Qkv rows_of(const AttentionBlock& block, at::Tensor Weight::*of, const Weight& qkv,
            const Weight* kv) {
  const int64_t q = query_width(block.shape), k = key_width(block.shape);
  const at::Tensor& first = qkv.*of;
  if (kv == nullptr)
    return {first.narrow(0, 0, q), first.narrow(0, q, k), first.narrow(0, q + k, k)};
  const at::Tensor& both = kv->*of;
  const int64_t values = both.size(0) / 2;
  return {first, both.narrow(0, block.first_kv_row, k),
          both.narrow(0, values + block.first_kv_row, k)};
}

// What the next contribution multiplies the gradient by, of which it writes some rows only.
double beta_of_some_rows(Weight& weight) {
  if (weight.beta() == 0) weight.gradient.zero_();
  return 1;
}

at::Tensor by_head(const at::Tensor& x_TC, const model::Attention& a) {
  return x_TC.unflatten(1, {-1, a.head_dim});  // [T, heads, head_dim]
}

// [T, heads * head_dim] -> [B, heads, S, head_dim], a view.
at::Tensor by_sequence(const at::Tensor& x_TC, const model::Attention& a, int64_t sequence) {
  return x_TC.unflatten(1, {-1, a.head_dim}).unflatten(0, {-1, sequence}).transpose(1, 2);
}

// The rows over which q and k are normalised: heads, or all heads together.
at::Tensor norm_rows(const at::Tensor& x_TC, const model::Attention& a) {
  return a.qk_norm == model::QkNorm::kPerHead ? by_head(x_TC, a) : x_TC;
}

// Normalised (where the model does) and rotated queries and keys. Without a normalisation in place,
// once, in the forward; else in new storage that leaves qkv as it is, and again in the backward.
Qkv prepare(const AttentionBlock& block, const RopeTable& rope, const at::Tensor& qkv_TC,
            int64_t sequence, bool again) {
  const model::Attention& a = block.shape;
  Qkv p = parts(qkv_TC, a);
  if (block.q_norm == nullptr && again) return p;
  if (block.q_norm != nullptr) {
    const at::Tensor q = at::empty_like(p.q, at::MemoryFormat::Contiguous);
    const at::Tensor k = at::empty_like(p.k, at::MemoryFormat::Contiguous);
    rms_norm_out(norm_rows(q, a), norm_rows(p.q, a), block.q_norm->value, block.epsilon);
    rms_norm_out(norm_rows(k, a), norm_rows(p.k, a), block.k_norm->value, block.epsilon);
    p.q = q;
    p.k = k;
  }
  if (a.rotary) {
    rotate_(by_head(p.q, a), rope, sequence, false);
    rotate_(by_head(p.k, a), rope, sequence, false);
  }
  return p;
}

// Gradients of q and k back through rotation and normalisation, in place.
void unprepare(AttentionBlock& block, const RopeTable& rope, const Qkv& g, const at::Tensor& qkv_TC,
               int64_t sequence) {
  const model::Attention& a = block.shape;
  if (a.rotary) {
    rotate_(by_head(g.q, a), rope, sequence, true);
    rotate_(by_head(g.k, a), rope, sequence, true);
  }
  if (block.q_norm == nullptr) return;
  const Qkv raw = parts(qkv_TC, a);
  rms_norm_backward_(norm_rows(g.q, a), norm_rows(raw.q, a), block.q_norm->value, block.epsilon,
                     block.q_norm->gradient, block.q_norm->beta());
  rms_norm_backward_(norm_rows(g.k, a), norm_rows(raw.k, a), block.k_norm->value, block.epsilon,
                     block.k_norm->gradient, block.k_norm->beta());
}

// W_qkv norm(x) and its bias.
at::Tensor project(const AttentionBlock& block, const at::Tensor& x_TD) {
  const at::Tensor xn_TD = rms_norm(x_TD, block.norm->value, block.epsilon);
  if (block.kv == nullptr) {
    at::Tensor qkv_TC = product(xn_TD, block.qkv->value.t());
    if (block.qkv_bias != nullptr) qkv_TC.add_(block.qkv_bias->value);
    return qkv_TC;
  }
  const int64_t width = query_width(block.shape) + 2 * key_width(block.shape);
  at::Tensor qkv_TC = at::empty({x_TD.size(0), width}, x_TD.options());
  const Qkv to = parts(qkv_TC, block.shape);
  const Qkv weight = rows_of(block, &Weight::value, *block.qkv, block.kv);
  product_out(to.q, xn_TD, weight.q.t());
  product_out(to.k, xn_TD, weight.k.t());
  product_out(to.v, xn_TD, weight.v.t());
  if (block.qkv_bias != nullptr) {
    const Qkv bias = rows_of(block, &Weight::value, *block.qkv_bias, block.kv_bias);
    to.q.add_(bias.q);
    to.k.add_(bias.k);
    to.v.add_(bias.v);
  }
  return qkv_TC;
}

// From the gradients of q, k and v to the weight's gradient and the gradient of norm(x).
at::Tensor project_back(AttentionBlock& block, const Qkv& g, const at::Tensor& x_TD, Tape& tape) {
  tape.weights_part([&block, g, x_TD] {
    {
      const double beta = block.qkv->beta();
      const double kv_beta = block.kv != nullptr ? beta_of_some_rows(*block.kv) : beta;
      const at::Tensor xn_TD = rms_norm(x_TD, block.norm->value, block.epsilon);
      const Qkv gradient = rows_of(block, &Weight::gradient, *block.qkv, block.kv);
      accumulate(gradient.q, beta, g.q, xn_TD);
      accumulate(gradient.k, kv_beta, g.k, xn_TD);
      accumulate(gradient.v, kv_beta, g.v, xn_TD);
    }
    if (block.qkv_bias == nullptr) return;
    const double beta = block.qkv_bias->beta();
    const double kv_beta = block.kv_bias != nullptr ? beta_of_some_rows(*block.kv_bias) : beta;
    const Qkv gradient = rows_of(block, &Weight::gradient, *block.qkv_bias, block.kv_bias);
    accumulate_rows(gradient.q, beta, g.q);
    accumulate_rows(gradient.k, kv_beta, g.k);
    accumulate_rows(gradient.v, kv_beta, g.v);
  });
  const Qkv weight = rows_of(block, &Weight::value, *block.qkv, block.kv);
  at::Tensor gxn_TD = product(g.q, weight.q);
  product_out(gxn_TD, g.k, weight.k, 1);
  product_out(gxn_TD, g.v, weight.v, 1);
  return gxn_TD;
}

// Adds the gradients of the output's projection and of its bias.
void add_output_gradient(const TensorShare& share, Weight& output, Weight* bias,
                         const at::Tensor& gx1_TD, const at::Tensor& out_TC) {
  accumulate(output.gradient, output.beta(), gx1_TD, out_TC);
  if (bias != nullptr) accumulate_rows(bias->gradient, bias->beta(), share.own(gx1_TD));
}
void add_output_gradient(AttentionBlock& block, const at::Tensor& gx1_TD,
                         const at::Tensor& out_TC) {
  add_output_gradient(block.share, *block.output, block.output_bias, gx1_TD, out_TC);
}

}  // namespace

at::Tensor attention_forward(AttentionBlock& block, const RopeTable& rope, const at::Tensor& x_TD,
                             int64_t sequence, Tape* tape) {
  const model::Attention& a = block.shape;
  const at::Tensor qkv_TC = project(block, x_TD);
  CausalAttention done;
  {
    const Qkv p = prepare(block, rope, qkv_TC, sequence, false);
    done = causal_attention(by_sequence(p.q, a, sequence), by_sequence(p.k, a, sequence),
                            by_sequence(p.v, a, sequence));
  }
  const at::Tensor out_TC = done.out_BSHd.view({x_TD.size(0), -1});
  if (tape != nullptr) tape->saved = {qkv_TC, out_TC, done.log_sum_exp};
  at::Tensor x1_TD = block.share.add_product(x_TD, out_TC, block.output->value.t());
  if (block.output_bias != nullptr) block.share.own(x1_TD).add_(block.output_bias->value);
  return x1_TD;
}

at::Tensor attention_backward(AttentionBlock& block, const RopeTable& rope,
                              const at::Tensor& gx1_TD, const at::Tensor& x_TD, int64_t sequence,
                              Tape& tape) {
  const model::Attention& a = block.shape;
  const at::Tensor qkv_TC = tape.saved.at(0), out_TC = tape.saved.at(1),
                   log_sum_exp = tape.saved.at(2);
  tape.saved.clear();
  tape.weights_part([&block, gx1_TD, out_TC] { add_output_gradient(block, gx1_TD, out_TC); });
  Qkv g;
  {
    const at::Tensor g_out_TC = product(gx1_TD, block.output->value);
    const Qkv p = prepare(block, rope, qkv_TC, sequence, true);
    const auto gradients = causal_attention_backward(
        by_sequence(g_out_TC, a, sequence), by_sequence(p.q, a, sequence),
        by_sequence(p.k, a, sequence), by_sequence(p.v, a, sequence),
        {out_TC.view({-1, sequence, a.num_heads, a.head_dim}), log_sum_exp});
    const int64_t tokens = x_TD.size(0);
    g = {gradients.q_BSHd.view({tokens, -1}), gradients.k_BSHd.view({tokens, -1}),
         gradients.v_BSHd.view({tokens, -1})};
  }
  unprepare(block, rope, g, qkv_TC, sequence);
  at::Tensor gx_TD = project_back(block, g, x_TD, tape);
  block.share.norm_backward_(gx_TD, x_TD, block.norm->value, block.epsilon, block.norm->gradient,
                             block.norm->beta(), gx1_TD);
  return gx_TD;
}

namespace {

// Keys, or values, of [.., keys and values].
at::Tensor keys_of(const at::Tensor& both) { return both.narrow(-1, 0, both.size(-1) / 2); }
at::Tensor values_of(const at::Tensor& both) {
  return both.narrow(-1, both.size(-1) / 2, both.size(-1) / 2);
}

// [B, S, heads * head_dim] -> [B, heads, S, head_dim], a view.
at::Tensor heads_of(const at::Tensor& x_BSC, const model::Attention& a) {
  return x_BSC.unflatten(2, {-1, a.head_dim}).transpose(1, 2);
}

}  // namespace

Projected projection_forward(AttentionBlock& block, const RopeTable& rope, const at::Tensor& x_TD,
                             int64_t own_sequence, Tape* tape) {
  const model::Attention& a = block.shape;
  const Qkv weight = rows_of(block, &Weight::value, *block.qkv, block.kv);
  const at::Tensor xn_TD = rms_norm(x_TD, block.norm->value, block.epsilon);
  Projected p{product(xn_TD, weight.q.t()),
              at::empty({x_TD.size(0), 2 * key_width(a)}, x_TD.options())};
  const at::Tensor keys = keys_of(p.keys_and_values), values = values_of(p.keys_and_values);
  product_out(keys, xn_TD, weight.k.t());
  product_out(values, xn_TD, weight.v.t());
  if (block.qkv_bias != nullptr) {
    const Qkv bias = rows_of(block, &Weight::value, *block.qkv_bias, block.kv_bias);
    p.queries.add_(bias.q);
    keys.add_(bias.k);
    values.add_(bias.v);
  }
  if (block.q_norm != nullptr) {
    const at::Tensor raw_q = p.queries, raw_k = keys.clone(at::MemoryFormat::Contiguous);
    p.queries = at::empty_like(raw_q);
    rms_norm_out(norm_rows(p.queries, a), norm_rows(raw_q, a), block.q_norm->value, block.epsilon);
    const at::Tensor k = at::empty_like(raw_k);
    rms_norm_out(norm_rows(k, a), norm_rows(raw_k, a), block.k_norm->value, block.epsilon);
    keys.copy_(k);
    if (tape != nullptr) tape->saved = {raw_q, raw_k};
  }
  if (a.rotary) {
    rotate_(by_head(p.queries, a), rope, own_sequence, false);
    rotate_(by_head(keys, a), rope, own_sequence, false);
  }
  return p;
}

at::Tensor projection_backward(AttentionBlock& block, const RopeTable& rope, const Projected& g,
                               const at::Tensor& gx1_TD, const at::Tensor& x_TD,
                               int64_t own_sequence, Tape& tape) {
  const model::Attention& a = block.shape;
  Qkv parts{g.queries, keys_of(g.keys_and_values), values_of(g.keys_and_values)};
  if (a.rotary) {
    rotate_(by_head(parts.q, a), rope, own_sequence, true);
    rotate_(by_head(parts.k, a), rope, own_sequence, true);
  }
  const std::vector<at::Tensor> raw = std::exchange(tape.saved, {});
  if (block.q_norm != nullptr) {
    const at::Tensor &raw_q = raw.at(0), &raw_k = raw.at(1);
    rms_norm_backward_(norm_rows(parts.q, a), norm_rows(raw_q, a), block.q_norm->value,
                       block.epsilon, block.q_norm->gradient, block.q_norm->beta());
    const at::Tensor k = parts.k.clone(at::MemoryFormat::Contiguous);
    rms_norm_backward_(norm_rows(k, a), norm_rows(raw_k, a), block.k_norm->value, block.epsilon,
                       block.k_norm->gradient, block.k_norm->beta());
    parts.k.copy_(k);
  }
  at::Tensor gx_TD = project_back(block, parts, x_TD, tape);
  block.share.norm_backward_(gx_TD, x_TD, block.norm->value, block.epsilon, block.norm->gradient,
                             block.norm->beta(), gx1_TD);
  return gx_TD;
}

at::Tensor attention_forward(AttentionBlock& block, const ContextShare& context,
                             const at::Tensor& x_TD, const Projected& p, int64_t own_sequence,
                             Tape* tape) {
  const model::Attention& a = block.shape;
  CausalAttention done;
  {
    const at::Tensor all_BSC =
        context.in_order(p.keys_and_values, p.queries.size(0) / own_sequence);
    done = causal_attention(by_sequence(p.queries, a, own_sequence), heads_of(keys_of(all_BSC), a),
                            heads_of(values_of(all_BSC), a), context);
  }
  const at::Tensor out_TC = done.out_BSHd.view({p.queries.size(0), -1});
  if (tape != nullptr) tape->saved = {out_TC, done.log_sum_exp};
  at::Tensor x1_TD = block.share.add_product(x_TD, out_TC, block.output->value.t());
  if (block.output_bias != nullptr) block.share.own(x1_TD).add_(block.output_bias->value);
  return x1_TD;
}

Projected attention_backward(AttentionBlock& block, const ContextShare& context,
                             const at::Tensor& gx1_TD, const Projected& p, int64_t own_sequence,
                             Tape& tape) {
  const model::Attention& a = block.shape;
  const at::Tensor out_TC = tape.saved.at(0), log_sum_exp = tape.saved.at(1);
  tape.saved.clear();
  tape.weights_part([&block, gx1_TD, out_TC] { add_output_gradient(block, gx1_TD, out_TC); });
  CausalAttentionGradients g;
  {
    const at::Tensor all_BSC =
        context.in_order(p.keys_and_values, p.queries.size(0) / own_sequence);
    g = causal_attention_backward(
        by_sequence(product(gx1_TD, block.output->value), a, own_sequence),
        by_sequence(p.queries, a, own_sequence), heads_of(keys_of(all_BSC), a),
        heads_of(values_of(all_BSC), a),
        {out_TC.view({-1, own_sequence, a.num_heads, a.head_dim}), log_sum_exp}, context);
  }
  return {g.q_BSHd.view({p.queries.size(0), -1}),
          context.by_rank(at::cat({g.k_BSHd.flatten(2), g.v_BSHd.flatten(2)}, 2))};
}

namespace {

// Heads' outputs as the attention kernel has them, [B, S, H, head_dim].
CausalAttention by_heads(const HeadOutputs& of, const model::Attention& a, int64_t own_sequence) {
  if (!of.out.defined()) return {};
  return {of.out.view({-1, own_sequence, a.num_heads, a.head_dim}), of.log_sum_exp};
}

// step.keys() of one rank's keys and values, [B, keys, 2 C].
at::Tensor keys_read(const at::Tensor& keys_values_TC, const RingStep& step, int64_t own_sequence) {
  return step.keys(keys_values_TC.unflatten(0, {-1, own_sequence}), 1);
}

}  // namespace

HeadOutputs ring_step_forward(const AttentionBlock& block, const RingStep& step, const Projected& p,
                              const HeadOutputs& before, int64_t own_sequence) {
  const model::Attention& a = block.shape;
  const at::Tensor both_BSC = keys_read(p.keys_and_values, step, own_sequence);
  CausalAttention made =
      ring_attention(by_sequence(p.queries, a, own_sequence), heads_of(keys_of(both_BSC), a),
                     heads_of(values_of(both_BSC), a), step);
  made = merge_by_log_sum_exp(by_heads(before, a, own_sequence), made, step);
  return {made.out_BSHd.view({p.queries.size(0), -1}), made.log_sum_exp};
}

at::Tensor ring_attention_forward(const TensorShare& share, const Weight& output,
                                  const Weight* bias, const at::Tensor& x_TD,
                                  const HeadOutputs& outputs, HeadOutputs& kept) {
  kept = {outputs.out.to(x_TD.scalar_type()), outputs.log_sum_exp};
  at::Tensor x1_TD = share.add_product(x_TD, kept.out, output.value.t());
  if (bias != nullptr) share.own(x1_TD).add_(bias->value);
  return x1_TD;
}

at::Tensor ring_attention_backward(const TensorShare& share, Weight& output, Weight* bias,
                                   const at::Tensor& gx1_TD, const HeadOutputs& kept, Tape& tape) {
  tape.weights_part([&share, &output, bias, gx1_TD, out = kept.out] {
    add_output_gradient(share, output, bias, gx1_TD, out);
  });
  return product(gx1_TD, output.value);
}

Projected ring_step_backward(AttentionBlock& block, const RingStep& step,
                             const at::Tensor& g_out_TC, const Projected& p,
                             const HeadOutputs& kept, const at::Tensor& g_queries_TC,
                             int64_t own_sequence) {
  const model::Attention& a = block.shape;
  const at::Tensor both_BSC = keys_read(p.keys_and_values, step, own_sequence);
  const CausalAttentionGradients g = ring_attention_backward(
      by_sequence(g_out_TC, a, own_sequence), by_sequence(p.queries, a, own_sequence),
      heads_of(keys_of(both_BSC), a), heads_of(values_of(both_BSC), a),
      by_heads(kept, a, own_sequence), step);
  const at::Tensor part_TC = step.reads_early_keys() ? at::zeros_like(p.keys_and_values)
                                                     : at::empty_like(p.keys_and_values);
  const at::Tensor part_BSC = keys_read(part_TC, step, own_sequence);
  keys_of(part_BSC).copy_(g.k_BSHd.flatten(2));
  values_of(part_BSC).copy_(g.v_BSHd.flatten(2));
  const at::Tensor before = g_queries_TC.defined()
                                ? g_queries_TC.view({-1, own_sequence, a.num_heads, a.head_dim})
                                : at::Tensor();
  const at::Tensor queries = add_queries_gradient(before, g.q_BSHd, own_sequence, step);
  return {queries.view({p.queries.size(0), -1}), part_TC};
}

}  // namespace piper::nn
