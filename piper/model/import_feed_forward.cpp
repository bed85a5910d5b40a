// Widths of the feed-forwards, experts, shared experts and the router.
#include <fmt/format.h>
#include <piper/model/import_parts.h>

#include <algorithm>

namespace piper::model {
namespace {

constexpr Spellings kExperts = {"num_local_experts", "num_experts",        "n_routed_experts",
                                "moe_num_experts",   "num_routed_experts", "n_experts"};
constexpr Spellings kTopK = {"num_experts_per_tok", "num_experts_per_token",
                             "experts_per_token",   "moe_topk",
                             "moe_top_k",           "moe_k",
                             "top_k_experts",       "num_selected_experts"};
constexpr Spellings kFfn = {"intermediate_size", "ffn_dim", "n_inner", "d_ff", "ffn_hidden_size"};
constexpr Spellings kExpertFfn = {"moe_intermediate_size", "moe_ffn_hidden_size",
                                  "expert_intermediate_size", "expert_ffn_hidden_size"};
constexpr Spellings kGroups = {"n_group", "num_expert_groups", "num_expert_group"};
constexpr Spellings kTopGroups = {"topk_group", "num_limited_groups", "limited_expert_groups"};

using ByLayer = std::vector<int64_t>;

// A missing width of a dense MLP is a problem only when some layer is dense.
ByLayer dense_widths(Import& in, bool needed) {
  const int64_t num_layers = in.model.num_layers();
  static constexpr Spellings kDenseFfn = {"intermediate_size_mlp", "dense_intermediate_size"};
  if (in.keys.has(kDenseFfn)) {  // Llama 4, MiniMax-M3: intermediate_size is an expert's there
    for (const char* name : kFfn) in.keys.ignore(name);
    return in.keys.integers_by_layer(kDenseFfn, 1, kMaxFfn, num_layers);
  }
  ByLayer widths = in.keys.integers_by_layer(kFfn, 1, kMaxFfn, num_layers);
  if (!widths.empty()) return widths;
  if (in.family.ffn_over_hidden > 0)
    return ByLayer(in.model.layers.size(), in.family.ffn_over_hidden * in.model.hidden);
  if (needed) in.keys.required_integer(kFfn, 1, kMaxFfn);
  return ByLayer(in.model.layers.size(), 1);
}

ByLayer expert_widths(Import& in) {
  ByLayer widths = in.keys.integers_by_layer(kExpertFfn, 1, kMaxFfn, in.model.num_layers());
  if (!widths.empty()) return widths;
  // With layers that are dense by a key of the config, intermediate_size is theirs.
  if (in.keys.has({"first_k_dense_replace", "mlp_only_layers", "moe_layer_start_index"}))
    in.keys.required_integer(kExpertFfn, 1, kMaxFfn);
  widths = in.keys.integers_by_layer(kFfn, 1, kMaxFfn, in.model.num_layers());
  if (!widths.empty()) return widths;
  in.keys.required_integer(kExpertFfn, 1, kMaxFfn);
  return ByLayer(in.model.layers.size(), 1);
}

// Width of all shared experts together: stated at once, or a number of experts of the routed ones'
// width.
ByLayer shared_widths(Import& in, const ByLayer& expert_ffn) {
  const int64_t num_layers = in.model.num_layers();
  ByLayer count = in.keys.integers_by_layer(
      {"n_shared_experts", "num_shared_experts", "moe_num_shared_experts", "num_shared_expert"}, 0,
      kMaxExperts, num_layers);
  ByLayer each =
      in.keys.integers_by_layer({"moe_shared_expert_intermediate_size"}, 0, kMaxFfn, num_layers);
  const ByLayer all = in.keys.integers_by_layer(
      {"shared_expert_intermediate_size", "shared_intermediate_size", "share_expert_dim",
       "share_expert_dims", "shared_experts_intermediate_size"},
      0, kMaxFfn, num_layers);
  if (!all.empty()) return all;
  if (each.empty())
    each = expert_ffn;
  else if (count.empty())
    count.assign(each.size(), 1);
  if (count.empty()) count.assign(each.size(), in.family.shared_experts);
  for (size_t i = 0; i < each.size(); ++i) each[i] *= count[i];
  return each;
}

Score import_score(Import& in) {
  static constexpr Spellings kScore = {"scoring_func", "score_func", "moe_router_score_function",
                                       "expert_selection_fn", "score_function"};
  const auto text = in.keys.text(kScore);
  if (!text) return in.family.score;
  if (*text == "softmax") return Score::kSoftmax;
  if (*text == "sigmoid") return Score::kSigmoid;
  in.keys.problem(kScore, fmt::format("is '{}'; allowed: softmax, sigmoid", *text));
  return in.family.score;
}

void import_groups(Import& in, FeedForward& moe) {
  moe.num_groups = in.keys.integer(kGroups, 1, kMaxExperts).value_or(1);
  moe.top_groups = in.keys.integer(kTopGroups, 1, kMaxExperts).value_or(moe.num_groups);
  const auto method = in.keys.text({"topk_method"});
  if (method == "greedy") moe.num_groups = moe.top_groups = 1;
  if (method == "noaux_tc") moe.selection_bias = true;
  if (moe.num_experts % moe.num_groups != 0)
    in.keys.problem(kGroups, fmt::format("is {}; allowed: a divisor of the {} experts",
                                         moe.num_groups, moe.num_experts));
  if (moe.top_groups > moe.num_groups)
    in.keys.problem(kTopGroups, fmt::format("is {}; allowed: at most the {} groups", moe.top_groups,
                                            moe.num_groups));
}

// The key says whose loss its coefficient is of: configs of transformers' classes (JetMoE and DBRX
// have names of their own) that of transformers, those of DeepSeek's and Megatron's code that of
// each layer. A coefficient that a config leaves out is the default of transformers' class.
void import_balancing_loss(Import& in) {
  const auto joined =
      in.keys.number({"router_aux_loss_coef", "aux_loss_coef", "moe_loss_weight"}, 0.0, 1e6);
  const auto each = in.keys.number({"aux_loss_alpha", "moe_aux_loss_coeff"}, 0.0, 1e6);
  const bool is_of_each_layer = each && !joined;
  in.model.balancing_loss =
      is_of_each_layer ? BalancingLoss::kEachLayer : BalancingLoss::kJoinedLayers;
  in.model.router_aux_coefficient = is_of_each_layer ? *each : joined.value_or(in.family.auxiliary);
}

// What the router does, the same in every mixture layer.
FeedForward import_router(Import& in) {
  FeedForward moe;
  const FamilyTraits& family = in.family;
  moe.selection_bias =
      in.keys.boolean({"use_routing_bias", "use_moe_router_bias", "moe_router_enable_expert_bias"})
          .value_or(family.selection_bias);
  moe.router_scales = family.router_scales;
  moe.selection_bias_is_parameter = family.selection_bias_is_parameter;
  moe.router_bias = family.router_bias;
  moe.expert_bias = family.expert_bias;
  moe.shared_gate = family.shared_gate;
  moe.score = import_score(in);
  moe.normalise_top_k = in.keys.boolean({"norm_topk_prob", "route_norm", "moe_renormalize"})
                            .value_or(family.normalise_top_k);
  moe.routed_scaling = in.keys
                           .number({"routed_scaling_factor", "route_scale", "router_scaling_factor",
                                    "moe_routed_scaling_factor", "moe_router_scaling_factor"},
                                   0.0, 1e6)
                           .value_or(1.0);
  import_balancing_loss(in);
  in.model.router_z_coefficient =
      in.keys.number({"router_z_loss_coef", "moe_z_loss_coeff", "moe_zloss_weight"}, 0.0, 1e6)
          .value_or(0.0);
  return moe;
}

void check_top_k(Import& in, const ByLayer& experts, const ByLayer& top_k,
                 const std::vector<bool>& moe) {
  for (size_t i = 0; i < moe.size(); ++i) {
    if (!moe[i] || top_k[i] <= experts[i]) continue;
    in.keys.problem(kTopK, fmt::format("is {}; allowed: an integer from 1 to '{}' ({})", top_k[i],
                                       in.keys.path(kExperts), experts[i]));
    return;
  }
}

void import_mixture(Import& in, const std::vector<bool>& is_moe) {
  const int64_t num_layers = in.model.num_layers();
  const ByLayer experts = in.keys.integers_by_layer(kExperts, 1, kMaxExperts, num_layers);
  ByLayer top_k = in.keys.integers_by_layer(kTopK, 1, kMaxExperts, num_layers);
  if (top_k.empty()) top_k.assign(is_moe.size(), in.keys.required_integer(kTopK, 1, kMaxExperts));
  if (in.keys.sound(kExperts, 1, kMaxExperts) && in.keys.sound(kTopK, 1, kMaxExperts))
    check_top_k(in, experts, top_k, is_moe);
  const ByLayer expert_ffn = expert_widths(in);
  const ByLayer shared_ffn = shared_widths(in, expert_ffn);
  FeedForward router = import_router(in);
  router.num_experts = *std::max_element(experts.begin(), experts.end());
  import_groups(in, router);
  for (size_t i = 0; i < is_moe.size(); ++i) {
    if (!is_moe[i]) continue;
    FeedForward& out = in.model.layers[i].feed_forward;
    const FeedForward dense = out;
    out = router;
    out.bias = dense.bias;
    out.num_matrices = out.num_dense_matrices = dense.num_matrices;
    out.num_experts = experts[i];
    out.top_k = top_k[i];
    out.ffn = expert_ffn[i];
    out.shared_ffn = shared_ffn[i];
    out.shared_gate = out.shared_gate && out.shared_ffn > 0;
    if (in.keys.boolean({"use_residual"}).value_or(in.family.parallel_dense_over_hidden > 0))
      out.parallel_dense_ffn = in.family.parallel_dense_over_hidden * in.model.hidden;
    if (in.family.dense_beside) out.parallel_dense_ffn = dense.ffn;
  }
}

// A switch of the family says whether experts count (Gemma 4).
bool switched_off(Import& in) {
  const auto enabled = in.keys.boolean({"enable_moe_block"});
  if (enabled.value_or(!in.family.mixture_when_enabled)) return false;
  for (const Spellings& unused : {kExperts, kTopK, kExpertFfn})
    for (const char* name : unused) in.keys.ignore(name);
  return true;
}

// No experts and none a token is a dense model (Granite 4).
bool has_mixture(Import& in) {
  if (!in.keys.has(kExperts)) return false;
  if (!in.keys.is_zero(kExperts) || (in.keys.has(kTopK) && !in.keys.is_zero(kTopK))) return true;
  for (const char* name : kExperts) in.keys.ignore(name);
  for (const char* name : kTopK) in.keys.ignore(name);
  return false;
}

}  // namespace

void import_feed_forward(Import& in) {
  const bool off = switched_off(in);
  const bool mixture = !off && has_mixture(in);
  const std::vector<bool> is_moe =
      mixture ? mixture_layers(in) : std::vector<bool>(in.model.layers.size(), false);
  const bool some_dense =
      in.family.dense_beside || std::count(is_moe.begin(), is_moe.end(), false) > 0;
  ByLayer widths = dense_widths(in, some_dense);
  if (in.keys.boolean({"use_double_wide_mlp"}).value_or(false))
    for (size_t i = 0; i < widths.size(); ++i)
      if (in.model.layers[i].attention.key_value == KeyValue::kOfEarlierLayer) widths[i] *= 2;
  const auto asked = in.keys.boolean({"mlp_bias", "use_mlp_bias"});
  const bool bias = asked && !in.family.mlp_bias_fixed
                        ? *asked
                        : in.keys.boolean({"use_bias"}).value_or(in.family.mlp_bias);
  for (size_t i = 0; i < in.model.layers.size(); ++i) {
    FeedForward& out = in.model.layers[i].feed_forward;
    out.ffn = widths[i];
    out.num_matrices = in.family.num_matrices;
    out.bias = bias;
  }
  if (mixture)
    import_mixture(in, is_moe);
  else if (in.keys.has(kTopK) && !in.keys.is_zero(kTopK) && !off)
    in.keys.problem(kTopK,
                    "is given without a number of experts; allowed: together with num_experts");
}

}  // namespace piper::model
