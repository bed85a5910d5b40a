#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/base/suggest.h>
#include <piper/model/count.h>
#include <piper/model/import.h>
#include <piper/model/import_parts.h>

#include <algorithm>
#include <iterator>

namespace piper::model {
namespace {

// Without parameters of their own; "swiglu" and its like say that the feed-forward is gated too.
const std::string kActivations[] = {
    "silu",    "swish",     "gelu",  "gelu_new", "gelu_fast",  "gelu_pytorch_tanh",
    "gelu_10", "relu",      "relu2", "relu6",    "quick_gelu", "gelu_python",
    "tanh",    "sigmoid",   "mish",  "linear",   "leaky_relu", "gelu_accurate",
    "swiglu",  "swigluoai", "geglu", "reglu",    "laplace",    "squared_relu"};
constexpr Spellings kLayers = {"num_hidden_layers", "n_layer", "n_layers", "num_layers"};

void import_ties(Import& in) {
  auto tied = in.keys.boolean({"tie_word_embeddings"});
  // The wrapper's word is the last one: transformers ties by it.
  if (const auto outer = in.keys.outer_boolean("tie_word_embeddings")) tied = outer;
  in.model.tied_embeddings = tied.value_or(in.family.tied);
  if (!tied && !in.known_family)
    in.model.assumptions.push_back(
        "tie_word_embeddings is not given: embedding and head are counted apart");
  in.model.lm_head_bias = in.keys.boolean({"lm_head_bias"})
                              .value_or(in.family.head_bias_follows_use_bias
                                            ? in.keys.boolean({"use_bias"}).value_or(false)
                                            : in.family.head_bias);
}

void import_layer_inputs(Import& in) {
  static constexpr Spellings kRows = {"vocab_size_per_layer_input"};
  const int64_t width = in.keys.integer({"hidden_size_per_layer_input"}, 0, kMaxHidden).value_or(0);
  const int64_t rows = in.keys.integer(kRows, 0, kMaxFfn).value_or(in.model.vocabulary);
  if (width == 0) return;
  in.model.input_vocabulary = rows;
  for (Layer& layer : in.model.layers) layer.input_width = width;
}

void import_norms(Import& in) {
  static constexpr Spellings kEpsilon = {
      "rms_norm_eps", "layer_norm_eps",    "layer_norm_epsilon",    "norm_eps",
      "norm_epsilon", "layernorm_epsilon", "layer_norm_rms_epsilon"};
  const auto epsilon = in.keys.number(kEpsilon, 0.0, 1.0);
  in.model.norm_epsilon = epsilon.value_or(1e-6);
  if (!epsilon) in.model.assumptions.push_back("no epsilon of the norms is given: 1e-6");
  in.model.norm_has_bias = in.family.norm_bias;
  in.model.final_norm = in.family.final_norm;
  int64_t num_norms = in.family.num_norms;
  // One norm feeds attention and feed-forward when they run side by side (StableLM).
  if (in.keys.boolean({"use_parallel_residual"}).value_or(false) && in.family.parallel_shares_norm)
    num_norms = 1;
  if (in.keys.boolean({"use_post_norm"}).value_or(false)) num_norms += 2;
  for (Layer& layer : in.model.layers)
    layer.num_norms = num_norms + (layer.feed_forward.is_moe() ? in.family.extra_mixture_norms : 0);
}

// MiniMax: modules, each of so many layers. Read even where another key says it at once.
int64_t mtp_modules(Import& in) {
  const bool on = in.keys.boolean({"use_mtp"}).value_or(true);
  const int64_t modules = in.keys.integer({"num_mtp_modules"}, 0, 64).value_or(0);
  const int64_t layers = in.keys.integer({"mtp_transformer_layers"}, 0, 64).value_or(1);
  return on ? modules * layers : 0;
}

void import_rest(Import& in) {
  in.model.initializer_range =
      in.keys.number({"initializer_range", "init_std"}, 0.0, 1e3).value_or(0.02);
  in.model.num_next_token_layers = in.keys
                                       .integer({"num_nextn_predict_layers", "num_mtp_layers",
                                                 "mtp_num_layers", "mtp_num_hidden_layers"},
                                                0, 64)
                                       .value_or(mtp_modules(in));
  const auto activation =
      in.keys.text({"hidden_act", "hidden_activation", "activation_function", "act_fn"});
  in.model.activation = activation.value_or("silu");
  if (std::ranges::find(kActivations, in.model.activation) == std::end(kActivations))
    in.model.assumptions.push_back(
        fmt::format("activation '{}' is not known: taken as one without parameters{}",
                    in.model.activation, did_you_mean(in.model.activation, kActivations)));
}

// What a config.json has no key for: the object "piper" of our own built-ins.
void import_own_keys(Import& in) {
  const Json* own = in.keys.object({"piper"});
  if (own == nullptr) return;
  ObjectReader reader(*own, in.keys.path({"piper"}), in.keys.problems());
  in.model.source = reader.text("source", "");
  if (const Json* assumed = reader.array("assumed"))
    for (const Json& line : *assumed) {
      if (line.is_string())
        in.model.assumptions.push_back(line.get<std::string>());
      else
        reader.problem("assumed", "holds " + quote(line) + "; allowed: strings");
    }
  const int64_t expert_matrices = reader.integer("matrices_per_expert", 2, 3, 0);
  const int64_t dense_matrices = reader.integer("matrices_per_dense_mlp", 2, 3, 0);
  const int64_t num_norms = reader.integer("norms_per_layer", 0, 8, -1);
  for (Layer& layer : in.model.layers) {
    FeedForward& f = layer.feed_forward;
    if (expert_matrices > 0 && f.is_moe()) f.num_matrices = expert_matrices;
    if (dense_matrices > 0) (f.is_moe() ? f.num_dense_matrices : f.num_matrices) = dense_matrices;
    if (num_norms >= 0) layer.num_norms = num_norms;
  }
  reader.refuse_unknown();
}

// In floating point, where nothing overflows: counts must fit 64 bits.
void check_size(const Model& model, Problems* problems) {
  double total = 2.0 * static_cast<double>(model.vocabulary) * static_cast<double>(model.hidden);
  for (const Layer& layer : model.layers) {
    const FeedForward& f = layer.feed_forward;
    const Attention& a = layer.attention;
    const auto hidden = static_cast<double>(model.hidden);
    const auto experts = static_cast<double>(std::max<int64_t>(1, f.num_experts));
    const auto ranks = static_cast<double>(a.latent.query_rank + a.latent.key_value_rank);
    const auto head_dims = static_cast<double>(a.head_dim + a.latent.value_head_dim);
    const auto delta = static_cast<double>(a.delta.key_heads * a.delta.key_head_dim) +
                       static_cast<double>(a.delta.value_heads * a.delta.value_head_dim);
    total += 4 * static_cast<double>(layer.input_width) *
             (hidden + static_cast<double>(model.input_vocabulary));
    total += 4 * hidden *
             (experts * static_cast<double>(f.ffn) + static_cast<double>(f.shared_ffn) + 2 * delta);
    total += 4 * (hidden + ranks) * static_cast<double>(a.num_heads) * head_dims;
  }
  if (total > 1e17)
    problems->add(
        fmt::format("describes a model of about {:.1e} parameters; allowed: at most 1e17", total));
}

FamilyTraits traits_of(Keys& keys, Problems* problems, Model& model, bool& known) {
  const auto type = keys.text({"model_type"});
  model.family = type.value_or("");
  const Family family = find_family(model.family);
  known = family.known;
  if (!family.refused.empty())
    problems->add(keys.path({"model_type"}), fmt::format("is '{}', which Piper cannot describe: {}",
                                                         model.family, family.refused));
  keys.ignore("model_type");
  if (!type)
    model.assumptions.push_back("no model_type is given: shapes follow the other keys alone");
  else if (!known)
    model.assumptions.push_back(fmt::format(
        "model_type '{}' is not known: shapes follow the other keys alone", model.family));
  return family.traits;
}

}  // namespace

Model import_config(const Json& document, const std::string& source,
                    const std::vector<std::string>& ignore) {
  Problems problems(source);
  Json config = document;
  Model model;
  for (const std::string& key : ignore)
    for (std::string& line : remove_key(config, key))
      model.ignored_on_request.push_back(std::move(line));
  if (!config.is_object()) {
    ObjectReader(config, "", &problems);
    problems.finish();
  }
  Keys keys(config, &problems);
  model.name = source;
  bool known = false;
  const FamilyTraits traits = traits_of(keys, &problems, model, known);
  if (!problems.empty()) problems.finish();
  Import in{keys, traits, known, model};
  refuse_foreign_architecture(in);
  keys.set_defaults(parse_json(absent_keys(model.family), model.family));
  model.hidden = keys.required_integer(kHidden, 1, kMaxHidden);
  model.vocabulary = keys.required_integer({"vocab_size", "n_vocab"}, 1, kMaxFfn);
  model.layers.resize(static_cast<size_t>(keys.required_integer(kLayers, 1, kMaxLayers)));
  if (!keys.sound(kLayers, 1, kMaxLayers)) keys.forget_layers();
  import_attention(in);
  import_windows(in);
  import_layer_shapes(in);
  import_feed_forward(in);
  import_positions(in);
  import_norms(in);
  import_layer_inputs(in);
  import_ties(in);
  import_rest(in);
  import_own_keys(in);
  for (const std::string& line : keys.defaults_used())
    model.assumptions.push_back(fmt::format("{}, as {} has it by default", line, model.family));
  model.towers = import_towers(in);
  sort_unread_keys(in);
  if (problems.empty()) check_size(model, &problems);
  problems.finish();
  return model;
}

}  // namespace piper::model
