// Which layers are mixtures: every family has a rule of its own, and they combine.
#include <fmt/format.h>
#include <piper/model/import_parts.h>

#include <algorithm>
#include <charconv>

namespace piper::model {
namespace {

constexpr Spellings kIsMixture = {"is_moe_layer"};  // EXAONE-MoE: true or false a layer

// moe_layer_freq: every n-th layer counted from 0 (DeepSeek), or 0/1 a layer (MiMo, Moonlight).
void apply_frequency(Import& in, std::vector<bool>& moe) {
  static constexpr Spellings kKey = {"moe_layer_freq"};
  if (!in.keys.has(kKey)) return;
  const auto num_layers = static_cast<int64_t>(moe.size());
  const std::vector<int64_t> values = in.keys.integers_by_layer(kKey, 0, kMaxLayers, num_layers);
  const bool listed =
      std::adjacent_find(values.begin(), values.end(), std::not_equal_to<>()) != values.end() ||
      std::count(values.begin(), values.end(), 0) > 0;
  for (size_t i = 0; i < moe.size() && i < values.size(); ++i)
    moe[i] = moe[i] && (listed ? values[i] != 0 : static_cast<int64_t>(i) % values[i] == 0);
}

// The last layer of every group of n.
void apply_step(Import& in, std::vector<bool>& moe) {
  const auto step = in.keys.integer({"decoder_sparse_step", "interleave_moe_layer_step",
                                     "moe_layer_interval", "moe_layer_frequency"},
                                    1, kMaxLayers);
  if (!step) return;
  for (size_t i = 0; i < moe.size(); ++i)
    moe[i] = moe[i] && static_cast<int64_t>(i + 1) % *step == 0;
}

void apply_range(Import& in, std::vector<bool>& moe) {
  static constexpr Spellings kFirst = {"first_k_dense_replace", "num_dense_layers",
                                       "moe_layer_start_index", "n_dense_layers"};
  const auto num_layers = static_cast<int64_t>(moe.size());
  // A list of all layers leaves nothing to a default.
  const bool listed = in.keys.is_list({"moe_layer_freq"}) || in.keys.is_list({"mlp_layer_types"}) ||
                      in.keys.is_list(kIsMixture) || in.keys.is_given({"moe_layers_enum"});
  const int64_t first =
      listed && !in.keys.is_given(kFirst) ? 0 : in.keys.integer(kFirst, 0, kMaxLayers).value_or(0);
  int64_t last = in.keys.integer({"moe_layer_end_index"}, -1, kMaxLayers).value_or(-1);
  if (last < 0) last = num_layers - 1;
  for (int64_t i = 0; i < num_layers; ++i)
    if (i < first || i > last) moe[static_cast<size_t>(i)] = false;
}

// Step-3.5: "3,4,5", or the numbers as a list; beyond the last layer stand those of multi-token
// prediction.
std::vector<bool> enumerated(Import& in) {
  static constexpr Spellings kKey = {"moe_layers_enum"};
  std::vector<bool> listed(in.model.layers.size(), false);
  const auto set = [&](int64_t layer) {
    if (layer < in.model.num_layers()) listed[static_cast<size_t>(layer)] = true;
  };
  if (!in.keys.is_text(kKey)) {
    for (const int64_t layer : in.keys.integers(kKey, 0, kMaxLayers)) set(layer);
    return listed;
  }
  const std::string text = *in.keys.text(kKey);
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at < end) {
    int64_t layer = 0;
    const auto [next, error] = std::from_chars(at, end, layer);
    if (error != std::errc() || layer < 0 || (next < end && *next != ',')) {
      in.keys.problem(kKey,
                      fmt::format("is '{}'; allowed: numbers of layers between commas", text));
      return listed;
    }
    set(layer);
    at = next < end ? next + 1 : next;
  }
  return listed;
}

void apply_lists(Import& in, std::vector<bool>& moe) {
  const auto num_layers = static_cast<int64_t>(moe.size());
  const int64_t last = in.keys.layers_known() ? num_layers - 1 : kMaxLayers;
  for (const int64_t layer : in.keys.integers({"mlp_only_layers"}, 0, last))
    if (layer < num_layers) moe[static_cast<size_t>(layer)] = false;
  if (in.keys.has({"moe_layers"})) {
    std::vector<bool> listed(moe.size(), false);
    for (const int64_t layer : in.keys.integers({"moe_layers"}, 0, last))
      if (layer < num_layers) listed[static_cast<size_t>(layer)] = true;
    moe = listed;
  }
  if (in.keys.has({"moe_layers_enum"})) moe = enumerated(in);
  if (const std::vector<bool> each = in.keys.booleans_by_layer(kIsMixture, num_layers);
      !each.empty())
    moe = each;
  const std::vector<std::string> types = in.keys.texts_by_layer({"mlp_layer_types"}, num_layers);
  for (size_t i = 0; i < types.size(); ++i) {
    if (types[i] != "sparse" && types[i] != "dense")
      in.keys.problems()->add(fmt::format("{}[{}]", in.keys.path({"mlp_layer_types"}), i),
                              fmt::format("is '{}'; allowed: dense, sparse", types[i]));
    moe[i] = types[i] == "sparse";
  }
}

}  // namespace

std::vector<bool> mixture_layers(Import& in) {
  std::vector<bool> moe(in.model.layers.size(), true);
  apply_frequency(in, moe);
  apply_step(in, moe);
  apply_range(in, moe);
  apply_lists(in, moe);
  return moe;
}

}  // namespace piper::model
