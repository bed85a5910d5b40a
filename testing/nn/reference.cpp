#include <fmt/format.h>
#include <testing/nn/reference.h>

#include <algorithm>
#include <cmath>

namespace piper::nn {
namespace {

at::Tensor norm(const at::Tensor& x, const at::Tensor& weight, double epsilon) {
  return weight * x * at::rsqrt(x.pow(2).mean(-1, true) + epsilon);
}

// x: [B, heads, S, d]; rotates pairs (i, i + half) of the first 2 * half elements.
at::Tensor rope(const at::Tensor& x, const model::Rope& rope) {
  const int64_t positions = x.size(2);
  const auto half = static_cast<int64_t>(static_cast<double>(x.size(3)) * rope.partial_factor) / 2;
  const at::Tensor frequency =
      at::pow(rope.theta, -at::arange(half, at::kDouble) / static_cast<double>(half));
  const at::Tensor angle = at::outer(at::arange(positions, at::kDouble), frequency);
  const at::Tensor c = angle.cos().to(x.scalar_type()), s = angle.sin().to(x.scalar_type());
  const at::Tensor low = x.narrow(3, 0, half), high = x.narrow(3, half, half);
  return at::cat(
      {low * c - high * s, high * c + low * s, x.narrow(3, 2 * half, x.size(3) - 2 * half)}, 3);
}

struct Reader {
  const model::Model& model;
  const NamedTensors& weights;
  std::string prefix;
  const at::Tensor& operator()(const std::string& name) const { return weights.at(prefix + name); }
};

// x: [B, S, D] after the norm.
at::Tensor attention(const Reader& w, const model::Attention& a, const at::Tensor& x) {
  const int64_t batch = x.size(0), length = x.size(1);
  const double epsilon = w.model.norm_epsilon;
  at::Tensor q = at::matmul(x, w("self_attn.q_proj.weight").t());
  at::Tensor k = at::matmul(x, w("self_attn.k_proj.weight").t());
  at::Tensor v = at::matmul(x, w("self_attn.v_proj.weight").t());
  if (a.qk_norm == model::QkNorm::kFull) {
    q = norm(q, w("self_attn.q_norm.weight"), epsilon);
    k = norm(k, w("self_attn.k_norm.weight"), epsilon);
  }
  q = q.view({batch, length, a.num_heads, a.head_dim});
  k = k.view({batch, length, a.num_kv_heads, a.head_dim});
  v = v.view({batch, length, a.num_kv_heads, a.head_dim}).transpose(1, 2);
  if (a.qk_norm == model::QkNorm::kPerHead) {
    q = norm(q, w("self_attn.q_norm.weight"), epsilon);
    k = norm(k, w("self_attn.k_norm.weight"), epsilon);
  }
  q = q.transpose(1, 2);
  k = k.transpose(1, 2);
  if (a.rotary) {
    q = rope(q, w.model.rope);
    k = rope(k, w.model.rope);
  }
  const int64_t group = a.num_heads / a.num_kv_heads;
  const at::Tensor future = at::ones({length, length}, at::kBool).triu(1);
  const at::Tensor scores = at::matmul(q, k.repeat_interleave(group, 1).transpose(2, 3)) /
                            std::sqrt(static_cast<double>(a.head_dim));
  const at::Tensor p = at::softmax(scores.masked_fill(future, -INFINITY), -1);
  const at::Tensor out =
      at::matmul(p, v.repeat_interleave(group, 1)).transpose(1, 2).reshape({batch, length, -1});
  return at::matmul(out, w("self_attn.o_proj.weight").t());
}

at::Tensor swiglu(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& up,
                  const at::Tensor& down) {
  return at::matmul(at::silu(at::matmul(x, gate.t())) * at::matmul(x, up.t()), down.t());
}

struct MixtureResult {
  at::Tensor out, auxiliary, z;
  int64_t dropped;
};

// Which choices [B, S, K] are kept: in the column of an expert over the tokens of a sequence, the
// first C of all choices sorted stably by what `capacity` keeps them for. By weight that is 2 above
// the cut (the C-th largest weight), 1 within 2^-12 of it and 0 below, and a token that did not
// choose the expert has the weight 0.
at::Tensor kept_choices(const strategy::Capacity& capacity, int64_t num_experts,
                        const at::Tensor& expert, const at::Tensor& weight) {
  if (capacity.factor == 0) return at::ones_like(expert, at::kBool);
  const int64_t length = expert.size(1), k = expert.size(2);
  const auto share = static_cast<int64_t>(std::ceil(
      capacity.factor * static_cast<double>(length * k) / static_cast<double>(num_experts)));
  const int64_t rows = std::min(share, length);
  const bool by_weight = capacity.drop == strategy::Drop::kProbability;
  const at::Tensor value = by_weight ? weight.detach() : at::ones_like(weight);
  const at::Tensor column =
      at::zeros({expert.size(0), length, num_experts}, weight.options().requires_grad(false))
          .scatter(2, expert, value);
  const at::Tensor cut =
      std::get<0>(at::sort(column, 1, /*descending=*/true)).narrow(1, rows - 1, 1);
  const double tie = 1 + std::ldexp(1, -12);
  const at::Tensor level = column.gt(cut * tie).to(at::kInt) + column.ge(cut / tie).to(at::kInt);
  const at::Tensor order = at::argsort(level, /*stable=*/true, 1, /*descending=*/true);
  return at::argsort(order, int64_t{1}).lt(rows).gather(2, expert);
}

// x: [B, S, D] after the norm.
MixtureResult mixture(const Reader& w, const model::FeedForward& f, const at::Tensor& x,
                      const strategy::Capacity& capacity) {
  const bool mixtral = w.model.family == "mixtral";
  const std::string block = mixtral ? "block_sparse_moe." : "mlp.";
  const at::Tensor logits = at::matmul(x, w(block + "gate.weight").t());
  const at::Tensor p = at::softmax(logits, -1);  // [B, S, E]
  const auto [chosen, expert] = at::topk(p, f.top_k, -1);
  const at::Tensor every = f.normalise_top_k ? chosen / chosen.sum(-1, true) : chosen;
  const at::Tensor kept = kept_choices(capacity, f.num_experts, expert, every);
  const at::Tensor weight = every * kept;
  at::Tensor out = at::zeros_like(x);
  for (int64_t e = 0; e < f.num_experts; ++e) {
    const std::string name = fmt::format("{}experts.{}.", block, e);
    const at::Tensor share = (weight * expert.eq(e)).sum(-1, true);  // 0 where e was not chosen
    out = out + share * swiglu(x, w(name + (mixtral ? "w1.weight" : "gate_proj.weight")),
                               w(name + (mixtral ? "w3.weight" : "up_proj.weight")),
                               w(name + (mixtral ? "w2.weight" : "down_proj.weight")));
  }
  const at::Tensor fraction = at::one_hot(expert, f.num_experts).sum({1, 2}).to(p.scalar_type()) /
                              static_cast<double>(x.size(1) * f.top_k);  // [B, E]
  const at::Tensor auxiliary = (fraction * p.mean(1)).sum() * static_cast<double>(f.num_experts);
  const at::Tensor z = at::logsumexp(logits, -1).square().mean(1).sum();
  return {out, auxiliary * w.model.layer_aux_coefficient(), z * w.model.router_z_coefficient,
          kept.logical_not().sum().item<int64_t>()};
}

// x: [B, S, D]; adds to `auxiliary`, `z` and `dropped`.
at::Tensor transformer_layer(const Reader& w, const model::Layer& layer, at::Tensor x,
                             const strategy::Capacity& capacity, at::Tensor& auxiliary,
                             at::Tensor& z, int64_t& dropped) {
  const double epsilon = w.model.norm_epsilon;
  x = x + attention(w, layer.attention, norm(x, w("input_layernorm.weight"), epsilon));
  const at::Tensor xn = norm(x, w("post_attention_layernorm.weight"), epsilon);
  if (!layer.feed_forward.is_moe())
    return x + swiglu(xn, w("mlp.gate_proj.weight"), w("mlp.up_proj.weight"),
                      w("mlp.down_proj.weight"));
  const MixtureResult result = mixture(w, layer.feed_forward, xn, capacity);
  auxiliary = auxiliary + result.auxiliary;
  z = z + result.z;
  dropped += result.dropped;
  return x + result.out;
}

// Sum over the targets that are not -100.
at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& targets_T) {
  const at::Tensor log_p = at::log_softmax(logits, -1);
  return (-log_p.gather(1, targets_T.clamp_min(0).unsqueeze(1)).squeeze(1) * targets_T.ne(-100))
      .sum();
}

}  // namespace

