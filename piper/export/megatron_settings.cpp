#include <fmt/format.h>
#include <fmt/ranges.h>
#include <piper/base/printable.h>
#include <piper/export/megatron_settings.h>

#include <algorithm>
#include <cmath>
#include <optional>

namespace piper::exporting {
namespace {

using model::Attention;
using model::AttentionKind;
using model::FeedForward;
using model::Layer;
using model::Model;
using strategy::Strategy;

// "([0]*3+[1]*58)" in the order of the layers.
template <class Is>
Value pattern(const Model& m, Is is) {
  std::string text;
  const auto num = static_cast<size_t>(m.num_layers());
  for (size_t i = 0; i < num;) {
    const bool value = is(m.layers[i]);
    size_t end = i;
    while (end < num && is(m.layers[end]) == value) ++end;
    text += fmt::format("{}[{}]*{}", text.empty() ? "" : "+", value ? 1 : 0, end - i);
    i = end;
  }
  return {"'(" + text + ")'", text};
}

class SettingsWriter {
 public:
  explicit SettingsWriter(const Job& job) : job_(job), m_(job.model), s_(job.strategy) {}

  MegatronSettings run() {
    add_parallel();
    add_batch();
    add_precision();
    add_recompute();
    is_model_ = true;
    add_layers();
    add_attention();
    add_positions();
    if (m_.num_moe_layers() > 0) add_mixture();
    add_rest();
    is_model_ = false;
    add_wanted();
    return std::move(out_);
  }

 private:
  void add(const char* flag, const char* field, Value value) {
    out_.settings.push_back({flag, field, std::move(value), is_model_});
  }
  void cannot(const std::string& what) {
    out_.cannot.push_back(
        fmt::format("{} has {}, for which Megatron Core has no setting", m_.name, what));
  }
  void no_flag(const std::string& what) {
    out_.has_no_flag.push_back(fmt::format(
        "{} has {}, for which Megatron-LM has no flag; the nearest: --to megatron-bridge", m_.name,
        what));
  }
  template <class Is>
  bool any(Is is) const {
    return std::any_of(m_.layers.begin(), m_.layers.begin() + m_.num_layers(), is);
  }
  template <class Is>
  const Layer* first(Is is) const {
    const auto found = std::ranges::find_if(m_.layers, is);
    return found == m_.layers.end() ? nullptr : &*found;
  }
  const FeedForward& mixture() const {
    return first([](const Layer& l) { return l.feed_forward.is_moe(); })->feed_forward;
  }

  // --- how it is run ---

  void add_parallel() {
    add("--tensor-model-parallel-size", "model.tensor_model_parallel_size", number(s_.mesh.tp));
    if (s_.sequence_parallel) add("--sequence-parallel", "model.sequence_parallel", on());
    add("--pipeline-model-parallel-size", "model.pipeline_model_parallel_size", number(s_.mesh.pp));
    const std::string layout = pipeline_layout(m_, s_);
    if (!layout.empty()) {
      add("--pipeline-model-parallel-layout", "model.pipeline_model_parallel_layout",
          {"'" + layout + "'", "\"" + layout + "\""});
    } else if (s_.mesh.vpp > 1) {
      add("--num-layers-per-virtual-pipeline-stage", "",
          number(m_.num_layers() / s_.mesh.num_virtual_stages()));
    }
    if (s_.mesh.vpp > 1) add("", "model.virtual_pipeline_model_parallel_size", number(s_.mesh.vpp));
    add("--context-parallel-size", "model.context_parallel_size", number(s_.mesh.cp));
    if (s_.mesh.cp > 1)
      add("--cp-comm-type", "model.cp_comm_type",
          word(strategy::has_ring(s_) ? "p2p" : "all_gather"));
    if (m_.num_moe_layers() > 0) {
      add("--expert-model-parallel-size", "model.expert_model_parallel_size", number(s_.mesh.ep));
      add("--expert-tensor-parallel-size", "model.expert_tensor_parallel_size",
          number(s_.mesh.etp));
    }
    if (s_.placement == strategy::Placement::kPipelineInside)
      add("--use-tp-pp-dp-mapping", "dist.use_tp_pp_dp_mapping", on());
    if (strategy::offloads_optimizer(s_.offload)) {
      add("--optimizer-cpu-offload", "optimizer.optimizer_cpu_offload", on());
      add("--optimizer-offload-fraction", "optimizer.optimizer_offload_fraction", {"1", "1.0"});
    }
    if (s_.mtp_depth > 0) {
      add("--mtp-num-layers", "model.mtp_num_layers", number(s_.mtp_depth));
      if (m_.rope.scaling == "yarn" && !is_latent())
        out_.cannot.push_back(
            fmt::format("mtp-depth {}: Megatron Core has multi-token prediction with plain rotary "
                        "positions alone; the nearest: --mtp-depth 0",
                        s_.mtp_depth));
    }
  }

