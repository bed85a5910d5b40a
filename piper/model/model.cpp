#include <piper/base/error.h>
#include <piper/model/model.h>

#include <algorithm>

namespace piper::model {
namespace {

const Layer* widest_mixture(const Model& model) {
  const Layer* widest = nullptr;
  for (const Layer& layer : model.layers)
    if (layer.feed_forward.is_moe() &&
        (widest == nullptr || layer.feed_forward.num_experts > widest->feed_forward.num_experts))
      widest = &layer;
  return widest;
}

}  // namespace

int64_t Model::num_moe_layers() const {
  return std::count_if(layers.begin(), layers.end(),
                       [](const Layer& layer) { return layer.feed_forward.is_moe(); });
}

int64_t Model::num_experts() const {
  const Layer* layer = widest_mixture(*this);
  return layer ? layer->feed_forward.num_experts : 0;
}

int64_t Model::top_k() const {
  const Layer* layer = widest_mixture(*this);
  return layer ? layer->feed_forward.top_k : 0;
}

double Model::layer_aux_coefficient() const {
  if (balancing_loss == BalancingLoss::kEachLayer) return router_aux_coefficient;
  double num_layers_joined = 0, choices = 0;
  for (int64_t i = 0; i < num_layers(); ++i) {
    const FeedForward& f = layers[static_cast<size_t>(i)].feed_forward;
    if (!f.is_moe()) continue;
    ++num_layers_joined;
    choices += static_cast<double>(f.top_k);
  }
  if (num_layers_joined == 0) return 0;
  const double mean_top_k = choices / num_layers_joined;
  return router_aux_coefficient * mean_top_k / num_layers_joined;
}

Model with_mtp(Model model, int64_t depth) {
  PIPER_CHECK(model.mtp_depth == 0 && depth >= 0 && depth <= kMaxMtpDepth, "mtp depth");
  PIPER_CHECK(!model.layers.empty(), "a model without layers");
  const Layer last = model.layers.back();
  model.layers.insert(model.layers.end(), static_cast<size_t>(depth), last);
  model.mtp_depth = depth;
  return model;
}

}  // namespace piper::model
