#include <fmt/format.h>
#include <piper/export/megatron_words.h>

#include <algorithm>

namespace piper::exporting {

using strategy::Strategy;

int64_t layers_per_chunk(const model::Model& model, const Strategy& s) {
  return s.mesh.vpp > 1 && pipeline_layout(model, s).empty()
             ? model.num_layers() / (s.mesh.num_virtual_stages())
             : 0;
}

std::string pipeline_layout(const model::Model& model, const Strategy& s) {
  const int64_t stages = s.mesh.num_virtual_stages();
  const bool even = model.num_layers() % stages == 0 &&
                    s.layers_per_stage == strategy::even_split(model.num_layers(), stages);
  if (even) return "";
  std::string layout = "E";
  for (size_t i = 0; i < s.layers_per_stage.size(); ++i)
    layout += fmt::format("{}t*{}", i > 0 ? "|" : "", s.layers_per_stage[i]);
  return layout + "L";
}

std::vector<std::string> recompute_modules(const model::Model& model, const Strategy& s) {
  std::vector<std::string> modules;
  if (s.recompute == strategy::Recompute::kFull || s.recompute == strategy::Recompute::kNone)
    return modules;
  if (strategy::drops_attention(s.recompute)) {
    modules.emplace_back("core_attn");
    const auto latent = [](const model::Layer& layer) {
      return layer.attention.kind == model::AttentionKind::kLatent;
    };
    if (std::ranges::any_of(model.layers, latent)) modules.emplace_back("mla_up_proj");
  }
  if (strategy::drops_experts(s.recompute)) {
    if (model.num_moe_layers() > 0) modules.emplace_back("moe_act");
    if (model.num_moe_layers() < model.num_layers()) modules.emplace_back("mlp");
  }
  return modules;
}

namespace {

// Shapes that Megatron Core's GPT model has no place for.
std::vector<std::string> foreign_shapes(const model::Model& model) {
  std::vector<std::string> found;
  const auto any = [&](auto is) { return std::ranges::any_of(model.layers, is); };
  using model::Layer;
  if (any([](const Layer& l) { return l.attention.kind == model::AttentionKind::kGatedDelta; }))
    found.emplace_back("linear attention layers");
  if (any([](const Layer& l) { return l.feed_forward.parallel_dense_ffn > 0; }))
    found.emplace_back("a dense MLP beside the mixture");
  if (any([](const Layer& l) { return l.attention.indexer.is_used(); }))
    found.emplace_back("the sparse attention indexer");
  if (any([](const Layer& l) { return !l.attention.rotary; }) && model.learned_positions == 0)
    found.emplace_back("layers without positions");
  return found;
}

}  // namespace

const char* drop_policy(const strategy::Capacity& capacity) {
  return capacity.drop == strategy::Drop::kProbability ? "probs" : "position";
}

void add_core_limits(const model::Model& model, const Strategy& s, Exported& exported) {
  for (const std::string& shape : foreign_shapes(model))
    exported.cannot.push_back(
        fmt::format("{} has {}, for which there is no flag", model.name, shape));
  if (s.precision == strategy::Precision::kFp64)
    exported.cannot.emplace_back("fp64: Megatron Core trains in fp32, fp16, bf16 and fp8");
  if (!pipeline_layout(model, s).empty())
    exported.differs.emplace_back(
        "the split of the layers is given as a layout, which Megatron Core calls experimental");
  if (strategy::drops_attention(s.recompute) && s.recompute != strategy::Recompute::kFull)
    exported.differs.emplace_back(
        "recompute attention: Megatron Core recomputes the attention product and keeps queries, "
        "keys and values; its memory lies between recompute none and attention here");
  if (strategy::drops_experts(s.recompute) && s.recompute != strategy::Recompute::kFull)
    exported.differs.emplace_back(
        "recompute experts: Megatron Core recomputes the experts' activation function and keeps "
        "the first projection; its memory lies between recompute none and experts here");
  if (s.capacity.is_limited() && (s.micro_batch_sequences > 1 || s.mesh.ranks_per_sequence() > 1))
    exported.differs.emplace_back(
        "the capacity: Megatron Core counts it by micro-batch and rank, not by sequence; both are "
        "the same with one sequence a micro-batch whose tokens one rank routes");
}

}  // namespace piper::exporting
