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

const char* drop_policy(const strategy::Capacity& capacity) {
  return capacity.drop == strategy::Drop::kProbability ? "probs" : "position";
}

}  // namespace piper::exporting