  void add_batch() {
    add("--micro-batch-size", "train.micro_batch_size", number(s_.micro_batch_sequences));
    add("--global-batch-size", "train.global_batch_size", number(s_.global_batch_sequences));
    add("--seq-length", "model.seq_length", number(s_.sequence));
    add("", "dataset.seq_length", number(s_.sequence));
    add("--max-position-embeddings", "", number(std::max(s_.sequence, m_.max_positions)));
  }

  void add_precision() {
    using enum strategy::Precision;
    if (s_.precision == kFp32 || s_.precision == kFp64) {
      add("", "mixed_precision", {"", "None"});
      return;
    }
    add("--bf16", "model.bf16", on());
    add("--accumulate-allreduce-grads-in-fp32", "ddp.grad_reduce_in_fp32", on());
    const char* name = "bf16_mixed";
    if (s_.precision == kFp8) {
      add("--fp8-format", "", word("hybrid"));
      add("--fp8-recipe", "", word("tensorwise"));
      name = "bf16_with_fp8_current_scaling_mixed";
    } else if (s_.precision == kMxfp8) {
      add("--fp8-format", "", word("hybrid"));
      add("--fp8-recipe", "", word("mxfp8"));
      name = "bf16_with_mxfp8_mixed";
    } else if (s_.precision == kNvfp4) {
      add("--fp4-format", "", word("e2m1"));
      add("--fp4-recipe", "", word("nvfp4"));
      name = "bf16_with_nvfp4_mixed";
    }
    add("", "mixed_precision", word(name));
  }

  void add_recompute() {
    if (s_.recompute == strategy::Recompute::kFull) {
      add("--recompute-granularity", "model.recompute_granularity", word("full"));
      add("--recompute-method", "model.recompute_method", word("uniform"));
      add("--recompute-num-layers", "model.recompute_num_layers", number(1));
      return;
    }
    std::vector<std::string> modules;
    if (strategy::drops_attention(s_.recompute)) {
      modules.emplace_back("core_attn");
      if (is_latent()) modules.emplace_back("mla_up_proj");
    }
    if (strategy::drops_experts(s_.recompute)) {
      if (m_.num_moe_layers() > 0) modules.emplace_back("moe_act");
      if (m_.num_moe_layers() < m_.num_layers()) modules.emplace_back("mlp");
    }
    if (modules.empty()) return;
    add("--recompute-granularity", "model.recompute_granularity", word("selective"));
    add("--recompute-modules", "model.recompute_modules", words(modules));
  }

  // What rules want, where it is not said yet.
  void add_wanted() {
    struct Field {
      const char* flag;
      const char* field;
    };
    constexpr auto kFields = std::to_array<Field>(
        {{"--use-distributed-optimizer", "ddp.use_distributed_optimizer"},
         {"--use-precision-aware-optimizer", "optimizer.use_precision_aware_optimizer"},
         {"--overlap-grad-reduce", "ddp.overlap_grad_reduce"},
         {"--overlap-param-gather", "ddp.overlap_param_gather"},
         {"--tp-comm-overlap", "model.tp_comm_overlap"},
         {"--overlap-moe-expert-parallel-comm", "model.overlap_moe_expert_parallel_comm"},
         {"--moe-router-pre-softmax", "model.moe_router_pre_softmax"}});
    for (const auto& [flag, value] : job_.ruling.flags) {
      const auto found =
          std::ranges::find_if(kFields, [&](const Field& f) { return f.flag == flag; });
      const bool is_known = found != kFields.end();
      out_.settings.push_back(
          {flag, is_known ? found->field : "", value.empty() ? on() : word(value)});
      if (!is_known) out_.differs.push_back(fmt::format("{}: a flag of Megatron-LM alone", flag));
    }
    // Megatron-Bridge has other defaults.
    for (const Field& f : kFields)
      if (std::string_view(f.field).starts_with("ddp.") && !job_.ruling.flags.contains(f.flag))
        add("", f.field, off());
  }

