#include <fmt/format.h>
#include <fmt/ranges.h>
#include <piper/model/trainable.h>

#include <algorithm>
#include <array>

namespace piper::model {
namespace {

// Collects reasons; a reason that holds for several layers is told once, with the first of them.
class Reasons {
 public:
  void add(bool holds, const std::string& reason) {
    if (holds && std::find(known_.begin(), known_.end(), reason) == known_.end()) {
      known_.push_back(reason);
      lines_.push_back(where_ + reason);
    }
  }
  void at(std::string where) { where_ = std::move(where); }
  std::vector<std::string> take() { return std::move(lines_); }

 private:
  std::string where_;
  std::vector<std::string> known_, lines_;
};

void check_attention(const Attention& a, Reasons& reasons) {
  reasons.add(a.indexer.is_used(), "a sparse attention indexer is not trainable yet");
  if (a.kind == AttentionKind::kLatent) {
    reasons.add(a.query_bias || a.output_bias, "biases of latent attention are not trainable yet");
    reasons.add(a.latent.value_head_dim > a.latent.nope_head_dim + a.latent.rope_head_dim,
                "values wider than queries are not trainable yet");
  }
  reasons.add(a.kind == AttentionKind::kGatedDelta,
              "linear attention (gated delta net) is not trainable yet");
  if (a.kind != AttentionKind::kGrouped) return;
  reasons.add(a.query_bias != a.key_bias || a.query_bias != a.value_bias,
              "biases on some of q, k and v only are not trainable yet");
  reasons.add(a.output_gate || a.head_gate, "an output gate of the attention is not trainable yet");
  reasons.add(a.value_dim() != a.head_dim,
              "values of another size than the keys' are trainable in latent attention only");
  reasons.add(a.key_value != KeyValue::kProjected,
              "keys and values without a projection each are not trainable yet");
  reasons.add(a.sinks, "attention sinks are not trainable yet");
  reasons.add(a.qk_norm == QkNorm::kUnweighted, "a q/k norm without weights is not trainable yet");
  reasons.add(a.num_kv_heads < 1 || a.num_heads % std::max<int64_t>(a.num_kv_heads, 1) != 0,
              "num_kv_heads must divide num_heads");
}

void check_feed_forward(const FeedForward& f, Reasons& reasons) {
  reasons.add(f.num_matrices != 3,
              "a feed-forward without a gate (2 matrices) is not trainable yet");
  reasons.add(f.bias || f.expert_bias, "feed-forward biases are not trainable yet");
  if (!f.is_moe()) return;
  reasons.add(f.router_scales, "scales of the router are not trainable yet");
  reasons.add(f.router_bias, "a bias of the router's logits is not trainable yet");
  reasons.add(f.selection_bias_is_parameter, "a trained selection bias is not trainable yet");
  reasons.add(f.num_groups > 1 && f.num_experts % f.num_groups != 0,
              "the groups of the router must divide the experts");
  reasons.add(f.shared_ffn > 0 && f.num_dense_matrices != 3,
              "shared experts without a gate projection (2 matrices) are not trainable yet");
  reasons.add(f.parallel_dense_ffn > 0, "a dense MLP beside the mixture is not trainable yet");
}

}  // namespace

std::vector<std::string> untrainable(const Model& model, int64_t sequence) {
  Reasons reasons;
  reasons.at(model.name + ": ");
  reasons.add(model.activation != "silu",
              fmt::format("activation '{}' is not trainable yet; allowed: silu", model.activation));
  reasons.add(
      model.rope.scaling == "dynamic" || model.rope.scaling == "longrope",
      fmt::format("rotary scaling '{}' is not trainable yet; allowed: none, linear, llama3, "
                  "yarn",
                  model.rope.scaling));
  for (const std::string& key : model.ignored_keys)
    reasons.add(true,
                fmt::format("'{}' of its config is not understood and may change what the model "
                            "computes; allowed: a config without it",
                            key));
  for (const Tower& tower : model.towers)
    reasons.add(
        true,
        fmt::format("'{}' describes an encoder beside the language model, which is not trainable "
                    "yet; allowed: a config without it",
                    tower.name));
  // What a family computes beyond its config's shapes is known for these alone
  // (tests/hf_parity.py).
  static constexpr std::array kFamilies = {"",      "deepseek_v2", "deepseek_v3", "kimi_k2",
                                           "llama", "mistral",     "mixtral",     "olmoe",
                                           "qwen2", "qwen2_moe",   "qwen3",       "qwen3_moe"};
  reasons.add(
      std::find(kFamilies.begin(), kFamilies.end(), model.family) == kFamilies.end(),
      fmt::format("family '{}' is not trainable yet: its forward is not checked; allowed: {}",
                  model.family, fmt::join(kFamilies.begin() + 1, kFamilies.end(), ", ")));
  reasons.add(model.learned_positions > 0, "learned positions are not trainable yet");
  reasons.add(model.norm_has_bias, "LayerNorm with bias is not trainable yet; allowed: RMSNorm");
  reasons.add(!model.final_norm, "a final norm without weights is not trainable yet");
  reasons.add(model.lm_head_bias, "a bias of the head is not trainable yet");
  for (size_t i = 0; i < model.layers.size(); ++i) {
    reasons.at(fmt::format("{}: layer {}: ", model.name, i));
    reasons.add(model.layers[i].num_norms != 2,
                "a layer with other than two norms is not trainable yet");
    reasons.add(model.layers[i].input_width > 0,
                "an embedding of the layer's own is not trainable yet");
    const int64_t window = model.layers[i].attention.window;
    reasons.add(window > 0 && sequence > window,
                fmt::format("attention to {} tokens only is not trainable yet with a longer "
                            "sequence ({}); allowed: a sequence up to {}",
                            window, sequence, window));
    check_attention(model.layers[i].attention, reasons);
    check_feed_forward(model.layers[i].feed_forward, reasons);
  }
  return reasons.take();
}

}  // namespace piper::model
