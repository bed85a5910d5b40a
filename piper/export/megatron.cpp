#include <fmt/format.h>
#include <fmt/ranges.h>
#include <piper/export/megatron_words.h>

#include <algorithm>

namespace piper::exporting {
namespace {

using model::Layer;
using strategy::Strategy;

class Flags {
 public:
  void add(const std::string& flag) { lines_ += flag + "\n"; }
  template <class T>
  void add(const std::string& flag, const T& value) {
    lines_ += fmt::format("{} {}\n", flag, value);
  }
  std::string take() { return std::move(lines_); }

 private:
  std::string lines_;
};

const Layer* first_layer(const model::Model& model, bool moe) {
  const auto found = std::ranges::find_if(
      model.layers, [&](const Layer& layer) { return layer.feed_forward.is_moe() == moe; });
  return found == model.layers.end() ? nullptr : &*found;
}

void add_parallel(const model::Model& model, const Strategy& s, Flags& flags) {
  flags.add("--tensor-model-parallel-size", s.mesh.tp);
  if (s.sequence_parallel) flags.add("--sequence-parallel");
  flags.add("--pipeline-model-parallel-size", s.mesh.pp);
  if (const int64_t layers = layers_per_chunk(model, s); layers > 0)
    flags.add("--num-layers-per-virtual-pipeline-stage", layers);
  if (const std::string layout = pipeline_layout(model, s); !layout.empty())
    flags.add("--pipeline-model-parallel-layout", "'" + layout + "'");
  flags.add("--context-parallel-size", s.mesh.cp);
  if (s.mesh.cp > 1) flags.add("--cp-comm-type", strategy::has_ring(s) ? "p2p" : "all_gather");
  if (model.num_moe_layers() > 0) {
    flags.add("--expert-model-parallel-size", s.mesh.ep);
    flags.add("--expert-tensor-parallel-size", s.mesh.etp);
  }
  if (strategy::offloads_optimizer(s.offload)) {
    flags.add("--optimizer-cpu-offload");
    flags.add("--optimizer-offload-fraction", 1);
  }
  if (s.placement == strategy::Placement::kPipelineInside) flags.add("--use-tp-pp-dp-mapping");
  flags.add("--micro-batch-size", s.micro_batch_sequences);
  flags.add("--global-batch-size", s.global_batch_sequences);
  flags.add("--seq-length", s.sequence);
  flags.add("--max-position-embeddings", std::max(s.sequence, model.max_positions));
  if (s.precision != strategy::Precision::kFp32) {
    flags.add("--bf16");
    flags.add("--accumulate-allreduce-grads-in-fp32");
  }
  if (converts_operands(s.precision)) {
    flags.add(s.precision == strategy::Precision::kNvfp4 ? "--fp4-format" : "--fp8-format",
              s.precision == strategy::Precision::kNvfp4 ? "e2m1" : "hybrid");
    flags.add(s.precision == strategy::Precision::kNvfp4 ? "--fp4-recipe" : "--fp8-recipe",
              s.precision == strategy::Precision::kNvfp4   ? "nvfp4"
              : s.precision == strategy::Precision::kMxfp8 ? "mxfp8"
                                                           : "tensorwise");
  }
  if (s.recompute == strategy::Recompute::kFull) {
    flags.add("--recompute-granularity", "full");
    flags.add("--recompute-method", "uniform");
    flags.add("--recompute-num-layers", 1);
  } else if (const auto modules = recompute_modules(model, s); !modules.empty()) {
    flags.add("--recompute-granularity", "selective");
    flags.add("--recompute-modules", fmt::format("{}", fmt::join(modules, " ")));
  }
}

void add_attention(const model::Model& model, Flags& flags) {
  const model::Attention& a = model.layers.front().attention;
  flags.add("--num-attention-heads", a.num_heads);
  if (a.kind == model::AttentionKind::kLatent) {
    flags.add("--multi-latent-attention");
    if (a.latent.query_rank > 0) flags.add("--q-lora-rank", a.latent.query_rank);
    flags.add("--kv-lora-rank", a.latent.key_value_rank);
    flags.add("--qk-head-dim", a.latent.nope_head_dim);
    flags.add("--qk-pos-emb-head-dim", a.latent.rope_head_dim);
    flags.add("--v-head-dim", a.latent.value_head_dim);
    flags.add("--qk-layernorm");  // of the two latents, which are always normalised
  } else {
    if (a.num_kv_heads != a.num_heads) {
      flags.add("--group-query-attention");
      flags.add("--num-query-groups", a.num_kv_heads);
    }
    flags.add("--kv-channels", a.head_dim);
    if (a.qk_norm != model::QkNorm::kNone) flags.add("--qk-layernorm");
  }
  flags.add(a.output_bias ? "--add-bias-linear" : "--disable-bias-linear");
  if (a.query_bias && !a.output_bias) flags.add("--add-qkv-bias");
  if (a.window > 0 && !a.chunked) flags.add("--window-size", fmt::format("'({}, 0)'", a.window));
  flags.add("--position-embedding-type", "rope");
  flags.add("--rotary-base", fmt::format("{:.0f}", model.rope.theta));
  if (model.rope.partial_factor != 1) flags.add("--rotary-percent", model.rope.partial_factor);
}

// "([0]*3+[1]*58)" in the order of the layers.
std::string layer_frequency(const model::Model& model) {
  std::string text;
  for (size_t i = 0; i < model.layers.size();) {
    const bool moe = model.layers[i].feed_forward.is_moe();
    size_t end = i;
    while (end < model.layers.size() && model.layers[end].feed_forward.is_moe() == moe) ++end;
    text += fmt::format("{}[{}]*{}", text.empty() ? "" : "+", moe ? 1 : 0, end - i);
    i = end;
  }
  return "'(" + text + ")'";
}

void add_mixture(const model::Model& model, const Strategy& s, Flags& flags) {
  const model::FeedForward& f = first_layer(model, true)->feed_forward;
  flags.add("--num-experts", f.num_experts);
  flags.add("--moe-layer-freq", layer_frequency(model));
  flags.add("--moe-ffn-hidden-size", f.ffn);
  flags.add("--moe-router-topk", f.top_k);
  flags.add("--moe-router-score-function",
            f.score == model::Score::kSigmoid ? "sigmoid" : "softmax");
  if (f.routed_scaling != 1) flags.add("--moe-router-topk-scaling-factor", f.routed_scaling);
  if (f.num_groups > 1) {
    flags.add("--moe-router-num-groups", f.num_groups);
    flags.add("--moe-router-group-topk", f.top_groups);
  }
  if (f.selection_bias) flags.add("--moe-router-enable-expert-bias");
  if (f.shared_ffn > 0) flags.add("--moe-shared-expert-intermediate-size", f.shared_ffn);
  flags.add("--moe-router-load-balancing-type",
            model.router_aux_coefficient > 0 ? "seq_aux_loss" : "none");
  if (model.router_aux_coefficient > 0)
    flags.add("--moe-aux-loss-coeff", model.layer_aux_coefficient());
  flags.add("--moe-token-dispatcher-type", "alltoall");
  flags.add("--moe-grouped-gemm");
  flags.add("--moe-router-dtype", "fp32");
  if (!s.capacity.is_limited()) return;
  flags.add("--moe-expert-capacity-factor", s.capacity.factor);
  flags.add("--moe-token-drop-policy", drop_policy(s.capacity));
  if (s.capacity.pads) flags.add("--moe-pad-expert-input-to-capacity");
}

void add_model(const model::Model& model, const Strategy& s, Flags& flags) {
  flags.add("--num-layers", model.num_layers());
  flags.add("--hidden-size", model.hidden);
  const Layer* dense = first_layer(model, false);
  flags.add("--ffn-hidden-size", (dense ? *dense : model.layers.front()).feed_forward.ffn);
  if (model.layers.front().feed_forward.num_matrices == 3) flags.add("--swiglu");
  add_attention(model, flags);
  flags.add("--normalization", model.norm_has_bias ? "LayerNorm" : "RMSNorm");
  flags.add("--norm-epsilon", model.norm_epsilon);
  if (!model.tied_embeddings) flags.add("--untie-embeddings-and-output-weights");
  flags.add("--vocab-size", model.vocabulary);
  flags.add("--make-vocab-size-divisible-by", 1);
  if (model.num_moe_layers() > 0) add_mixture(model, s, flags);
  flags.add("--attention-dropout", 0);
  flags.add("--hidden-dropout", 0);
}

}  // namespace

Exported to_megatron(const Job& job) {
  const model::Model& model = job.model;
  const Strategy& s = job.strategy;
  Exported exported;
  Flags flags;
  add_parallel(model, s, flags);
  add_model(model, s, flags);
  for (const auto& [flag, value] : job.ruling.flags)
    value.empty() ? flags.add(flag) : flags.add(flag, value);
  exported.text = flags.take();
  if (model.rope.scaling != "none")
    exported.differs.push_back(fmt::format(
        "rope scaling {}: set it as the checkpoint's converter does", model.rope.scaling));
  if (model.num_moe_layers() > 0 && first_layer(model, true)->feed_forward.shared_gate)
    exported.differs.emplace_back(
        "the gate on the shared expert: add --moe-shared-expert-gate where your Megatron has it");
  return exported;
}

}  // namespace piper::exporting