  // --- the model ---

  bool is_latent() const {
    return any([](const Layer& l) { return l.attention.kind == AttentionKind::kLatent; });
  }
  bool is_linear() const {
    return any([](const Layer& l) { return l.attention.kind == AttentionKind::kGatedDelta; });
  }

  void add_layers() {
    add("--num-layers", "model.num_layers", number(m_.num_layers()));
    add("--hidden-size", "model.hidden_size", number(m_.hidden));
    const Layer* dense = first([](const Layer& l) { return !l.feed_forward.is_moe(); });
    const FeedForward& f = (dense != nullptr ? *dense : m_.layers.front()).feed_forward;
    add("--ffn-hidden-size", "model.ffn_hidden_size", number(f.ffn));
    add_activation();
    refuse_unlike_layers();
    if (any([](const Layer& l) { return l.num_norms != 2; }))
      cannot("more or less than two norms a layer");
    if (any([](const Layer& l) { return l.input_width > 0; })) cannot("embeddings of its layers");
    if (m_.lm_head_bias) cannot("a bias of the head");
    if (!m_.final_norm) cannot("no weight in its last norm");
  }

  // Layers of one kind may differ only in what a pattern says.
  void refuse_unlike_layers() {
    std::optional<Attention> plain, linear;
    std::optional<FeedForward> dense, moe;
    bool attention = true, feed_forward = true;
    const auto same = [](auto& seen, const auto& value, bool& is_same) {
      if (seen)
        is_same = is_same && *seen == value;
      else
        seen = value;
    };
    for (int64_t i = 0; i < m_.num_layers(); ++i) {
      const Layer& layer = m_.layers[static_cast<size_t>(i)];
      Attention a = layer.attention;
      a.window = 0;
      a.chunked = false;
      a.rotary = true;
      same(a.kind == AttentionKind::kGatedDelta ? linear : plain, a, attention);
      same(layer.feed_forward.is_moe() ? moe : dense, layer.feed_forward, feed_forward);
    }
    if (!attention) cannot("layers with unlike attention");
    if (!feed_forward) cannot("layers with unlike feed-forward nets");
  }

  void add_activation() {
    const bool is_gated = m_.layers.front().feed_forward.num_matrices == 3;
    if (any([&](const Layer& l) { return (l.feed_forward.num_matrices == 3) != is_gated; }))
      return cannot("gated and plain feed-forward nets");
    if (m_.family == "gpt_oss") {  // its clamp and offset are part of its code
      add("--quick-geglu", "model.activation_func", {"", "quick_gelu"});
      add("--activation-func-clamp-value", "model.activation_func_clamp_value", {"7.0", "7.0"});
      add("--glu-linear-offset", "model.glu_linear_offset", {"1.0", "1.0"});
    } else if (is_gated && (m_.activation == "silu" || m_.activation == "swish")) {
      add("--swiglu", "model.activation_func", {"", "F.silu"});
    } else if (!is_gated && m_.activation == "relu2") {
      add("--squared-relu", "model.activation_func", {"", "squared_relu"});
    } else if (!is_gated && m_.activation.starts_with("gelu")) {
      add("", "model.activation_func", {"", "F.gelu"});
    } else {
      cannot(fmt::format("the activation {}{}", m_.activation, is_gated ? " with a gate" : ""));
    }
    add("", "model.gated_linear_unit", is_gated ? on() : off());
    add("", "model.bias_activation_fusion", on());
  }