ReferenceResult reference_forward(const model::Model& model, const NamedTensors& weights,
                                  const at::Tensor& tokens_BS, const at::Tensor& targets_T,
                                  const strategy::Capacity& capacity) {
  const int64_t sequences = tokens_BS.size(0), sequence = tokens_BS.size(1);
  const double epsilon = model.norm_epsilon;
  const at::Tensor& table = weights.at("model.embed_tokens.weight");
  const at::Tensor& head = model.tied_embeddings ? table : weights.at("lm_head.weight");
  const at::Tensor embedded =
      table.index_select(0, tokens_BS.reshape({-1})).view({sequences, sequence, -1});
  const at::Tensor none = at::zeros({}, embedded.options());
  ReferenceResult result{.auxiliary_loss = none, .z_loss = none};
  at::Tensor x = embedded;
  const auto layer = [&](int64_t i, const at::Tensor& input, at::Tensor& auxiliary, at::Tensor& z) {
    const Reader w{model, weights, fmt::format("model.layers.{}.", i)};
    return transformer_layer(w, model.layers[static_cast<size_t>(i)], input, capacity, auxiliary, z,
                             result.dropped);
  };
  for (int64_t i = 0; i < model.num_layers(); ++i)
    x = layer(i, x, result.auxiliary_loss, result.z_loss);
  at::Tensor h = norm(x, weights.at("model.norm.weight"), epsilon);
  result.logits = at::matmul(h, head.t()).view({sequences * sequence, -1});
  result.token_loss_sum = cross_entropy(result.logits, targets_T);

  for (int64_t k = 1; k <= model.mtp_depth; ++k) {  // eq. 21-24; h is what eq. 23 maps to logits
    const int64_t i = model.num_layers() + k - 1, positions = sequence - k;
    const Reader w{model, weights, fmt::format("model.layers.{}.", i)};
    const at::Tensor joined = at::cat({norm(embedded.slice(1, k), w("enorm.weight"), epsilon),
                                       norm(h.slice(1, 0, positions), w("hnorm.weight"), epsilon)},
                                      -1);
    at::Tensor auxiliary = none, z = none;
    x = layer(i, at::matmul(joined, w("eh_proj.weight").t()), auxiliary, z);
    h = norm(x, w("shared_head.norm.weight"), epsilon);
    const at::Tensor logits = at::matmul(h, head.t()).view({sequences * positions, -1});
    result.mtp_loss_sums.push_back(
        cross_entropy(logits, targets_T.view({sequences, sequence}).slice(1, k).reshape({-1})));
    result.mtp_auxiliary_losses.push_back(auxiliary + z);
  }
  return result;
}

