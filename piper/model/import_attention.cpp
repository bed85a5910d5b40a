// Heads, head sizes, biases and norms of attention; the kind of every layer.
#include <fmt/format.h>
#include <piper/model/import_parts.h>

namespace piper::model {
namespace {

void set_biases(Attention& a, Biases biases) {
  a.query_bias = a.key_bias = a.value_bias = biases != Biases::kNone;
  a.output_bias = biases == Biases::kAll;
}

void import_biases(Import& in, Attention& a) {
  set_biases(a, in.family.bias_default);
  const auto all = in.keys.boolean({"attention_bias", "use_bias"});
  if (all && !in.family.bias_fixed) set_biases(a, *all ? in.family.bias_when_asked : Biases::kNone);
  if (const auto inputs = in.keys.boolean({"qkv_bias", "use_qkv_bias", "add_qkv_bias"}))
    a.query_bias = a.key_bias = a.value_bias = *inputs;
  if (const auto output = in.keys.boolean({"attention_out_bias"})) a.output_bias = *output;
  a.gate_bias = a.output_gate && a.query_bias && !in.family.gate_without_bias;
}

// MiniMax says how: "per_layer" is one norm over all heads of the layer.
QkNorm asked_qk_norm(Import& in) {
  static constexpr Spellings kType = {"qk_norm_type"};
  const auto type = in.keys.text(kType);
  if (type == "per_layer") return QkNorm::kFull;
  if (type && type != "per_head")
    in.keys.problem(kType, fmt::format("is '{}'; allowed: per_head, per_layer", *type));
  // A family that the table does not know normalises a head, as most do.
  return type || in.family.qk_norm == QkNorm::kNone ? QkNorm::kPerHead : in.family.qk_norm;
}

QkNorm import_qk_norm(Import& in) {
  static constexpr Spellings kAsked = {"use_qk_norm", "qk_layernorm", "use_query_key_norm"};
  const QkNorm asked_for = asked_qk_norm(in);
  if (const auto asked = in.keys.boolean(kAsked)) {
    if (*asked && in.family.norm_bias && in.family.qk_norm == QkNorm::kNone)
      in.keys.problem(
          kAsked,
          "is true; it adds norms with biases to queries and keys, which are not supported");
    return *asked ? asked_for : QkNorm::kNone;
  }
  if (in.keys.has({"qk_norm_type"})) return asked_for;
  const bool on = !in.family.qk_norm_by_key || in.family.qk_norm_key_default;
  return on ? in.family.qk_norm : QkNorm::kNone;
}

int64_t import_head_dim(Import& in, int64_t num_heads) {
  Keys& keys = in.keys;
  if (const auto dim =
          keys.integer({"head_dim", "kv_channels", "attention_head_dim"}, 1, kMaxHeadDim))
    return *dim;
  if (in.family.head_dim > 0) return in.family.head_dim;
  if (in.model.hidden % num_heads != 0 && in.keys.sound(kHidden, 1, kMaxHidden))
    keys.problem(
        {"num_attention_heads", "n_head", "n_heads", "num_heads"},
        fmt::format("is {}; allowed: a divisor of the hidden size {}, unless head_dim is given",
                    num_heads, in.model.hidden));
  return in.model.hidden / num_heads;
}

// Step-3.5, Laguna: true or "per-head" is one gate a head, another text one an element.
void import_gating(Import& in, Attention& a) {
  static constexpr Spellings kGating = {"gating"};
  if (!in.keys.is_text(kGating)) {
    in.keys.boolean(kGating);  // the family has gates either way
    return;
  }
  a.head_gate = in.keys.text(kGating) == "per-head";
  a.output_gate = !a.head_gate;
}

Attention import_grouped(Import& in) {
  Attention a;
  a.num_heads = in.keys.required_integer(kHeads, 1, kMaxHeads);
  a.num_kv_heads = in.keys.integer(kKvHeads, 1, kMaxHeads).value_or(a.num_heads);
  // A family's default that does not fit this config's heads is no reading of it.
  if (!in.keys.is_given(kKvHeads) && a.num_heads % a.num_kv_heads != 0) {
    a.num_kv_heads = a.num_heads;
    in.keys.take_back_default(kKvHeads);
    in.model.assumptions.emplace_back("num_key_value_heads is not given: as many as heads");
  }
  if (a.num_heads % a.num_kv_heads != 0)
    in.keys.problem(kKvHeads, fmt::format("is {}; allowed: a divisor of the {} attention heads",
                                          a.num_kv_heads, a.num_heads));
  a.sinks = in.family.sinks;
  a.output_gate = in.keys.boolean({"attn_output_gate", "attention_output_gate"})
                      .value_or(in.family.output_gate);
  a.head_gate = in.keys.boolean({"use_head_wise_attn_gate"}).value_or(in.family.head_gate);
  if (in.family.head_gate) import_gating(in, a);
  import_biases(in, a);
  return a;
}

LatentAttention import_latent(Import& in) {
  Keys& keys = in.keys;
  LatentAttention l;
  l.key_value_rank = keys.required_integer({"kv_lora_rank"}, 1, kMaxHidden);
  l.query_rank = keys.integer({"q_lora_rank"}, 1, kMaxHidden).value_or(0);
  l.nope_head_dim = keys.required_integer({"qk_nope_head_dim"}, 1, kMaxHeadDim);
  l.rope_head_dim = keys.required_integer({"qk_rope_head_dim"}, 1, kMaxHeadDim);
  l.value_head_dim = keys.required_integer({"v_head_dim"}, 1, kMaxHeadDim);
  // Written by transformers, implied by the others.
  for (const char* implied : {"qk_head_dim", "head_dim"}) keys.ignore(implied);
  return l;
}

GatedDeltaAttention import_gated_delta(Import& in) {
  Keys& keys = in.keys;
  GatedDeltaAttention g;
  g.key_heads = keys.required_integer({"linear_num_key_heads"}, 1, kMaxHeads);
  g.value_heads = keys.required_integer({"linear_num_value_heads"}, 1, kMaxHeads);
  g.key_head_dim = keys.required_integer({"linear_key_head_dim"}, 1, kMaxHeadDim);
  g.value_head_dim = keys.required_integer({"linear_value_head_dim"}, 1, kMaxHeadDim);
  g.conv_kernel = keys.required_integer({"linear_conv_kernel_dim"}, 1, 1024);
  if (g.value_heads % g.key_heads != 0)
    keys.problem(
        {"linear_num_value_heads"},
        fmt::format("is {}; allowed: a multiple of the {} key heads", g.value_heads, g.key_heads));
  return g;
}

}  // namespace

void import_attention(Import& in) {
  Attention a = import_grouped(in);
  a.qk_norm = import_qk_norm(in);
  if (in.keys.has({"kv_lora_rank"})) {
    a.kind = AttentionKind::kLatent;
    a.latent = import_latent(in);
    a.head_dim = a.latent.nope_head_dim + a.latent.rope_head_dim;
    a.qk_norm = QkNorm::kNone;
  } else {
    a.head_dim = import_head_dim(in, a.num_heads);
    a.value_head_dim = in.keys.integer({"v_head_dim"}, 1, kMaxHeadDim).value_or(0);
  }
  for (Layer& layer : in.model.layers) layer.attention = a;
  if (in.keys.has({"linear_num_value_heads"})) {
    const GatedDeltaAttention delta = import_gated_delta(in);
    const auto interval = in.keys.integer({"full_attention_interval"}, 1, kMaxLayers);
    const std::vector<std::string> types =
        in.keys.texts_by_layer({"layer_types"}, in.model.num_layers());
    if (!interval && types.empty())
      in.keys.problem({"layer_types"},
                      "is missing; allowed: the kind of each layer, or full_attention_interval");
    for (size_t i = 0; i < in.model.layers.size(); ++i) {
      const bool linear = !types.empty() ? types[i] == "linear_attention"
                                         : static_cast<int64_t>(i + 1) % interval.value_or(1) != 0;
      if (!linear) continue;
      Attention& layer = in.model.layers[i].attention;
      layer.kind = AttentionKind::kGatedDelta;
      layer.delta = delta;
      layer.rotary = false;
      layer.qk_norm = QkNorm::kNone;
    }
  }
}

}  // namespace piper::model
