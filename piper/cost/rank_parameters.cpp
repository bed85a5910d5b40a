#include <piper/base/error.h>
#include <piper/collective/all_reduce_direct.h>
#include <piper/cost/rank_parameters.h>
#include <piper/model/shared_layer.h>
#include <piper/strategy/divided_states.h>
#include <piper/strategy/rank_layout.h>
#include <piper/strategy/residual_code.h>
#include <piper/strategy/state_bytes.h>
#include <piper/strategy/strategy.h>

namespace piper::cost {

using strategy::Axis;

namespace {

// A selection bias that no gradient moves lies among the parameters all the same.
int64_t dense_of_layer(const model::Model& model, int64_t layer) {
  const model::Layer& of = model.layers[static_cast<size_t>(layer)];
  const model::FeedForward& f = of.feed_forward;
  const model::LayerParameters p = model::count_layer(model, of);
  const bool has_bias = f.is_moe() && f.selection_bias && !f.selection_bias_is_parameter;
  const bool is_module = model.mtp_depth_of(layer) > 0;
  return p.dense() + (has_bias ? f.num_experts : 0) +
         (is_module ? model::mtp_join_parameters(model) : 0);
}

}  // namespace

int64_t dense_parameters(const model::Model& model, int32_t layer, int64_t pp) {
  PIPER_CHECK(layer >= -2 && layer < std::ssize(model.layers), "no such gradient buffer");
  if (layer >= 0) return dense_of_layer(model, layer);
  const model::EndParameters ends = model::count_ends(model);
  if (layer == -1) return ends.embedding;
  return ends.final_norm + ends.head + (model.tied_embeddings && pp > 1 ? ends.table : 0);
}

int64_t part_parameters(const model::Model& model, int32_t layer,
                        const strategy::Strategy& strategy) {
  const int64_t ranks = strategy.mesh.tp;
  if (layer < 0 || ranks == 1) return 0;
  return model::dealt_parameters(model, model.layers[static_cast<size_t>(layer)], ranks) / ranks;
}

int64_t whole_parameters(const model::Model& model, int32_t layer,
                         const strategy::Strategy& strategy) {
  const int64_t all = dense_parameters(model, layer, strategy::ends_apart(strategy) ? 2 : 1);
  return all - strategy.mesh.tp * part_parameters(model, layer, strategy);
}

int64_t expert_parameters(const model::Model& model, int32_t layer, int64_t ranks) {
  const model::Layer& of = model.layers[static_cast<size_t>(layer)];
  return model::count_layer(model, of).routed_experts / ranks;
}

int64_t coded_bytes(const model::Model& model, const strategy::Strategy& strategy, int32_t layer) {
  const int64_t elements = expert_parameters(model, layer, strategy.mesh.ranks_per_expert_set());
  const int64_t ranks = strategy.mesh.edp();
  const strategy::ResidualCode code =
      strategy::residual_code(strategy, elements, state_bytes(strategy.precision).weight);
  return ranks * code.bytes_of(elements / ranks);
}

int64_t moved_expert_bytes(const model::Model& model, int32_t layer,
                           strategy::Precision precision) {
  const int64_t num_experts = model.layers[static_cast<size_t>(layer)].feed_forward.num_experts;
  return expert_parameters(model, layer, num_experts) * state_bytes(precision).moved();
}

namespace {

// Every gradient buffer of a rank of the stage: f(axis over which it is summed, its parameters, its
// layer).
template <class F>
void for_each_buffer(const model::Model& model, const strategy::Strategy& strategy, int64_t stage,
                     F f) {
  const int64_t first = strategy::first_layer(strategy, stage);
  const int64_t end = first + strategy.layers_per_stage[static_cast<size_t>(stage)];
  const int64_t last = strategy.mesh.num_virtual_stages() - 1;
  const int64_t pp = strategy::ends_apart(strategy) ? 2 : 1;  // dense_parameters: one or more
  const Axis whole = strategy::axis_of_whole(strategy);
  const auto add_layers = [&](int64_t from, int64_t to) {
    for (auto layer = static_cast<int32_t>(from); layer < to; ++layer) {
      f(whole, whole_parameters(model, layer, strategy), layer);
      if (const int64_t parts = part_parameters(model, layer, strategy); parts > 0)
        f(Axis::kData, parts, layer);
      f(Axis::kExpertData, expert_parameters(model, layer, strategy.mesh.ranks_per_expert_set()),
        layer);
    }
  };
  add_layers(first, end);
  if (stage == 0) f(whole, dense_parameters(model, -1, pp), -1);
  if (stage < last) return;
  f(whole, dense_parameters(model, -2, pp), -2);
  if (strategy::ends_apart(strategy) && model.copies_embedding())
    f(whole, model.vocabulary * model.hidden, -1);
  add_layers(model.num_layers(), std::ssize(model.layers));
}

}  // namespace

RankParameters rank_parameters(const model::Model& model, const strategy::Strategy& strategy,
                               int64_t stage) {
  RankParameters shard;
  for_each_buffer(model, strategy, stage, [&](Axis axis, int64_t parameters, int32_t) {
    (axis == Axis::kExpertData                   ? shard.experts
     : axis == strategy::axis_of_whole(strategy) ? shard.dense
                                                 : shard.parts) += parameters;
  });
  return shard;
}

int64_t copied_parameters(const model::Model& model, const strategy::Strategy& strategy,
                          int64_t stage, int64_t) {
  if (strategy.redundant_experts == 0) return 0;
  int64_t copied = 0;
  for_each_buffer(model, strategy, stage, [&](Axis axis, int64_t parameters, int32_t layer) {
    if (axis != Axis::kExpertData || parameters == 0) return;
    const int64_t homes =
        model.layers[static_cast<size_t>(layer)].feed_forward.num_experts / strategy.mesh.ep;
    copied += parameters / homes * (strategy.redundant_experts / strategy.mesh.ep);
  });
  return copied;
}

namespace {

constexpr int32_t kAllLayers = -3;

// Counts the rank's own share of the buffers of divided layers, and all of the others.
template <class Divides>
int64_t held_of_divided(const model::Model& model, const strategy::Strategy& strategy,
                        int64_t stage, int64_t member, Divides divides, int32_t only = kAllLayers) {
  const strategy::RankLayout layout(strategy);
  int64_t held = 0;
  for_each_buffer(model, strategy, stage, [&](Axis axis, int64_t parameters, int32_t layer) {
    if (only != kAllLayers && layer != only) return;
    const strategy::Members group = layout.members(axis, member);
    held += divides(layer) ? collective::reduce_share((member - group.first) / group.stride,
                                                      group.size, parameters)
                                 .count
                           : parameters;
  });
  return held;
}

}  // namespace

int64_t optimized_parameters(const model::Model& model, const strategy::Strategy& strategy,
                             int64_t stage, int64_t member) {
  return held_of_divided(model, strategy, stage, member,
                         [&](int32_t) { return strategy.zero > 0; });
}

int64_t optimized_of_layer(const model::Model& model, const strategy::Strategy& strategy,
                           int64_t stage, int64_t member, int32_t layer) {
  return held_of_divided(
      model, strategy, stage, member, [&](int32_t) { return strategy.zero > 0; }, layer);
}

int64_t weight_parameters(const model::Model& model, const strategy::Strategy& strategy,
                          int64_t stage, int64_t member) {
  int64_t held =
      held_of_divided(model, strategy, stage, member, [&](int32_t) { return strategy.zero == 3; });
  if (!strategy::compresses_experts(strategy)) return held;
  const strategy::RankLayout layout(strategy);
  for_each_buffer(model, strategy, stage, [&](Axis axis, int64_t parameters, int32_t) {
    if (axis == Axis::kExpertData) held += parameters / layout.size(axis);
  });
  return held;
}

int64_t gradient_parameters(const model::Model& model, const strategy::Strategy& strategy,
                            int64_t stage, int64_t member) {
  return held_of_divided(model, strategy, stage, member, [&](int32_t layer) {
    return strategy::divides_gradients(strategy, model, layer);
  });
}

}  // namespace piper::cost