  void add_attention() {
    const Layer* layer =
        first([](const Layer& l) { return l.attention.kind != AttentionKind::kGatedDelta; });
    if (layer == nullptr) return cannot("linear attention in every layer");
    const Attention& a = layer->attention;
    add("--num-attention-heads", "model.num_attention_heads", number(a.num_heads));
    if (a.kind == AttentionKind::kLatent) {
      add("--multi-latent-attention", "", on());
      if (a.latent.query_rank > 0)
        add("--q-lora-rank", "model.q_lora_rank", number(a.latent.query_rank));
      else
        add("", "model.q_lora_rank", {"", "None"});
      add("--kv-lora-rank", "model.kv_lora_rank", number(a.latent.key_value_rank));
      add("--qk-head-dim", "model.qk_head_dim", number(a.latent.nope_head_dim));
      add("--qk-pos-emb-head-dim", "model.qk_pos_emb_head_dim", number(a.latent.rope_head_dim));
      add("--v-head-dim", "model.v_head_dim", number(a.latent.value_head_dim));
      // This is the norm of the two latents, which are always normalised.
      add("--qk-layernorm", "model.qk_layernorm", on());
    } else {
      if (a.num_kv_heads != a.num_heads) {
        add("--group-query-attention", "", on());
        add("--num-query-groups", "", number(a.num_kv_heads));
      }
      add("", "model.num_query_groups", number(a.num_kv_heads));
      add("--kv-channels", "model.kv_channels", number(a.head_dim));
      add_query_norm(a);
    }
    if (a.value_head_dim > 0) cannot("values of another width than its keys");
    if (a.key_value != model::KeyValue::kProjected) cannot("keys that are values");
    if (a.head_gate || a.gate_bias) cannot("a gate of each head");
    if (a.output_gate) add("--attention-output-gate", "model.attention_output_gate", on());
    if (a.sinks) add("--softmax-type", "model.softmax_type", word("learnable"));
    add_indexer(a);
    add_biases(a);
    add_windows();
    if (is_linear()) add_linear_attention();
  }

  void add_query_norm(const Attention& a) {
    switch (a.qk_norm) {
      case model::QkNorm::kNone:
        return;
      case model::QkNorm::kPerHead:
        return add("--qk-layernorm", "model.qk_layernorm", on());
      case model::QkNorm::kUnweighted:
        return add("--qk-l2-norm", "model.qk_l2_norm", on());
      case model::QkNorm::kFull:
        // A class of Megatron-Bridge has it.
        if (m_.family != "olmoe") return cannot("norms of queries and keys over all heads");
        add("", "model.qk_layernorm", on());
        return no_flag("norms of queries and keys over all heads");
    }
  }

  void add_indexer(const Attention& a) {
    if (!a.indexer.is_used()) return;
    add("--experimental-attention-variant", "model.experimental_attention_variant", word("dsa"));
    add("--dsa-indexer-n-heads", "model.dsa_indexer_n_heads", number(a.indexer.heads));
    add("--dsa-indexer-head-dim", "model.dsa_indexer_head_dim", number(a.indexer.head_dim));
    add("--dsa-indexer-topk", "model.dsa_indexer_topk", number(a.indexer.top_k));
  }

  // One flag gives biases to every linear layer, the router among them.
  void add_biases(const Attention& a) {
    const bool has_keys = a.query_bias;
    bool has_nets = a.output_bias;
    bool is_uniform =
        a.key_bias == has_keys && a.value_bias == has_keys && (!a.output_bias || has_keys);
    for (int64_t i = 0; i < m_.num_layers(); ++i) {
      const FeedForward& f = m_.layers[static_cast<size_t>(i)].feed_forward;
      if (f.is_moe()) {
        is_uniform = is_uniform && f.expert_bias == has_nets && f.router_bias == has_nets &&
                     !f.router_scales && (f.shared_ffn == 0 || f.bias == has_nets);
      } else {
        is_uniform = is_uniform && f.bias == has_nets;
      }
    }
    if (!is_uniform) cannot("biases in some of its linear layers");
    if (!has_nets) add("--disable-bias-linear", "", on());
    add("", "model.add_bias_linear", has_nets ? on() : off());
    if (has_keys && !has_nets) add("--add-qkv-bias", "model.add_qkv_bias", on());
  }

