#include <piper/base/error.h>
#include <piper/collective/all_reduce_direct.h>
#include <piper/cost/bubble.h>
#include <piper/cost/copied_experts.h>
#include <piper/cost/exchange_time.h>
#include <piper/cost/executor_estimator.h>
#include <piper/cost/host_link.h>
#include <piper/cost/outside_measured.h>
#include <piper/cost/pipeline_simulator.h>
#include <piper/cost/rank_parameters.h>
#include <piper/cost/segment_time.h>
#include <piper/cost/sent_bytes.h>
#include <piper/cost/walked_memory.h>
#include <piper/schedule/rank_chunks.h>
#include <piper/schedule/step_statistics.h>
#include <piper/strategy/rank_layout.h>
#include <piper/strategy/residual_code.h>
#include <piper/strategy/state_bytes.h>

#include <algorithm>
#include <functional>
#include <numeric>

namespace piper::cost {
namespace {

using strategy::Axis;
using strategy::Strategy;

// Ranks on the fullest node.
int64_t ranks_per_node(const cluster::Cluster& cluster, const Strategy& s) {
  return std::min(cluster.devices_per_node(), s.mesh.world());
}

// Where ranks share cores, a group that meets at every exchange, or around every block, computes in
// rounds: all of its members must have had a core before any goes on.
double rounds(const cluster::Cluster& cluster, const Strategy& s) {
  const int64_t meets = std::max(s.mesh.ranks_per_expert_set(), s.mesh.ranks_per_sequence());
  if (cluster.cores_per_node == 0 || meets == 1) return 1;
  const int64_t together = std::min(meets, ranks_per_node(cluster, s));
  const int64_t rounds = (together + cluster.cores_per_node - 1) / cluster.cores_per_node;
  return static_cast<double>(rounds);
}

// Where a virtual stage lies.
int64_t rank_of(const Strategy& s, int64_t stage) {
  return schedule::rank_of_stage(s.schedule, s.mesh.pp, stage);
}
strategy::Recompute recompute_of(const Strategy& s, int64_t stage) {
  return s.recompute_of(rank_of(s, stage));
}

// The group of the first member of a stage.
Group group_of_stage(const strategy::RankLayout& layout, strategy::Axis axis, int64_t stage) {
  return cost::group_of(layout, axis, layout.rank(stage, 0));
}

// The head and the modules of multi-token prediction behind it, forward and back
// (schedule/heads.h).
template <class LayerOf>
void walk_heads(const EndCost& ends, LayerOf layer, StageWalk& walk) {
  walk.head_forward(ends.head);
  for (const HeadCost& module : ends.modules) {
    walk.join_forward(module);
    walk.layer_forward(layer(module.layer));
    walk.head_forward(module);
  }
  const std::vector<HeadCost>& modules = ends.modules;
  for (size_t i = modules.size();; --i) {
    const HeadCost& head = i > 0 ? modules[i - 1] : ends.head;
    walk.head_backward(head, i < modules.size());
    if (i < modules.size()) walk.join_backward(modules[i], head);
    if (i == 0) return;
    walk.layer_backward(layer(head.layer));
  }
}

}  // namespace

ExecutorEstimator::ExecutorEstimator(const model::Model& model, const cluster::Cluster& cluster,
                                     strategy::Precision precision, int64_t sequence,
                                     const ExpertLoad* load)
    : model_(model),
      cluster_(cluster),
      precision_(precision),
      sequence_(sequence),
      load_(load),
      costs_(model, cluster, precision, sequence, load),
      embedding_parameters_(dense_parameters(model, -1, 1)),
      head_parameters_(dense_parameters(model, -2, 1)),
      tied_parameters_(model.shares_embedding() ? model.vocabulary * model.hidden : 0) {
  compute_of(cluster, precision);  // complains when it is not there
  for (size_t type = 0; type < costs_.num_types(); ++type) {
    const int32_t layer = costs_.representative(type);
    type_parameters_.push_back(
        {dense_parameters(model, layer, 1), expert_parameters(model, layer, 1)});
  }
  // Per parameter, from a large number of them: the curves by working set are flat there.
  constexpr double kMany = 1e9;
  norm_per_parameter_ =
      update_seconds(schedule::SegmentKind::kGradientNorm, kMany, cluster, precision) / kMany;
  keep_per_parameter_ =
      update_seconds(schedule::SegmentKind::kKeepGradients, kMany, cluster, precision) / kMany;
  optimizer_per_parameter_ =
      update_seconds(schedule::SegmentKind::kOptimizer, kMany, cluster, precision) / kMany;
}

template <class F>
void ExecutorEstimator::for_each_buffer(const Strategy& s, int64_t index, int64_t first_layer,
                                        F f) const {
  const Axis whole = strategy::axis_of_whole(s);
  const auto add_layers = [&](int64_t from, int64_t until) {
    for (int64_t layer = from; layer < until; ++layer) {
      const RankParameters held = parameters(s, static_cast<int32_t>(layer));
      f(whole, held.dense);
      if (held.parts > 0) f(Axis::kData, held.parts);
      f(Axis::kExpertData, held.experts);
    }
  };
  add_layers(first_layer, first_layer + s.layers_per_stage[static_cast<size_t>(index)]);
  if (index == 0) f(whole, embedding_parameters_);
  if (index < s.mesh.num_virtual_stages() - 1) return;
  add_layers(model_.num_layers(), std::ssize(model_.layers));
  const int64_t table = strategy::ends_apart(s) ? tied_parameters_ : 0;
  f(whole, head_parameters_ + (model_.tied_embeddings ? table : 0));
  if (!model_.tied_embeddings) f(whole, table);
}

RankParameters ExecutorEstimator::parameters(const Strategy& s, int32_t layer) const {
  const TypeParameters& p = type_parameters_[costs_.type_of(layer)];
  const int64_t parts = part_parameters(model_, layer, s);
  return {.dense = p.dense - s.mesh.tp * parts,
          .parts = parts,
          .experts = p.experts / s.mesh.ranks_per_expert_set()};
}

RankParameters ExecutorEstimator::parameters(const Strategy& s, int64_t index,
                                             int64_t first_layer) const {
  RankParameters held;
  for_each_buffer(s, index, first_layer, [&](Axis axis, int64_t parameters) {
    (axis == Axis::kExpertData            ? held.experts
     : axis == strategy::axis_of_whole(s) ? held.dense
                                          : held.parts) += parameters;
  });
  return held;
}

int64_t ExecutorEstimator::optimized(const Strategy& s, int64_t index, int64_t first_layer) const {
  if (s.zero == 0) return parameters(s, index, first_layer).total();
  const strategy::RankLayout layout(s);
  int64_t own = 0;
  for_each_buffer(s, index, first_layer, [&](Axis axis, int64_t parameters) {
    own += collective::reduce_share(0, layout.size(axis), parameters).count;
  });
  return own;
}

void ExecutorEstimator::add_layer(const Strategy& s, int64_t stage_index, int32_t index,
                                  Stage& stage) {
  const LayerCost& layer = costs_.layer(costs_.type_of(index), s);
  const RecomputeCost& again = layer.with(recompute_of(s, stage_index));
  stage.forward += layer.forward;
  stage.backward += layer.backward;
  stage.backward_weights += layer.backward_weights;
  stage.divided_compute += again.divided_compute;
  stage.divided_exchange += again.divided_exchange;
  stage.pair_saves += again.pair_saves;
  stage.pair_ends = std::max(stage.pair_ends, again.pair_ends);
  stage.exchange_forward += layer.exchange_forward;
  stage.exchange_backward += again.exchange;
  stage.recompute += again.compute;
  stage.recompute_ahead = again.ahead;  // of the last layer, which comes first
  if (index < model_.num_layers())
    stage.kept_bytes += static_cast<double>(again.memory.kept.total());
}

ExecutorEstimator::Stage ExecutorEstimator::layers_of_stage(const Strategy& s, int64_t index,
                                                            int64_t first_layer) {
  Stage stage;
  const int64_t end = first_layer + s.layers_per_stage[static_cast<size_t>(index)];
  for (int64_t i = first_layer; i < end; ++i) add_layer(s, index, static_cast<int32_t>(i), stage);
  const EndCost& ends = costs_.ends(s);
  if (index == 0) {
    stage.forward += ends.embedding_forward;
    stage.backward += ends.embedding_backward;
    stage.backward_weights += ends.embedding_backward;
  }
  if (index == s.mesh.num_virtual_stages() - 1) {
    stage.forward += ends.head.forward;
    stage.backward += ends.head.backward;
    stage.exchange_backward += ends.head.gather;
    for (const HeadCost& module : ends.modules) {
      add_layer(s, index, module.layer, stage);
      stage.forward += module.forward;
      stage.backward += module.backward;
      stage.backward_weights += module.backward_weights;
      stage.divided_compute += module.divided_compute;
      stage.exchange_backward += module.gather;
    }
  }
  return stage;
}

ExecutorEstimator::Stage ExecutorEstimator::stage(const Strategy& s, int64_t index,
                                                  int64_t first_layer) {
  Stage stage = layers_of_stage(s, index, first_layer);
  price_update(s, index, first_layer, stage);
  return stage;
}

// In the order in which a stage computes them: the ends of the model, the layers from the last to
// the first.
std::vector<BackwardTurn> ExecutorEstimator::backward_turns(const Strategy& s, int64_t index,
                                                            int64_t first_layer) {
  const auto gradient = static_cast<double>(state_bytes(precision_).gradient);
  const strategy::RankLayout layout(s);
  const int64_t rank = rank_of(s, index);
  const auto moved = [&](Axis axis, int64_t parameters, bool in_full = false) {
    CommTime moves = all_reduce_moves(cluster_, group_of_stage(layout, axis, rank),
                                      gradient * static_cast<double>(parameters), s.reduction);
    if (s.zero > 0 && !in_full) {  // scattered, not gathered
      moves.latency /= 2;
      moves.transfer /= 2;
    }
    return moves;
  };
  const bool sums_ends = model_.shares_embedding() && strategy::ends_apart(s);
  // What a rank holds whole, and its parts of what it shares with others.
  const auto dense = [&](const RankParameters& held) {
    CommTime moves = moved(strategy::axis_of_whole(s), held.dense);
    if (held.parts > 0 && s.mesh.num_replicas() > 1) {
      const CommTime more = moved(Axis::kData, held.parts);
      moves.latency += more.latency;
      moves.transfer += more.transfer;
    }
    return moves;
  };
  const auto ends_table = [&](int64_t parameters) {
    return moved(strategy::axis_of_whole(s), parameters, sums_ends);
  };
  std::vector<BackwardTurn> turns;
  size_t known_type = costs_.num_types();
  BackwardTurn known;
  const auto add_layer = [&](int32_t layer) {
    const size_t type = costs_.type_of(layer);
    if (type != known_type) {
      const LayerCost& cost = costs_.layer(type, s);
      const RecomputeCost& again = cost.with(recompute_of(s, index));
      const RankParameters held = parameters(s, layer);
      known = {.compute = cost.backward + again.compute,
               .exchange = {.latency = again.exchange * (1 - cost.moving_part),
                            .transfer = again.exchange * cost.moving_part},
               .dense = dense(held),
               .experts = moved(Axis::kExpertData, held.experts)};
      known.experts.latency += copied_seconds(s, index, layer, true);
      known_type = type;
    }
    turns.push_back(known);
  };
  const EndCost& ends = costs_.ends(s);
  if (index == s.mesh.num_virtual_stages() - 1) {
    for (size_t i = ends.modules.size(); i-- > 0;) {
      turns.push_back({.compute = ends.modules[i].backward,
                       .exchange = {.latency = 0, .transfer = ends.modules[i].gather}});
      add_layer(ends.modules[i].layer);
    }
    turns.push_back(
        {.compute = ends.head.backward,
         .exchange = {.latency = 0, .transfer = ends.head.gather},
         .dense = ends_table(head_parameters_ + (strategy::ends_apart(s) ? tied_parameters_ : 0))});
  }
  const int64_t end = first_layer + s.layers_per_stage[static_cast<size_t>(index)];
  for (int64_t i = end; i-- > first_layer;) add_layer(static_cast<int32_t>(i));
  if (index == 0)
    turns.push_back(
        {.compute = ends.embedding_backward, .dense = ends_table(embedding_parameters_)});
  return turns;
}

double ExecutorEstimator::copied_seconds(const Strategy& s, int64_t index, int32_t layer,
                                         bool homeward) const {
  const model::FeedForward& net = model_.layers[static_cast<size_t>(layer)].feed_forward;
  if (s.redundant_experts == 0 || !net.is_moe()) return 0;
  const balance::ExpertPlacement placement =
      balance::ExpertPlacement::plain(net.num_experts, s.mesh.ep, s.redundant_experts);
  const strategy::RankLayout layout(s);
  return cost::copied_seconds(cluster_,
                              layout.group(Axis::kExpert, layout.rank(rank_of(s, index), 0)),
                              copied_bytes(model_, s, layer, placement, homeward));
}

// Reductions start layer by layer, from the last to the first, as the last backward leaves them.
void ExecutorEstimator::price_update(const Strategy& s, int64_t index, int64_t first_layer,
                                     Stage& stage) {
  const strategy::RankLayout layout(s);
  const int64_t rank = rank_of(s, index);
  if (layout.num_members() > 1) {
    const Group expert_group = group_of_stage(layout, strategy::Axis::kExpert, rank);
    LastBackwardNeeds needs{
        .dense = all_reduce_needs(
            cluster_, group_of_stage(layout, strategy::axis_of_whole(s), rank), s.reduction),
        .experts = all_reduce_needs(
            cluster_, group_of_stage(layout, strategy::Axis::kExpertData, rank), s.reduction)};
    if (is_measured_all_to_all(cluster_, expert_group))
      needs.exchange = {{1}};
    else if (s.mesh.ep > 1)
      needs.exchange = level_needs(cluster_, even_traffic(cluster_, expert_group, 0, 1));
    CommTime message;
    if (index > 0) {
      const auto bytes = static_cast<double>(costs_.ends(s).hidden_bytes);
      Traffic traffic;
      traffic.add(cluster_.common_level(layout.rank(rank, 0).value,
                                        layout.rank(rank_of(s, index - 1), 0).value),
                  bytes);
      needs.message = level_needs(cluster_, traffic);
      for (size_t level = 0; level < cluster_.levels.size(); ++level)
        message.transfer = std::max(message.transfer, busy_seconds(cluster_, traffic, level));
    }
    const LastBackward last =
        last_backward(cluster_.levels.size(), needs, backward_turns(s, index, first_layer), message,
                      s.reduction_start);
    stage.reductions = last.exposed;
    stage.slowed = last.slowed;
    stage.message_slowed = last.message;
  }
  if (s.zero >= 2) price_scattered(s, index, first_layer, stage);
  const bool is_end = index == 0 || index == s.mesh.num_virtual_stages() - 1;
  if (model_.shares_embedding() && strategy::ends_apart(s) && is_end)
    stage.reductions += all_reduce_seconds(
        cluster_, {.first = 0, .stride = layout.rank(s.mesh.pp - 1, 0).value, .size = 2},
        static_cast<double>(state_bytes(precision_).gradient) *
            static_cast<double>(tied_parameters_));
  const RankParameters held = parameters(s, index, first_layer);
  stage.norm = held.of_norm(s.mesh) * norm_per_parameter_;
  stage.optimizer =
      static_cast<double>(optimized(s, index, first_layer)) * optimizer_per_parameter_;
  if (!strategy::offloads_optimizer(s.offload))
    stage.optimizer += residuals_found_seconds(cluster_, s, held.experts);
  if (s.zero == 0 && s.redundant_experts == 0) return;
  if (s.zero == 3) return price_gathered(s, index, first_layer, stage);
  // A layer's forward waits for its weights, which arrive one layer after the other.
  const auto weight = static_cast<double>(state_bytes(precision_).weight);
  const auto gather = [&](Axis axis, int64_t parameters) {
    if (s.zero == 0) return 0.0;
    return all_gather_seconds(cluster_, group_of_stage(layout, axis, rank),
                              weight * static_cast<double>(parameters), s.reduction);
  };
  const auto gather_experts = [&](int64_t parameters, int32_t layer) {
    if (!strategy::compresses_experts(s) || parameters == 0)
      return gather(Axis::kExpertData, parameters);
    return all_gather_seconds(cluster_, group_of_stage(layout, Axis::kExpertData, rank),
                              static_cast<double>(coded_bytes(model_, s, layer)), s.reduction) +
           residuals_put_seconds(cluster_, s, parameters) +
           (strategy::offloads_optimizer(s.offload)
                ? residuals_found_seconds(cluster_, s, parameters)
                : 0);
  };
  const Axis whole = strategy::axis_of_whole(s);
  double gathered = 0, computed = 0, compute = 0;
  const auto forward = [&](double gathers, double seconds) {
    gathered += gathers;
    computed = std::max(computed, gathered) + seconds;
    compute += seconds;
  };
  const auto forward_of_layer = [&](int64_t i) {
    const size_t type = costs_.type_of(static_cast<int32_t>(i));
    const LayerCost& cost = costs_.layer(type, s);
    const RankParameters held = parameters(s, static_cast<int32_t>(i));
    forward(gather(whole, held.dense) + gather(Axis::kData, held.parts) +
                gather_experts(held.experts, static_cast<int32_t>(i)) +
                copied_seconds(s, index, static_cast<int32_t>(i), false),
            cost.forward + cost.exchange_forward);
  };
  const EndCost& ends = costs_.ends(s);
  if (index == 0) forward(gather(whole, embedding_parameters_), ends.embedding_forward);
  const int64_t end = first_layer + s.layers_per_stage[static_cast<size_t>(index)];
  for (int64_t i = first_layer; i < end; ++i) forward_of_layer(i);
  if (index == s.mesh.num_virtual_stages() - 1) {
    forward(gather(whole, head_parameters_ + (strategy::ends_apart(s) ? tied_parameters_ : 0)),
            ends.head.forward);
    for (const HeadCost& module : ends.modules) {
      forward_of_layer(module.layer);
      forward(0, module.forward);
    }
  }
  stage.gathers = index == 0 ? computed - compute : gathered;
}

// What is left of them behind a backward travels beside the first layer that is computed next.
void ExecutorEstimator::price_scattered(const Strategy& s, int64_t index, int64_t first_layer,
                                        Stage& stage) const {
  const strategy::RankLayout layout(s);
  int64_t kept = 0;
  for_each_buffer(s, index, first_layer, [&](Axis axis, int64_t parameters) {
    if (layout.size(axis) > 1)
      kept += collective::reduce_share(0, layout.size(axis), parameters).count;
  });
  const double keeps = static_cast<double>(kept) * keep_per_parameter_;
  const auto num_layers =
      static_cast<double>(std::max<int64_t>(1, s.layers_per_stage[static_cast<size_t>(index)]));
  // The layer that a backward ends with is kept behind the message to the stage before: beside the
  // next micro-batch, and that of the last one behind its reduce-scatter.
  const double others = 1 - 1 / static_cast<double>(s.num_micro_batches);
  const double behind = keeps / num_layers;
  stage.backward += keeps - (1 - others) * behind;
  stage.backward_weights += keeps - (1 - others) * behind;
  const double beside = (stage.forward + stage.exchange_forward) / num_layers;
  // Behind the last one nothing is computed: that rest is in `reductions`, and what slowed it
  // delays those before it (delay_last_backwards).
  stage.exchange_backward += others * (stage.slowed + std::max(0.0, stage.reductions - beside));
  stage.reductions += behind;
}

namespace {

// A layer or an end in a pass: its weights are gathered from the moment on at which what it follows
// begins.
struct GatheredTurn {
  double gather = 0, compute = 0;
};

// By how much a pass outlasts its compute, when its first gather starts `ahead` before it.
double exposed_gathers(const std::vector<GatheredTurn>& turns, double ahead) {
  double gathered = -ahead, begins = 0, ends = 0, compute = 0;
  for (size_t i = 0; i < turns.size(); ++i) {
    // From where the turn before began; and one after the other.
    const double starts = i == 0 ? -ahead : std::max(gathered, begins);
    gathered = starts + turns[i].gather;
    begins = std::max(ends, gathered);
    ends = begins + turns[i].compute;
    compute += turns[i].compute;
  }
  return ends - compute;
}

}  // namespace

void ExecutorEstimator::price_gathered(const Strategy& s, int64_t index, int64_t first_layer,
                                       Stage& stage) {
  const strategy::RankLayout layout(s);
  const int64_t rank = rank_of(s, index);
  const auto weight = static_cast<double>(state_bytes(precision_).weight);
  const auto gather = [&](Axis axis, int64_t parameters) {
    return all_gather_seconds(cluster_, group_of_stage(layout, axis, rank),
                              weight * static_cast<double>(parameters), s.reduction);
  };
  const Axis whole = strategy::axis_of_whole(s);
  const EndCost& ends = costs_.ends(s);
  std::vector<GatheredTurn> forward, backward;  // the latter from the end
  if (index == 0) forward.push_back({gather(whole, embedding_parameters_), ends.embedding_forward});
  const int64_t end = first_layer + s.layers_per_stage[static_cast<size_t>(index)];
  const auto add_layer = [&](int32_t layer, double embedding, bool is_kept,
                             const HeadCost& behind) {
    const LayerCost& cost = costs_.layer(costs_.type_of(layer), s);
    const RecomputeCost& again = cost.with(recompute_of(s, index));
    const RankParameters held = parameters(s, layer);
    const double seconds = gather(whole, held.dense) + gather(Axis::kData, held.parts) +
                           gather(Axis::kExpertData, held.experts);
    forward.push_back({seconds + embedding, cost.forward + cost.exchange_forward + behind.forward});
    backward.push_back({seconds + (is_kept ? 0 : embedding),
                        cost.backward + again.compute + again.exchange + behind.backward});
  };
  for (int64_t i = first_layer; i < end; ++i) add_layer(static_cast<int32_t>(i), 0, false, {});
  // A head keeps its weights from its forward to its backward.
  const bool is_last = index == s.mesh.num_virtual_stages() - 1;
  if (is_last) {
    const int64_t table = model_.tied_embeddings ? embedding_parameters_ : 0;
    forward.push_back({gather(whole, head_parameters_ + table), ends.head.forward});
    backward.push_back({0, ends.head.backward});
    // A module computes with the embedding as well, where the head's table is another one; in the
    // backward the next one takes it over.
    const double embedding = model_.tied_embeddings ? 0 : gather(whole, embedding_parameters_);
    for (const HeadCost& module : ends.modules)
      add_layer(module.layer, embedding, &module != &ends.modules.back(), module);
  }
  std::ranges::reverse(backward);
  if (forward.empty()) return;
  // The first gather of a pass travels beside the last layer of the pass before, unless that was
  // the same layer's, as where forwards and backwards take turns: then beside the message.
  const bool alternates = s.schedule != strategy::PipelineSchedule::kGPipe;
  const auto message = [&](bool arrives, int64_t from) {
    if (!arrives) return 0.0;
    return point_to_point_seconds(cluster_, layout.rank(rank_of(s, from), 0).value,
                                  layout.rank(rank, 0).value,
                                  static_cast<double>(ends.hidden_bytes));
  };
  const double before_forward = alternates ? message(index > 0, index - 1) : forward.back().compute,
               before_backward =
                   alternates ? message(!is_last, index + 1) : backward.back().compute;
  // While the pipeline fills and drains, what is waited for comes before the weights are missed;
  // and the first forward's are `gathers`.
  const int64_t waiting = s.mesh.pp - 1 - rank;
  const auto part = [&](int64_t hidden) {
    return 1 - static_cast<double>(std::min(s.num_micro_batches, hidden)) /
                   static_cast<double>(s.num_micro_batches);
  };
  stage.exchange_forward +=
      part(std::max<int64_t>(1, waiting)) * exposed_gathers(forward, before_forward);
  stage.exchange_backward += part(waiting) * exposed_gathers(backward, before_backward);
  stage.gathers = forward.front().gather;
  // Copies of experts come once a step, behind the gather of their homes.
  for (int64_t i = first_layer; i < end; ++i)
    stage.gathers += copied_seconds(s, index, static_cast<int32_t>(i), false);
  if (!is_last) return;
  for (const HeadCost& module : ends.modules)
    stage.gathers += copied_seconds(s, index, module.layer, false);
}

// The last backwards follow one another up the pipeline: what slows one delays those before it, as
// far as they would not have waited anyway.
void ExecutorEstimator::delay_last_backwards(const std::vector<Stage>& stages,
                                             const std::vector<ChunkSeconds>& seconds,
                                             std::vector<double>& finish) {
  double late = 0;     // the message from the stage behind
  double planned = 0;  // when it would have come
  for (size_t i = stages.size(); i-- > 0;) {
    if (i + 1 < stages.size()) {
      const double needed = finish[i] - seconds[i].backward + seconds[i].ahead;
      late = std::max(0.0, late - std::max(0.0, needed - planned));
    }
    planned = finish[i] + seconds[i].send_backward;
    late += stages[i].slowed;
    finish[i] += late;
    late += stages[i].message_slowed;
  }
}

ExecutorEstimator::Stage& ExecutorEstimator::Stage::operator+=(const Stage& next) {
  // The chunk that comes first in the model is the last to finish its backwards: what it reduces is
  // exposed, and it sends the last message.
  if (forward == 0) {
    *this = next;
    return *this;
  }
  forward += next.forward;
  backward += next.backward;
  recompute += next.recompute;
  backward_weights += next.backward_weights;
  divided_compute += next.divided_compute;
  divided_exchange += next.divided_exchange;
  pair_saves += next.pair_saves;
  pair_ends = std::max(pair_ends, next.pair_ends);
  exchange_forward += next.exchange_forward;
  exchange_backward += next.exchange_backward;
  recompute_ahead += next.recompute_ahead;
  norm += next.norm;
  optimizer += next.optimizer;
  gathers += next.gathers;
  kept_bytes += next.kept_bytes;
  return *this;
}

// As schedule/state_tasks.h orders them: two layers' states are on the device, copies follow each
// other.
double ExecutorEstimator::update_from_host(const Strategy& s, int64_t pp_rank,
                                           double statistics) const {
  const double rate = host_bytes_per_second(cluster_);
  std::vector<double> copies, updates;
  for (const schedule::RankChunk& chunk : schedule::chunks_of(s, pp_rank))
    for (const int32_t layer : schedule::state_layers(model_, s, chunk)) {
      const auto parameters =
          static_cast<double>(optimized_of_layer(model_, s, chunk.stage, 0, layer));
      copies.push_back(parameters * static_cast<double>(state_bytes(precision_).optimizer) / rate);
      updates.push_back(parameters * optimizer_per_parameter_);
    }
  double link = 0, computed = statistics;
  std::vector<double> brought;
  const auto bring = [&] {
    if (brought.size() < copies.size()) brought.push_back(link += copies[brought.size()]);
  };
  bring();  // two layers' beside the statistics
  bring();
  for (size_t i = 0; i < copies.size(); ++i) {
    computed = std::max(computed, brought[i]) + updates[i];
    link = std::max(link, computed) + copies[i];
    bring();
  }
  return std::max(link, computed) - statistics;
}

bool ExecutorEstimator::has_closed_form(const Strategy& s) {
  return ends_with_whole_backwards(s) && !strategy::pairs(s.schedule);
}

bool ExecutorEstimator::ends_with_whole_backwards(const Strategy& s) {
  return s.mesh.vpp == 1 && !strategy::offloads_activations(s.offload) &&
         !strategy::splits_backward(s.schedule) && s.layers_per_stage.back() > 0 &&
         std::ranges::all_of(s.recompute_per_stage,
                             [&](strategy::Recompute r) { return r == s.recompute; });
}

std::vector<ChunkSeconds> ExecutorEstimator::pipeline(const Strategy& s,
                                                      const std::vector<Stage>& chunks) const {
  const double slower = rounds(cluster_, s);
  const strategy::RankLayout layout(s);
  const auto bytes = static_cast<double>(
      slot_bytes(model_, {schedule::SlotKind::kHidden, {schedule::SegmentKind::kEmbedding, -1}},
                 balanced_work(model_, -1, s.micro_batch_sequences, sequence_, 1,
                               element_bytes(precision_), {}, work_division(s))));
  const auto message = [&](int64_t from, int64_t to, double bytes) {
    return point_to_point_seconds(cluster_, layout.rank(rank_of(s, from), 0).value,
                                  layout.rank(rank_of(s, to), 0).value, bytes);
  };
  std::vector<ChunkSeconds> seconds;
  const auto num_chunks = std::ssize(chunks);
  for (int64_t i = 0; i < num_chunks; ++i) {
    const Stage& c = chunks[static_cast<size_t>(i)];
    const double weights = slower * c.backward_weights;
    const double whole = slower * (c.backward + c.recompute) + c.exchange_backward;
    seconds.push_back(
        {.forward = slower * c.forward + c.exchange_forward,
         .backward_input = whole - weights + slower * c.divided_compute + c.divided_exchange,
         .backward_weights = weights,
         .backward = whole,
         .ahead = i + 1 < num_chunks ? c.recompute_ahead : 0,
         .pair_saves = c.pair_saves - c.pair_ends,
         .copy = c.kept_bytes / host_bytes_per_second(cluster_)});
    ChunkSeconds& of = seconds.back();
    if (i + 1 < num_chunks) of.send_forward = message(i, i + 1, bytes);
    if (i > 0) of.send_backward = message(i, i - 1, bytes);
    const int64_t to = i > 0 ? i - 1 : i + 1;
    if (to < num_chunks) of.meets_other = message(i, to, 2 * bytes) - message(i, to, bytes);
  }
  return seconds;
}

double ExecutorEstimator::saved_by_pairs(const Strategy& s, int64_t pp_rank,
                                         const std::vector<ChunkSeconds>& chunks) {
  if (!strategy::pairs_take_turns(s)) return 0;
  const std::vector<schedule::Action> actions =
      schedule::actions(s.schedule, s.mesh.pp, pp_rank, s.num_micro_batches, s.mesh.vpp);
  const auto saves = [&](const schedule::Action& action) {
    return chunks[static_cast<size_t>(
                      schedule::virtual_stage(s.schedule, s.mesh.pp, pp_rank, action.chunk))]
        .pair_saves;
  };
  double saved = 0;
  for (size_t i = 0; i + 1 < actions.size(); ++i)
    if (actions[i].pairs_with_next) saved += std::min(saves(actions[i]), saves(actions[i + 1]));
  return saved;
}

void ExactEstimate::find_fullest() {
  for (size_t i = 0; i < memory.size(); ++i)
    if (memory[i].total() > peak_bytes) {
      peak_bytes = memory[i].total();
      fullest_stage = static_cast<int64_t>(i);
    }
}

std::vector<ExecutorEstimator::Stage> ExecutorEstimator::every_stage(
    const Strategy& s, Stage (ExecutorEstimator::*stage)(const Strategy&, int64_t, int64_t)) {
  std::vector<Stage> stages;
  int64_t first = 0;
  for (int64_t i = 0; i < s.mesh.num_virtual_stages();
       first += s.layers_per_stage[static_cast<size_t>(i++)])
    stages.push_back((this->*stage)(s, i, first));
  return stages;
}

// What is left out only adds: states to what a stage computes and waits for, offload copies. Cores
// that ranks share compute all of it in any case.
double ExecutorEstimator::seconds_without_states(const Strategy& s) {
  const std::vector<Stage> chunks = every_stage(s, &ExecutorEstimator::layers_of_stage);
  const std::vector<double> finish =
      simulators_.finish(s.schedule, s.mesh.pp, s.mesh.vpp, s.num_micro_batches,
                         pipeline(s, chunks), false, strategy::pairs_take_turns(s));
  double compute = 0;
  for (const Stage& chunk : chunks) compute += chunk.forward + chunk.backward + chunk.recompute;
  double shared = 0;
  if (const int64_t cores = cluster_.cores_per_node; cores > 0)
    shared = static_cast<double>(s.num_micro_batches * ranks_per_node(cluster_, s)) * compute /
             static_cast<double>(s.mesh.pp * cores);
  return std::max(std::ranges::max(finish), shared);
}

ExactEstimate ExecutorEstimator::exact_time(const Strategy& s) {
  PIPER_DCHECK(s.sequence == sequence_ && s.precision == precision_);
  const std::vector<Stage> chunks = every_stage(s, &ExecutorEstimator::stage);
  std::vector<Stage> stages(static_cast<size_t>(s.mesh.pp));
  for (size_t i = 0; i < chunks.size(); ++i)
    stages[static_cast<size_t>(rank_of(s, static_cast<int64_t>(i)))] += chunks[i];
  const std::vector<ChunkSeconds> seconds = pipeline(s, chunks);
  std::vector<double> finish =
      simulators_.finish(s.schedule, s.mesh.pp, s.mesh.vpp, s.num_micro_batches, seconds,
                         strategy::offloads_activations(s.offload), strategy::pairs_take_turns(s));
  if (ends_with_whole_backwards(s)) delay_last_backwards(stages, seconds, finish);

  const auto m = static_cast<double>(s.num_micro_batches);
  double until_norm = 0, optimizer = 0, compute = 0;  // compute: of one pipeline, all stages
  double longest_pass = 0;
  size_t busiest = 0;
  // DualPipeV leaves most of its backwards whole.
  const bool divides = strategy::splits_backward(s.schedule) && !strategy::pairs(s.schedule);
  const auto backward = [&](const Stage& stage) {
    return stage.backward + (divides ? stage.divided_compute : 0);
  };
  std::vector<double> busy(stages.size());  // of one micro-batch
  for (size_t i = 0; i < seconds.size(); ++i)
    busy[static_cast<size_t>(rank_of(s, static_cast<int64_t>(i)))] +=
        seconds[i].forward +
        (divides ? seconds[i].backward_input + seconds[i].backward_weights : seconds[i].backward);
  std::vector<double> saved(stages.size());  // of all, where pairs take turns
  for (size_t i = 0; i < stages.size(); ++i) {
    saved[i] = saved_by_pairs(s, static_cast<int64_t>(i), seconds);
    busy[i] -= saved[i] / m;
  }
  // A table that both ends hold is summed when both have come so far.
  const auto reduced = [&](size_t i) { return finish[i] + stages[i].reductions; };
  const double ends =
      model_.shares_embedding() ? std::max(reduced(0), reduced(stages.size() - 1)) : 0;
  for (size_t i = 0; i < stages.size(); ++i) {
    const Stage& stage = stages[i];
    const bool is_end = i == 0 || i + 1 == stages.size();
    until_norm = std::max(until_norm, std::max(reduced(i), is_end ? ends : 0) + stage.norm);
    compute +=
        m * (stage.forward + backward(stage) + stage.recompute) + stage.norm + stage.optimizer;
    longest_pass = std::max(longest_pass, busy[i]);
    if (busy[i] > busy[busiest]) busiest = i;
  }
  const Group world{.size = s.mesh.world()};
  const double statistics = all_reduce_seconds(
      cluster_, world, static_cast<double>(schedule::num_statistics(model_, s)) * sizeof(double));
  std::vector<double> updated;
  for (size_t i = 0; i < stages.size(); ++i)
    updated.push_back(strategy::offloads_optimizer(s.offload)
                          ? update_from_host(s, static_cast<int64_t>(i), statistics)
                          : stages[i].optimizer);
  optimizer = std::ranges::max(updated);

  // What the first stage waits for its weights; a later one has until its first activations arrive.
  double gathered = 0, arrival = 0;
  for (size_t i = 0; i < stages.size(); ++i) {
    gathered = std::max(gathered, stages[i].gathers - arrival);
    arrival += seconds[i].forward + seconds[i].send_forward;
  }

  ExactEstimate estimate;
  estimate.seconds = gathered + until_norm + statistics + optimizer;
  if (const int64_t cores = cluster_.cores_per_node; cores > 0) {
    const auto ranks = static_cast<double>(ranks_per_node(cluster_, s));
    const double per_rank = compute / static_cast<double>(s.mesh.pp);
    const double ways =
        std::clamp(static_cast<double>(cores) /
                       static_cast<double>(std::min<int64_t>(s.mesh.ranks_per_stage(), cores)),
                   1.0, static_cast<double>(s.mesh.pp));
    // What idles while the pipeline fills and drains: (pp - 1)(F + B) in the closed form.
    const double idle = has_closed_form(s) || s.mesh.pp == 1
                            ? longest_pass
                            : std::max(0.0, std::ranges::max(finish) - m * longest_pass) /
                                  static_cast<double>(s.mesh.pp - 1);
    // While states travel nobody computes but who updates.
    const double copying = std::max(0.0, optimizer - stages[busiest].optimizer);
    estimate.seconds = std::max(estimate.seconds, per_rank * ranks / static_cast<double>(cores) +
                                                      (ways - 1) / 2 * idle + copying);
  }
  const Stage& of = stages[busiest];
  estimate.time = {.forward = m * of.forward,
                   .backward = m * backward(of),
                   .recompute = m * of.recompute,
                   .exchange = m * (of.exchange_forward + of.exchange_backward +
                                    (divides ? of.divided_exchange : 0)) -
                               saved[busiest],
                   .reductions = of.slowed + of.reductions,
                   .update = of.norm + statistics + of.optimizer,
                   .offload = std::max(0.0, updated[busiest] - of.optimizer)};
  estimate.time.idle = std::max(0.0, estimate.seconds - estimate.time.total());
  estimate.bubble = estimate.seconds > 0 ? estimate.time.idle / estimate.seconds : 0;
  estimate.busiest_stage = static_cast<int64_t>(busiest);
  return estimate;
}

ExactEstimate ExecutorEstimator::exact(const Strategy& s) {
  ExactEstimate estimate = exact_time(s);
  estimate.memory = memory(s);
  estimate.find_fullest();
  return estimate;
}

PassSeconds ExecutorEstimator::exact_pass_seconds(const Strategy& s) {
  PassSeconds pass;
  const auto of_layer = [&](int32_t i) {
    const LayerCost& layer = costs_.layer(costs_.type_of(i), s);
    const RecomputeCost& again = layer.with(s.recompute);
    return layer.forward + layer.backward + layer.exchange_forward + again.compute + again.exchange;
  };
  for (int32_t i = 0; i < model_.num_layers(); ++i) pass.layers.push_back(of_layer(i));
  const EndCost& ends = costs_.ends(s);
  pass.embedding = ends.embedding_forward + ends.embedding_backward;
  pass.head = ends.head.forward + ends.head.backward + ends.head.gather;
  for (const HeadCost& module : ends.modules)
    pass.head += module.forward + module.backward + module.gather + of_layer(module.layer);
  return pass;
}

cluster::Cluster with_some_speed(cluster::Cluster cluster, strategy::Precision precision) {
  cluster.compute.try_emplace(strategy::name(precision),
                              cluster::Compute{.peak_flops_per_second = 1, .gemm_efficiency = 1});
  return cluster;
}

StageMemory ExecutorEstimator::state_memory(const Strategy& s, int64_t pp_rank) const {
  int64_t held = 0, own = 0, gradients = 0;
  for (const schedule::RankChunk& chunk : schedule::chunks_of(s, pp_rank)) {
    const int64_t copied = copied_parameters(model_, s, chunk.stage);
    held += weight_parameters(model_, s, chunk.stage, 0) + copied;
    gradients += copied;
    own += optimized(s, chunk.stage, chunk.first_layer);
    gradients += gradient_parameters(model_, s, chunk.stage, 0);
  }
  const strategy::StateBytes bytes = state_bytes(precision_);
  StageMemory memory{.weights = held * bytes.weight, .gradients = gradients * bytes.gradient};
  (strategy::offloads_optimizer(s.offload) ? memory.host : memory.optimizer) =
      own * bytes.optimizer;
  return memory;
}

// Walks one rank of each ep index that may be the fullest, and returns the fullest.
StageMemory ExecutorEstimator::rank_memory(const Strategy& s, int64_t pp_rank) {
  std::vector<int32_t> layers;
  for (const schedule::RankChunk& chunk : schedule::chunks_of(s, pp_rank))
    for (int32_t i = 0; i < chunk.num_layers; ++i) layers.push_back(chunk.first_layer + i);
  const StageMemory states = state_memory(s, pp_rank);
  const auto walk = [&](Rank rank, int64_t num_micro_batches) {
    Strategy walked = s;
    walked.num_micro_batches = num_micro_batches;
    walked.global_batch_sequences =
        s.global_batch_sequences / s.num_micro_batches * num_micro_batches;
    const schedule::StepGraph step = schedule::write_step(model_, walked, {rank});
    return walked_memory(
        step, step_bytes(step, model_, walked, cluster_, load_ == nullptr ? ExpertLoad{} : *load_));
  };
  const int64_t most = micro_batches_to_walk(s);
  StageMemory fullest;
  for (const int64_t ep_index : costs_.fullest_ep_indices(s, layers)) {
    const Rank rank = strategy::RankLayout(s).rank(pp_rank, ep_index);
    StageMemory memory = walk(rank, most);
    if (const int64_t more = s.num_micro_batches - most;
        more > 0 && s.schedule == strategy::PipelineSchedule::kGPipe)
      memory = with_more(walk(rank, most - 1), memory, more);
    memory.weights += states.weights;
    memory.gradients += states.gradients;
    memory.optimizer += states.optimizer;
    memory.host += states.host;
    if (memory.total() > fullest.total()) fullest = memory;
  }
  fullest.in_flight =
      (chunk_forwards_in_flight(s.schedule, s.mesh.pp, s.mesh.vpp, pp_rank, s.num_micro_batches) +
       s.mesh.vpp - 1) /
      s.mesh.vpp;
  for (const int32_t layer : layers)
    fullest.exchange_scratch =
        std::max(fullest.exchange_scratch, costs_.layer(costs_.type_of(layer), s).exchange_scratch);
  return fullest;
}

StageMemory ExecutorEstimator::stage_memory(const Strategy& s, int64_t index, int64_t first_layer) {
  std::vector<int32_t> layers;
  const int64_t own_end = first_layer + s.layers_per_stage[static_cast<size_t>(index)];
  for (int64_t i = first_layer; i < own_end; ++i) layers.push_back(static_cast<int32_t>(i));
  StageMemory fullest;
  for (const int64_t ep_index : costs_.fullest_ep_indices(s, layers)) {
    const StageMemory memory = stage_memory(s, index, first_layer, ep_index);
    if (memory.total() > fullest.total()) fullest = memory;
  }
  return fullest;
}

StageMemory ExecutorEstimator::stage_memory(const Strategy& s, int64_t index, int64_t first_layer,
                                            int64_t ep_index) {
  const EndCost& ends = costs_.ends(s);
  const int64_t end = first_layer + s.layers_per_stage[static_cast<size_t>(index)];
  const auto layer = [&](int64_t i) -> LayerMemory {
    if (!costs_.is_balanced()) return costs_.memory(static_cast<int32_t>(i), s, ep_index);
    return costs_.layer(costs_.type_of(static_cast<int32_t>(i)), s).with(s.recompute).memory;
  };
  StageWalk walk(ends.hidden_bytes);
  for (int64_t i = first_layer; i < end; ++i) walk.layer_forward(layer(i));
  const bool last = index == s.mesh.pp - 1;
  if (last)
    walk_heads(ends, layer, walk);
  else
    walk.transfer(ends.hidden_bytes);
  for (int64_t i = end; i-- > first_layer;) walk.layer_backward(layer(i));

  const strategy::StateBytes bytes = state_bytes(precision_);
  const RankParameters own = parameters(s, index, first_layer);
  const int64_t held = own.total() + copied_parameters(model_, s, index);
  // Its share of experts as it is, beside what all were told.
  const int64_t apart = strategy::compresses_experts(s) ? own.experts / s.mesh.edp() : 0;
  StageMemory memory{
      .weights = (held + apart) * bytes.weight,
      .gradients = held * bytes.gradient,
      .optimizer = optimized(s, index, first_layer) * bytes.optimizer,
      .working = walk.walked().peak,
      .in_flight = micro_batches_in_flight(s.schedule, s.mesh.pp, index, s.num_micro_batches)};
  memory.activations = walk.kept() * (memory.in_flight - 1);
  for (int64_t i = first_layer; i < end; ++i)
    memory.exchange_scratch =
        std::max(memory.exchange_scratch,
                 costs_.layer(costs_.type_of(static_cast<int32_t>(i)), s).exchange_scratch);
  if (s.mesh.pp > 1) memory.messages = (index > 0 && !last ? 3 : 2) * ends.hidden_bytes;
  return memory;
}

// A search asks for the bytes of a strategy first, then for its seconds, and for these with its
// sums of gradients at other times, which change no bytes where gradients are whole. Nor does it
// change them which ranks are neighbours, unless sums go by nodes.
std::vector<StageMemory> ExecutorEstimator::memory(const Strategy& s, double most_bytes) {
  Strategy asked = s;
  asked.predicted = nullptr;
  if (s.zero < 2) asked.reduction_start = {};
  if (s.reduction == strategy::Reduction::kDirect) asked.placement = {};
  const auto is_above = [&](const StageMemory& stage) {
    return static_cast<double>(stage.total()) > most_bytes;
  };
  const bool is_known =
      last_memory_ && last_memory_->of == asked &&
      (last_memory_->is_whole || std::ranges::any_of(last_memory_->stages, is_above));
  if (!is_known) {
    std::vector<StageMemory> stages = find_memory(s, most_bytes);
    const bool is_whole = std::ranges::none_of(stages, is_above);
    last_memory_.emplace(std::move(asked), std::move(stages), is_whole);
  }
  return last_memory_->stages;
}

std::vector<int64_t> ExecutorEstimator::fullest_first(const Strategy& s) {
  const std::vector<double> least = least_bytes_by_rank(s);
  std::vector<int64_t> ranks(least.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  std::ranges::stable_sort(ranks, std::greater(),
                           [&](int64_t rank) { return least[static_cast<size_t>(rank)]; });
  return ranks;
}

std::vector<StageMemory> ExecutorEstimator::find_memory(const Strategy& s, double most_bytes) {
  std::vector<StageMemory> stages;
  // Buffers of divided gradients live from one task to another: the walk follows them.
  // And so do layers' states that come from the host.
  if (!has_closed_form(s) || s.zero >= 2 || strategy::offloads_optimizer(s.offload)) {
    stages.resize(static_cast<size_t>(s.mesh.pp));
    for (const int64_t rank : fullest_first(s)) {
      StageMemory& stage = stages[static_cast<size_t>(rank)];
      stage = rank_memory(s, rank);
      if (static_cast<double>(stage.total()) > most_bytes) break;
    }
    return stages;
  }
  int64_t first = 0;
  for (int64_t i = 0; i < s.mesh.pp; first += s.layers_per_stage[static_cast<size_t>(i++)])
    stages.push_back(stage_memory(s, i, first));
  return stages;
}

Estimate to_estimate(const ExactEstimate& exact) {
  const StepBreakdown& t = exact.time;
  Estimate e{.seconds = exact.seconds,
             .time = {.compute = t.forward + t.backward,
                      .recompute = t.recompute,
                      .exchange = t.exchange,
                      .bubble = t.idle,
                      .reductions = t.reductions,
                      .update = t.update,
                      .offload = t.offload},
             .peak_bytes = static_cast<double>(exact.peak_bytes),
             .fullest_stage = exact.fullest_stage,
             .busiest_stage = exact.busiest_stage,
             .exact = std::make_shared<const ExactEstimate>(exact)};
  const StageMemory& m = exact.memory[static_cast<size_t>(exact.fullest_stage)];
  const auto scratch = static_cast<double>(m.exchange_scratch);
  e.fullest = {.weights_and_gradients = static_cast<double>(m.weights + m.gradients),
               .optimizer = static_cast<double>(m.optimizer),
               .activations = static_cast<double>(m.activations.total()),
               .working = static_cast<double>(m.working + m.messages) - scratch,
               .exchange = scratch};
  for (const StageMemory& stage : exact.memory)
    e.states_bytes = std::max(e.states_bytes, static_cast<double>(stage.state()));
  return e;
}

struct ExecutorEstimator::Loaded {
  Loaded(const ExecutorEstimator& of, ExpertLoad drawn)
      : load(std::move(drawn)),
        estimator(of.model_, of.cluster_, of.precision_, of.sequence_, &load) {}
  ExpertLoad load;
  ExecutorEstimator estimator;
};

ExecutorEstimator::~ExecutorEstimator() = default;

ExecutorEstimator::Loaded& ExecutorEstimator::loaded(int64_t ep, double imbalance) {
  std::unique_ptr<Loaded>& found = loaded_[{ep, imbalance}];
  if (found) return *found;
  found = std::make_unique<Loaded>(*this, busy_rank_load(model_, ep, imbalance));
  return *found;
}

ExecutorEstimator& ExecutorEstimator::at(const Strategy& s, double imbalance) {
  return imbalance == 1 || s.mesh.ep == 1 ? *this : loaded(s.mesh.ep, imbalance).estimator;
}

Estimate ExecutorEstimator::estimate(const Strategy& s, double imbalance, double, double) {
  return to_estimate(at(s, imbalance).exact(s));
}

Estimate ExecutorEstimator::bytes(const Strategy& s, double imbalance, double most_bytes) {
  ExactEstimate e{.memory = at(s, imbalance).memory(s, most_bytes)};
  e.find_fullest();
  return to_estimate(e);
}

double ExecutorEstimator::seconds(const Strategy& s, double imbalance) {
  return at(s, imbalance).exact_time(s).seconds;
}

double ExecutorEstimator::bound_of_split(const Strategy& s, double imbalance) {
  return at(s, imbalance).seconds_without_states(s);
}

double ExecutorEstimator::least_seconds(const Strategy& s, double imbalance) {
  const ExactEstimate e = at(s, imbalance).exact_time(s);
  // Divided gradients are summed as they are ready.
  return s.zero < 2 ? e.seconds - e.time.reductions : e.seconds;
}

// States, and beside them what is kept of all micro-batches in flight, or what a layer needs while
// it runs. A backward in two parts, or in turns with a forward, frees some of what is kept
// meanwhile: there only what a layer needs counts. Under an uneven load another rank may keep more
// than that which takes longest: there only the states count.
std::vector<double> ExecutorEstimator::least_bytes_by_rank(const Strategy& s) {
  const bool is_even = costs_.is_balanced();
  const bool has_whole_backwards =
      !strategy::splits_backward(s.schedule) && !strategy::pairs(s.schedule);
  const bool keeps = is_even && has_whole_backwards && !strategy::offloads_activations(s.offload);
  const auto ranks = static_cast<size_t>(s.mesh.pp);
  std::vector<double> kept(ranks, std::numeric_limits<double>::infinity());
  if (keeps) {
    int64_t index = 0;
    for (const Stage& chunk : every_stage(s, &ExecutorEstimator::layers_of_stage)) {
      double& least = kept[static_cast<size_t>(rank_of(s, index++))];
      least = std::min(least, chunk.kept_bytes);
    }
  }
  // Without the exchange's scratch: where only that is in the way, a plain exchange is tried.
  const auto working = [&](int32_t layer, int64_t stage) {
    const LayerCost& cost = costs_.layer(costs_.type_of(layer), s);
    const LayerMemory& memory = cost.with(recompute_of(s, stage)).memory;
    const int64_t peak =
        std::max(memory.forward.peak, has_whole_backwards ? memory.backward.peak : 0) -
        cost.exchange_scratch;
    // Divided states: while experts run backwards, their gradients and, gathered, their weights.
    if (s.zero < 2 || s.mesh.edp() == 1 ||
        !model_.layers[static_cast<size_t>(layer)].feed_forward.is_moe())
      return peak;
    const auto buffer = [&](schedule::SegmentKind kind) {
      return reduced_buffer({.kind = kind, .layer = layer}, model_, s).bytes();
    };
    return std::max(
        peak, buffer(schedule::SegmentKind::kExpertGradients) +
                  (s.zero > 2 && has_whole_backwards ? buffer(schedule::SegmentKind::kExpertWeights)
                                                     : 0));
  };
  const std::span<const int64_t> in_flight =
      simulators_
          .of(s.schedule, s.mesh.pp, s.mesh.vpp,
              s.schedule == strategy::PipelineSchedule::kGPipe ? s.num_micro_batches
                                                               : micro_batches_to_walk(s))
          .peak_chunk_forwards();
  std::vector<double> least(ranks);
  for (size_t rank = 0; rank < ranks; ++rank) {
    double beside = keeps ? static_cast<double>(in_flight[rank]) * kept[rank] : 0;
    if (is_even)
      for (const schedule::RankChunk& chunk : schedule::chunks_of(s, static_cast<int64_t>(rank)))
        for (int32_t i = 0; i < chunk.num_layers; ++i)
          beside =
              std::max(beside, static_cast<double>(working(chunk.first_layer + i, chunk.stage)));
    const auto states = static_cast<double>(state_memory(s, static_cast<int64_t>(rank)).state());
    least[rank] = states + beside;
  }
  return least;
}

double ExecutorEstimator::least_bytes(const Strategy& s, double imbalance) {
  return std::ranges::max(at(s, imbalance).least_bytes_by_rank(s));
}

// A pipeline of equal stages, nothing recomputed, as the strategy's exchange has it.
double ExecutorEstimator::likely_seconds(const Strategy& s, double imbalance) {
  if (imbalance != 1 && s.mesh.ep > 1) return at(s, imbalance).likely_seconds(s, 1);
  const EndCost& ends = costs_.ends(s);
  double compute = ends.embedding_forward + ends.embedding_backward + ends.head.forward +
                   ends.head.backward,
         exchange = 0;
  for (int32_t i = 0; i < model_.num_layers(); ++i) {
    const LayerCost& layer = costs_.layer(costs_.type_of(i), s);
    compute += layer.forward + layer.backward;
    exchange += layer.exchange_forward + layer.with(strategy::Recompute::kNone).exchange;
  }
  return static_cast<double>(s.num_micro_batches + s.mesh.pp - 1) *
         (rounds(cluster_, s) * compute + exchange) / static_cast<double>(s.mesh.pp);
}

PassSeconds ExecutorEstimator::pass_seconds(const Strategy& s, double imbalance) {
  return at(s, imbalance).exact_pass_seconds(s);
}

SampledEstimate ExecutorEstimator::sampled(const Strategy& s,
                                           const std::vector<ExpertLoad>& loads) const {
  SampledEstimate sampled;
  for (const ExpertLoad& load : loads) {
    const ExactEstimate e =
        ExecutorEstimator(model_, cluster_, precision_, sequence_, &load).exact(s);
    sampled.seconds.push_back(e.seconds);
    sampled.peak_bytes.push_back(static_cast<double>(e.peak_bytes));
  }
  return sampled;
}

PricedStep ExecutorEstimator::priced_step(const Strategy& s, const std::vector<Rank>& ranks,
                                          double imbalance) {
  PricedStep priced{schedule::write_step(model_, s, ranks), {}};
  const ExpertLoad* load = at(s, imbalance).load_;
  priced.prices = price(priced.step, model_, s, cluster_, load == nullptr ? ExpertLoad{} : *load);
  return priced;
}

std::vector<cluster::Outside> ExecutorEstimator::outside_measured(
    const std::vector<Strategy>& strategies, double) const {
  return cost::outside_measured(model_, cluster_, strategies);
}

}  // namespace piper::cost