NamedTensors reference_gradients(const model::Model& model, const NamedTensors& weights,
                                 const at::Tensor& tokens_BS, const at::Tensor& targets_T,
                                 int64_t global_target_tokens, int64_t global_sequences,
                                 const strategy::Capacity& capacity, double mtp_weight,
                                 const std::vector<int64_t>& mtp_target_tokens) {
  NamedTensors leaves;
  for (const auto& [name, value] : weights)
    leaves[name] = value.detach().clone().set_requires_grad(true);
  const ReferenceResult result = reference_forward(model, leaves, tokens_BS, targets_T, capacity);
  at::Tensor loss = result.token_loss_sum / static_cast<double>(global_target_tokens) +
                    (result.auxiliary_loss + result.z_loss) / static_cast<double>(global_sequences);
  for (size_t k = 0; k < result.mtp_loss_sums.size(); ++k)
    loss = loss + mtp_weight / static_cast<double>(model.mtp_depth) *
                      (result.mtp_loss_sums[k] / static_cast<double>(mtp_target_tokens.at(k)) +
                       result.mtp_auxiliary_losses[k] / static_cast<double>(global_sequences));
  loss.backward();
  NamedTensors gradients;
  for (const auto& [name, leaf] : leaves)
    gradients[name] = leaf.grad().defined() ? leaf.grad() : at::zeros_like(leaf);
  return gradients;
}

}  // namespace piper::nn
