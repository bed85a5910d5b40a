// Prices of a micro-batch's shape: each kind of layer and the two ends of the model, once for all
// strategies that cut a micro-batch alike.
#pragma once

#include <piper/cost/trainer/end_price.h>
#include <piper/cost/trainer/layer_price.h>
#include <piper/cost/trainer/overlap_timeline.h>
#include <piper/cost/trainer/pair_overlap.h>
#include <piper/cost/trainer/trainer_context.h>
#include <piper/strategy/rank_layout.h>

#include <cstdint>
#include <map>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

namespace piper::cost {

// The layers of a model by what they are made of: equal ones have one price.
struct LayerTypes {
  std::vector<size_t> of_layer;
  std::vector<int64_t> representative, num_layers;  // of each type
  bool has_shared = false;                          // experts, in some layer
};

// Not thread-safe: it keeps what saved_in_pairs() has worked out.
struct ShapePrices {
  const TrainerContext* context = nullptr;
  const LayerTypes* layer_types = nullptr;
  std::vector<LayerPrice> types;
  EndPrice ends;
  ShapeNeeds needs;

  const LayerPrice& of_layer(int64_t layer) const {
    return types[layer_types->of_layer[static_cast<size_t>(layer)]];
  }
  // What a pair saves in a layer; `of_type` is one of `types`.
  const PairSaving& saved_in_pairs(const LayerPrice& of_type, strategy::Recompute recompute) const;

 private:
  mutable std::map<std::pair<const LayerPrice*, strategy::Recompute>, PairSaving> saved_in_pairs_;
};

// Throws InvalidInput where a trainer's profile has no price of what the strategy does.
void require_priced(const strategy::Strategy& strategy, const TrainerProfile& trainer,
                    const cluster::Cluster& cluster);

// Keeps all that it was asked for. Not thread-safe; `context` outlives it.
class ShapePricer {
 public:
  explicit ShapePricer(const TrainerContext& context);

  // Valid until clear(). Throws as require_priced(). `imbalance`: rows of the busiest expert rank
  // over the mean.
  const ShapePrices& of(const strategy::Strategy& strategy, double imbalance);
  // When the context's efficiency has changed.
  void clear();
  const LayerTypes& layer_types() const { return layer_types_; }

 private:
  ShapePrices price(const LayerShape& shape, int64_t num_ranks) const;

  const TrainerContext& context_;
  LayerTypes layer_types_;
  using Key =
      std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, bool, bool,
                 strategy::MoeSchedule, int64_t, double, double, strategy::AllToAll, int64_t>;
  std::map<Key, std::unique_ptr<ShapePrices>> known_;
  const ShapePrices* last_ = nullptr;
  Key last_key_{};
};

// What goes between two ranks of a pipeline for one micro-batch, at the level that it crosses.
struct StageMessage {
  CommTime moves;
  size_t level = 0;
};
StageMessage stage_message(const TrainerContext& context, const strategy::RankLayout& layout,
                           const ShapePrices& prices, int64_t rank, int64_t other);

// The mean of all messages between neighbouring virtual stages, and the one that moves the longest;
// zeros without a pipeline.
struct StageMessages {
  CommTime mean, longest;
};
StageMessages stage_messages(const TrainerContext& context, const strategy::Strategy& strategy,
                             const ShapePrices& prices);

}  // namespace piper::cost