  // Windows as long as a sequence are none, chunks likewise.
  void add_windows() {
    const auto is_window = [&](const Layer& l) {
      return l.attention.kind != AttentionKind::kGatedDelta && l.attention.window > 0 &&
             l.attention.window < s_.sequence;
    };
    const Layer* layer = first(is_window);
    if (layer == nullptr) return;
    if (any([&](const Layer& l) { return is_window(l) && l.attention.chunked; }))
      return cannot(fmt::format("attention in chunks of {} tokens, shorter than a sequence",
                                layer->attention.window));
    if (any([&](const Layer& l) {
          return is_window(l) && l.attention.window != layer->attention.window;
        }))
      return cannot("windows of several lengths");
    // Megatron counts how many tokens before its own one a token sees.
    const int64_t before = layer->attention.window - 1;
    add("--window-size", "model.window_size",
        {fmt::format("'({},0)'", before), fmt::format("({}, 0)", before)});
    if (any([&](const Layer& l) { return !is_window(l); }))
      add("--window-attn-skip-freq", "model.window_attn_skip_freq", pattern(m_, is_window));
  }

  void add_linear_attention() {
    const auto is_delta = [](const Layer& l) {
      return l.attention.kind == AttentionKind::kGatedDelta;
    };
    const model::GatedDeltaAttention& d = first(is_delta)->attention.delta;
    add("--experimental-attention-variant", "model.experimental_attention_variant", word("gdn"));
    add("--linear-attention-freq", "model.linear_attention_freq", pattern(m_, is_delta));
    add("--linear-conv-kernel-dim", "model.linear_conv_kernel_dim", number(d.conv_kernel));
    add("--linear-key-head-dim", "model.linear_key_head_dim", number(d.key_head_dim));
    add("--linear-value-head-dim", "model.linear_value_head_dim", number(d.value_head_dim));
    add("--linear-num-key-heads", "model.linear_num_key_heads", number(d.key_heads));
    add("--linear-num-value-heads", "model.linear_num_value_heads", number(d.value_heads));
    // Its norms store their weight less one.
    if (m_.family == "qwen3_next")
      add("--apply-layernorm-1p", "model.layernorm_zero_centered_gamma", on());
  }

  void add_positions() {
    if (m_.learned_positions > 0) {
      add("--position-embedding-type", "model.position_embedding_type", word("learned_absolute"));
      return;
    }
    const model::Rope& rope = m_.rope;
    const bool is_yarn = rope.scaling == "yarn";
    add("--position-embedding-type", "model.position_embedding_type",
        word(is_yarn && !is_latent() ? "yarn" : "rope"));
    add("--rotary-base", "model.rotary_base", number(std::llround(rope.theta)));
    if (rope.partial_factor != 1)
      add("--rotary-percent", "model.rotary_percent", number(rope.partial_factor));
    if (rope.interleaved && !is_latent())
      add("--rotary-interleaved", "model.rotary_interleaved", on());
    const auto is_bare = [](const Layer& l) {
      return l.attention.kind != AttentionKind::kGatedDelta && !l.attention.rotary;
    };
    if (any(is_bare)) add("--no-rope-freq", "model.no_rope_freq", pattern(m_, is_bare));
    if (is_latent())
      add_latent_rope();
    else
      add_rope_scaling();
    // The model's code scales late positions, which are past the sequence.
    if (m_.family.starts_with("llama4") && s_.sequence > 8192)
      cannot("queries that grow with the position from 8192 tokens on");
  }

