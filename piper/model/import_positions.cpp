// Where positions come from: rotary embeddings (old keys rope_theta + rope_scaling, new
// rope_parameters) or a table.
#include <fmt/format.h>
#include <piper/base/json.h>
#include <piper/model/import_parts.h>

namespace piper::model {
namespace {

constexpr double kMaxTheta = 1e15;

std::string scaling_kind(ObjectReader& rope) {
  // "type" is the older spelling; configs in the wild carry both.
  const std::string older = rope.text("type", "default");
  const std::string kind = rope.text("rope_type", older);
  // With Gemma 4's "proportional", only part of each head is rotated; nothing is stretched.
  if (kind == "default" || kind == "mrope" || kind == "proportional") return "none";
  if (kind == "su") return "longrope";
  for (const char* known : {"none", "linear", "llama3", "yarn", "dynamic", "longrope"})
    if (kind == known) return kind;
  rope.problem(
      rope.has("rope_type") ? "rope_type" : "type",
      fmt::format("is '{}'; allowed: default, linear, llama3, yarn, dynamic, longrope", kind));
  return "none";
}

// rope_parameters may be split by the kind of layer (Gemma 3: sliding layers have a theta of their
// own); the model keeps the full-attention one.
const Json& full_attention_part(const Json& rope) {
  if (rope.contains("full_attention") && rope["full_attention"].is_object())
    return rope["full_attention"];
  return rope;
}

void import_scaling(ObjectReader& reader, Rope& rope) {
  const auto number = [&](const char* key, double& value, double min, double max) {
    if (reader.has(key)) value = reader.number(key, min, max);
  };
  number("factor", rope.factor, 1e-6, 1e9);
  number("beta_fast", rope.beta_fast, 1e-6, 1e9);
  number("beta_slow", rope.beta_slow, 1e-6, 1e9);
  number("mscale", rope.mscale, 0, 1e9);
  number("mscale_all_dim", rope.mscale_all_dim, 0, 1e9);
  number("attention_factor", rope.attention_factor, 0, 1e9);
  number("low_freq_factor", rope.low_frequency, 1e-6, 1e9);
  number("high_freq_factor", rope.high_frequency, 1e-6, 1e9);
  if (reader.has("original_max_position_embeddings"))
    rope.original_positions = reader.integer("original_max_position_embeddings", 1, kMaxPositions);
  if (reader.has("truncate")) rope.truncate = reader.boolean("truncate", true);
}

void import_rope_object(Import& in, Spellings names, Rope& rope, std::optional<double>& theta,
                        std::optional<double>& partial) {
  const Json* object = in.keys.object(names);
  if (object == nullptr) return;
  ObjectReader reader(full_attention_part(*object), in.keys.path(names), in.keys.problems());
  const std::string kind = scaling_kind(reader);
  if (kind != "none") rope.scaling = kind;
  if (kind != "none") import_scaling(reader, rope);
  if (reader.has("rope_theta")) {
    const double value = reader.number("rope_theta", 1.0, kMaxTheta);
    if (theta && *theta != value)
      reader.problem("rope_theta", fmt::format("is {} but 'rope_theta' is {}; they mean the same",
                                               value, *theta));
    theta = value;
  }
  if (reader.has("partial_rotary_factor") && !partial)
    partial = reader.number("partial_rotary_factor", 0.0, 1.0);
}

// DeepSeek's latent attention, and the families that inherited GPT-J's pairs.
bool turns_neighbours(const Import& in) {
  if (in.model.layers.front().attention.kind == AttentionKind::kLatent) return true;
  for (const char* family : {"cohere", "cohere2", "ernie4_5", "ernie4_5_moe", "glm", "glm4", "gptj",
                             "helium", "llama4", "llama4_text"})
    if (in.model.family == family) return true;
  return false;
}

// Step-3.5 lists one a layer: the model keeps that of the first layer that sees everything.
std::optional<double> import_theta(Import& in) {
  static constexpr Spellings kTheta = {"rope_theta", "rotary_emb_base", "rope_base"};
  if (!in.keys.is_list(kTheta)) return in.keys.number(kTheta, 1.0, kMaxTheta);
  const std::vector<double> all = in.keys.numbers(kTheta, 1.0, kMaxTheta);
  for (size_t i = 0; i < all.size() && i < in.model.layers.size(); ++i)
    if (in.model.layers[i].attention.window == 0) return all[i];
  return all.empty() ? std::nullopt : std::optional(all.front());
}

void import_rope(Import& in) {
  Rope& rope = in.model.rope;
  auto theta = import_theta(in);
  auto partial = in.keys.number({"partial_rotary_factor", "rotary_pct", "rope_pct"}, 0.0, 1.0);
  import_rope_object(in, {"rope_scaling"}, rope, theta, partial);
  import_rope_object(in, {"rope_parameters"}, rope, theta, partial);
  if (const auto rotated = in.keys.integer({"rotary_dim"}, 1, kMaxHeadDim); rotated && !partial)
    partial = static_cast<double>(*rotated) /
              static_cast<double>(in.model.layers.front().attention.head_dim);
  rope.theta = theta.value_or(in.family.rope_theta);
  rope.interleaved = in.keys.boolean({"rope_interleave"}).value_or(turns_neighbours(in));
  if (rope.scaling != "none") {
    if (rope.original_positions == 0) rope.original_positions = in.model.max_positions;
    if (rope.factor == 0 && rope.original_positions > 0 && in.model.max_positions > 0)
      rope.factor = static_cast<double>(in.model.max_positions) /
                    static_cast<double>(rope.original_positions);
  }
  rope.partial_factor = partial.value_or(in.family.rope_partial);
  if (!theta && !in.family.learned_positions)
    in.model.assumptions.push_back(fmt::format("rope_theta is not given: {}{}", rope.theta,
                                               in.known_family ? ", the family's default" : ""));
}

}  // namespace

void import_positions(Import& in) {
  static constexpr Spellings kPositions = {"max_position_embeddings", "n_positions", "max_seq_len",
                                           "max_sequence_length", "model_max_length"};
  in.model.max_positions = in.keys.integer(kPositions, 1, kMaxPositions).value_or(0);
  import_rope(in);  // reads max_positions
  if (!in.family.learned_positions) return;
  in.model.learned_positions = in.keys.required_integer(kPositions, 1, kMaxFfn);
  for (Layer& layer : in.model.layers) layer.attention.rotary = false;
}

}  // namespace piper::model