  void add_latent_rope() {
    const model::Rope& rope = m_.rope;
    if (rope.scaling != "yarn" && rope.scaling != "none")
      return cannot(fmt::format("rope scaling {} with latent attention", rope.scaling));
    const bool is_yarn = rope.scaling == "yarn";
    add("--rope-type", "model.rope_type", word(is_yarn ? "yarn" : "rope"));
    if (!is_yarn) return;
    add("--rotary-scaling-factor", "model.rotary_scaling_factor", number(rope.factor));
    add("--mscale", "model.mscale", number(rope.mscale > 0 ? rope.mscale : 1.0));
    add("--mscale-all-dim", "model.mscale_all_dim", number(rope.mscale_all_dim));
    add("", "model.original_max_position_embeddings", number(rope.original_positions));
    add("", "model.beta_fast", number(rope.beta_fast));
    add("", "model.beta_slow", number(rope.beta_slow));
    if (rope.original_positions != 4096 || rope.beta_fast != 32 || rope.beta_slow != 1)
      no_flag(
          fmt::format("yarn from {} positions with beta {} and {} under latent attention "
                      "(4096, 32 and 1 are fixed)",
                      rope.original_positions, rope.beta_fast, rope.beta_slow));
  }

  void add_rope_scaling() {
    const model::Rope& rope = m_.rope;
    if (rope.scaling == "none") return;
    if (rope.scaling == "yarn") {
      add("--rotary-scaling-factor", "model.yarn_rotary_scaling_factor", number(rope.factor));
      add("--yarn-original-max-position-embeddings", "model.yarn_original_max_position_embeddings",
          number(rope.original_positions));
      add("--yarn-beta-fast", "model.yarn_beta_fast", number(rope.beta_fast));
      add("--yarn-beta-slow", "model.yarn_beta_slow", number(rope.beta_slow));
      add("--mscale", "model.yarn_mscale", number(rope.mscale > 0 ? rope.mscale : 1.0));
      add("--mscale-all-dim", "model.yarn_mscale_all_dim", number(rope.mscale_all_dim));
      add(rope.truncate ? "--yarn-correction-range-round-to-int"
                        : "--no-yarn-correction-range-round-to-int",
          "model.yarn_correction_range_round_to_int", {"", rope.truncate ? "True" : "False"});
      if (rope.attention_factor > 0) cannot("an attention factor of yarn of its own");
    } else if (rope.scaling == "llama3" && rope.low_frequency == 1 && rope.high_frequency == 4 &&
               rope.original_positions == 8192) {
      add("--use-rope-scaling", "model.rope_scaling", on());
      add("--rope-scaling-factor", "model.rope_scaling_factor", number(rope.factor));
    } else if (rope.scaling == "linear" && rope.factor == std::floor(rope.factor)) {
      add("--rotary-seq-len-interpolation-factor", "model.seq_len_interpolation_factor",
          number(std::llround(rope.factor)));
    } else {
      cannot(fmt::format("rope scaling {}", rope.scaling));
    }
  }

  void add_mixture() {
    const FeedForward& f = mixture();
    add("--num-experts", "model.num_moe_experts", number(f.num_experts));
    add("--moe-layer-freq", "model.moe_layer_freq",
        pattern(m_, [](const Layer& l) { return l.feed_forward.is_moe(); }));
    add("--moe-ffn-hidden-size", "model.moe_ffn_hidden_size", number(f.ffn));
    add("--moe-router-topk", "model.moe_router_topk", number(f.top_k));
    add("--moe-router-score-function", "model.moe_router_score_function",
        word(f.score == model::Score::kSigmoid ? "sigmoid" : "softmax"));
    if (f.routed_scaling != 1)
      add("--moe-router-topk-scaling-factor", "model.moe_router_topk_scaling_factor",
          number(f.routed_scaling));
    if (f.num_groups > 1) {
      add("--moe-router-num-groups", "model.moe_router_num_groups", number(f.num_groups));
      add("--moe-router-group-topk", "model.moe_router_group_topk", number(f.top_groups));
    }
    if (f.selection_bias)
      add("--moe-router-enable-expert-bias", "model.moe_router_enable_expert_bias", on());
    if (f.shared_ffn > 0)
      add("--moe-shared-expert-intermediate-size", "model.moe_shared_expert_intermediate_size",
          number(f.shared_ffn));
    if (f.shared_gate) add("--moe-shared-expert-gate", "model.moe_shared_expert_gate", on());
    // Llama 4 weighs what goes into an expert, not what comes out.
    if (m_.family.starts_with("llama4"))
      add("--moe-apply-probs-on-input", "model.moe_apply_probs_on_input", on());
    add("--moe-router-load-balancing-type", "model.moe_router_load_balancing_type",
        word(m_.router_aux_coefficient <= 0                          ? "none"
             : m_.balancing_loss == model::BalancingLoss::kEachLayer ? "seq_aux_loss"
                                                                     : "aux_loss"));
    add(m_.router_aux_coefficient > 0 ? "--moe-aux-loss-coeff" : "", "model.moe_aux_loss_coeff",
        number(m_.layer_aux_coefficient()));
    if (m_.router_z_coefficient > 0)
      add("--moe-z-loss-coeff", "model.moe_z_loss_coeff", number(m_.router_z_coefficient));
    is_model_ = false;
    add("--moe-token-dispatcher-type", "model.moe_token_dispatcher_type", word("alltoall"));
    add("--moe-grouped-gemm", "model.moe_grouped_gemm", on());
    add("--moe-router-dtype", "model.moe_router_dtype", word("fp32"));
    add_capacity();
    is_model_ = true;
  }

  void add_capacity() {
    if (!s_.capacity.is_limited()) return;
    add("--moe-expert-capacity-factor", "model.moe_expert_capacity_factor",
        number(s_.capacity.factor));
    add("--moe-token-drop-policy", "model.moe_token_drop_policy",
        word(s_.capacity.drop == strategy::Drop::kProbability ? "probs" : "position"));
    if (s_.capacity.pads)
      add("--moe-pad-expert-input-to-capacity", "model.moe_pad_expert_input_to_capacity", on());
  }

  void add_rest() {
    add("--normalization", "model.normalization", word(m_.norm_has_bias ? "LayerNorm" : "RMSNorm"));
    add("--norm-epsilon", "model.layernorm_epsilon", number(m_.norm_epsilon));
    if (!m_.tied_embeddings) add("--untie-embeddings-and-output-weights", "", on());
    add("", "model.share_embeddings_and_output_weights", m_.tied_embeddings ? on() : off());
    add("--vocab-size", "model.vocab_size", number(m_.vocabulary));
    add("--make-vocab-size-divisible-by", "model.make_vocab_size_divisible_by", number(1));
    add("--init-method-std", "model.init_method_std", number(m_.initializer_range));
    add("--attention-dropout", "model.attention_dropout", {"0", "0.0"});
    add("--hidden-dropout", "model.hidden_dropout", {"0", "0.0"});
  }

  const Job& job_;
  const Model& m_;
  const Strategy& s_;
  bool is_model_ = false;
  MegatronSettings out_;
};

}  // namespace

Value on() { return {"", "True"}; }
Value off() { return {"", "False"}; }
Value word(const std::string& value) { return {value, "\"" + value + "\""}; }
Value number(double value) {
  const std::string text = fmt::format("{}", value);
  return {text, text.find_first_of(".en") == std::string::npos ? text + ".0" : text};
}
Value words(const std::vector<std::string>& list) {
  return {fmt::format("{}", fmt::join(list, " ")),
          fmt::format("[\"{}\"]", fmt::join(list, "\", \""))};
}

MegatronSettings megatron_settings(const Job& job) { return SettingsWriter(job).run(); }

std::string pipeline_layout(const Model& model, const Strategy& s) {
  const int64_t stages = s.mesh.num_virtual_stages();
  const bool even = model.num_layers() % stages == 0 &&
                    s.layers_per_stage == strategy::even_split(model.num_layers(), stages);
  if (even) return "";
  std::string layout = "E";
  for (size_t i = 0; i < s.layers_per_stage.size(); ++i) {
    if (i > 0) layout += "|";
    if (s.layers_per_stage[i] > 0) layout += fmt::format("t*{}", s.layers_per_stage[i]);
  }
  if (s.mtp_depth > 0) layout += s.mtp_depth == 1 ? "m" : fmt::format("m*{}", s.mtp_depth);
  return layout + "L";
}

std::string what_of(const Job& job) {
  return shown_line(fmt::format("{} on {} devices{}", job.model.name, job.strategy.mesh.world(),
                                job.machine != nullptr ? " of " + job.machine->name : ""));
}

}  // namespace piper::exporting
