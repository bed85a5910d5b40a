#include <piper/base/error.h>
#include <piper/cost/exchange_time.h>
#include <piper/cost/pipeline_player.h>
#include <piper/cost/segment_time.h>
#include <piper/cost/sent_bytes.h>
#include <piper/cost/shard.h>
#include <piper/cost/step_time.h>
#include <piper/strategy/rank_layout.h>

#include <algorithm>

namespace piper::cost {
namespace {

using strategy::Strategy;

// Ranks on the fullest node.
int64_t ranks_per_node(const cluster::Cluster& cluster, const Strategy& s) {
  return std::min(cluster.devices_per_node(), s.mesh.world());
}

// Where ranks share cores, an expert group that meets at every exchange computes in rounds: all of
// its members must have had a core before any goes on.
double rounds(const cluster::Cluster& cluster, const Strategy& s) {
  if (cluster.cores_per_node == 0 || s.mesh.ep == 1) return 1;
  const int64_t together = std::min(s.mesh.ep, ranks_per_node(cluster, s));
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

// Of the first member of a stage.
Group group_of(const strategy::RankLayout& layout, strategy::Axis axis, int64_t stage) {
  const strategy::Members members = layout.members(axis, 0);
  return {.first = layout.rank(stage, 0).value, .stride = members.stride, .size = members.size};
}

}  // namespace

Estimator::Estimator(const model::Model& model, const cluster::Cluster& cluster,
                     strategy::Precision precision, int64_t sequence, const ExpertLoad* load)
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
  optimizer_per_parameter_ =
      update_seconds(schedule::SegmentKind::kOptimizer, kMany, cluster, precision) / kMany;
}

Shard Estimator::parameters(const Strategy& s, int64_t index, int64_t first_layer) const {
  Shard held;
  const int64_t end = first_layer + s.layers_per_stage[static_cast<size_t>(index)];
  for (int64_t layer = first_layer; layer < end; ++layer) {
    const TypeParameters& p = type_parameters_[costs_.type_of(static_cast<int32_t>(layer))];
    held.dense += p.dense;
    held.experts += p.experts / s.mesh.ep;
  }
  if (index == 0) held.dense += embedding_parameters_;
  if (index < s.mesh.num_virtual_stages() - 1) return held;
  for (int64_t layer = model_.num_layers(); layer < std::ssize(model_.layers); ++layer) {
    const TypeParameters& p = type_parameters_[costs_.type_of(static_cast<int32_t>(layer))];
    held.dense += p.dense;
    held.experts += p.experts / s.mesh.ep;
  }
  held.dense += head_parameters_ + (strategy::ends_apart(s) ? tied_parameters_ : 0);
  return held;
}

void Estimator::add_layer(const Strategy& s, int64_t stage_index, int32_t index, Stage& stage) {
  const LayerCost& layer = costs_.layer(costs_.type_of(index), s.micro_batch_sequences, s.mesh,
                                        s.capacity.factor, form_of(s));
  const RecomputeCost& again = layer.with(recompute_of(s, stage_index));
  stage.forward += layer.forward;
  stage.backward += layer.backward;
  stage.backward_weights += layer.backward_weights;
  stage.exchange_forward += layer.exchange_forward;
  stage.exchange_backward += again.exchange;
  stage.recompute += again.compute;
  stage.recompute_ahead = again.ahead;  // of the last layer, which comes first
}

Estimator::Stage Estimator::stage(const Strategy& s, int64_t index, int64_t first_layer) {
  Stage stage;
  const int64_t end = first_layer + s.layers_per_stage[static_cast<size_t>(index)];
  for (int64_t i = first_layer; i < end; ++i) add_layer(s, index, static_cast<int32_t>(i), stage);
  const EndCost& ends = costs_.ends(s.micro_batch_sequences);
  if (index == 0) {
    stage.forward += ends.embedding_forward;
    stage.backward += ends.embedding_backward;
    stage.backward_weights += ends.embedding_backward;
  }
  if (index == s.mesh.num_virtual_stages() - 1) {
    stage.forward += ends.head.forward;
    stage.backward += ends.head.backward;
    for (const HeadCost& module : ends.modules) {
      add_layer(s, index, module.layer, stage);
      stage.forward += module.forward;
      stage.backward += module.backward;
      stage.backward_weights += module.backward_weights;
    }
  }
  price_update(s, index, first_layer, stage);
  return stage;
}

// In the order in which a stage plays them: the ends of the model, the layers from the last to the
// first.
std::vector<BackwardTurn> Estimator::backward_turns(const Strategy& s, int64_t index,
                                                    int64_t first_layer) {
  const auto gradient = static_cast<double>(state_bytes(precision_).gradient);
  const strategy::RankLayout layout(s);
  const int64_t rank = rank_of(s, index);
  const Group data = group_of(layout, strategy::Axis::kData, rank),
              expert_data = group_of(layout, strategy::Axis::kExpertData, rank);
  const auto dense = [&](int64_t parameters) {
    return all_reduce_moves(cluster_, data, gradient * static_cast<double>(parameters),
                            s.reduction);
  };
  const auto experts = [&](int64_t parameters) {
    return all_reduce_moves(cluster_, expert_data,
                            gradient * static_cast<double>(parameters / s.mesh.ep), s.reduction);
  };
  std::vector<BackwardTurn> turns;
  size_t known_type = costs_.num_types();
  BackwardTurn known;
  const auto add_layer = [&](int32_t layer) {
    const size_t type = costs_.type_of(layer);
    if (type != known_type) {
      const LayerCost& cost =
          costs_.layer(type, s.micro_batch_sequences, s.mesh, s.capacity.factor, form_of(s));
      const RecomputeCost& again = cost.with(recompute_of(s, index));
      known = {.compute = cost.backward + again.compute,
               .exchange = {.latency = again.exchange * (1 - cost.moving_part),
                            .transfer = again.exchange * cost.moving_part},
               .dense = dense(type_parameters_[type].dense),
               .experts = experts(type_parameters_[type].experts)};
      known_type = type;
    }
    turns.push_back(known);
  };
  const EndCost& ends = costs_.ends(s.micro_batch_sequences);
  if (index == s.mesh.num_virtual_stages() - 1) {
    for (size_t i = ends.modules.size(); i-- > 0;) {
      turns.push_back({.compute = ends.modules[i].backward});
      add_layer(ends.modules[i].layer);
    }
    turns.push_back(
        {.compute = ends.head.backward,
         .dense = dense(head_parameters_ + (strategy::ends_apart(s) ? tied_parameters_ : 0))});
  }
  const int64_t end = first_layer + s.layers_per_stage[static_cast<size_t>(index)];
  for (int64_t i = end; i-- > first_layer;) add_layer(static_cast<int32_t>(i));
  if (index == 0)
    turns.push_back({.compute = ends.embedding_backward, .dense = dense(embedding_parameters_)});
  return turns;
}

// Reductions start layer by layer, from the last to the first, as the last backward leaves them.
void Estimator::price_update(const Strategy& s, int64_t index, int64_t first_layer, Stage& stage) {
  const strategy::RankLayout layout(s);
  const int64_t rank = rank_of(s, index);
  if (layout.num_members() > 1) {
    const Group expert_group = group_of(layout, strategy::Axis::kExpert, rank);
    LastBackwardNeeds needs{
        .dense =
            all_reduce_needs(cluster_, group_of(layout, strategy::Axis::kData, rank), s.reduction),
        .experts = all_reduce_needs(cluster_, group_of(layout, strategy::Axis::kExpertData, rank),
                                    s.reduction)};
    if (is_measured_all_to_all(cluster_, expert_group))
      needs.exchange = {{1}};
    else if (s.mesh.ep > 1)
      needs.exchange = level_needs(cluster_, even_traffic(cluster_, expert_group, 0, 1));
    Moves message;
    if (index > 0) {
      const auto bytes = static_cast<double>(costs_.ends(s.micro_batch_sequences).hidden_bytes);
      Traffic traffic;
      traffic.add(cluster_.common_level(layout.rank(rank, 0).value,
                                        layout.rank(rank_of(s, index - 1), 0).value),
                  bytes);
      needs.message = level_needs(cluster_, traffic);
      for (size_t level = 0; level < cluster_.levels.size(); ++level)
        message.transfer = std::max(message.transfer, busy_seconds(cluster_, traffic, level));
    }
    const LastBackward last = last_backward(cluster_.levels.size(), needs,
                                            backward_turns(s, index, first_layer), message);
    stage.reductions = last.exposed;
    stage.slowed = last.slowed;
    stage.message_slowed = last.message;
  }
  const bool is_end = index == 0 || index == s.mesh.num_virtual_stages() - 1;
  if (model_.shares_embedding() && strategy::ends_apart(s) && is_end)
    stage.reductions += all_reduce_seconds(
        cluster_, {.first = 0, .stride = layout.rank(s.mesh.pp - 1, 0).value, .size = 2},
        static_cast<double>(state_bytes(precision_).gradient) *
            static_cast<double>(tied_parameters_));
  const Shard held = parameters(s, index, first_layer);
  stage.norm = held.of_norm(s.mesh) * norm_per_parameter_;
  stage.optimizer = static_cast<double>(held.total()) * optimizer_per_parameter_;
}

std::vector<StageSeconds> Estimator::pipeline(const Strategy& s, const std::vector<Stage>& stages) {
  const auto bytes = static_cast<double>(costs_.ends(s.micro_batch_sequences).hidden_bytes);
  const double slower = rounds(cluster_, s);
  const strategy::RankLayout layout(s);
  const auto message_seconds = [&](int64_t from, int64_t to) {
    return point_to_point_seconds(cluster_, layout.rank(from, 0).value, layout.rank(to, 0).value,
                                  bytes);
  };
  std::vector<StageSeconds> seconds;
  for (size_t i = 0; i < stages.size(); ++i) {
    const Stage& stage = stages[i];
    const auto here = static_cast<int64_t>(i);
    StageSeconds now{
        .forward = slower * stage.forward + stage.exchange_forward,
        .backward = slower * (stage.backward + stage.recompute) + stage.exchange_backward};
    if (i + 1 < stages.size()) now.ahead = stage.recompute_ahead;
    if (i + 1 < stages.size()) now.send_forward = message_seconds(here, here + 1);
    if (i > 0) now.send_backward = message_seconds(here, here - 1);
    seconds.push_back(now);
  }
  return seconds;
}

// The last backwards follow one another up the pipeline: what slows one delays those before it, as
// far as they would not have waited anyway.
void Estimator::delay_last_backwards(const std::vector<Stage>& stages,
                                     const std::vector<StageSeconds>& seconds,
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

Estimator::Stage& Estimator::Stage::operator+=(const Stage& next) {
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
  exchange_forward += next.exchange_forward;
  exchange_backward += next.exchange_backward;
  recompute_ahead += next.recompute_ahead;
  norm += next.norm;
  optimizer += next.optimizer;
  return *this;
}

bool Estimator::has_closed_form(const Strategy& s) {
  return s.mesh.vpp == 1 && !strategy::splits_backward(s.schedule) &&
         s.layers_per_stage.back() > 0 &&
         std::ranges::all_of(s.recompute_per_stage,
                             [&](strategy::Recompute r) { return r == s.recompute; });
}

// By rank.
std::vector<double> Estimator::played_finish(const Strategy& s,
                                             const std::vector<Stage>& chunks) const {
  const double slower = rounds(cluster_, s);
  const strategy::RankLayout layout(s);
  const auto bytes = static_cast<double>(slot_bytes(
      model_, {schedule::SlotKind::kHidden, {schedule::SegmentKind::kEmbedding, -1}},
      balanced_work(model_, -1, s.micro_batch_sequences, sequence_, 1, element_bytes(precision_))));
  const auto message = [&](int64_t from, int64_t to) {
    return point_to_point_seconds(cluster_, layout.rank(rank_of(s, from), 0).value,
                                  layout.rank(rank_of(s, to), 0).value, bytes);
  };
  std::vector<ChunkSeconds> seconds;
  const auto num_chunks = std::ssize(chunks);
  for (int64_t i = 0; i < num_chunks; ++i) {
    const Stage& c = chunks[static_cast<size_t>(i)];
    const double weights = slower * c.backward_weights;
    const double whole = slower * (c.backward + c.recompute) + c.exchange_backward;
    seconds.push_back({.forward = slower * c.forward + c.exchange_forward,
                       .backward_input = whole - weights,
                       .backward_weights = weights,
                       .backward = whole,
                       .ahead = i + 1 < num_chunks ? c.recompute_ahead : 0});
    if (i + 1 < num_chunks) seconds.back().send_forward = message(i, i + 1);
    if (i > 0) seconds.back().send_backward = message(i, i - 1);
  }
  PipelinePlayer player(s.schedule, s.mesh.pp, s.mesh.vpp, s.num_micro_batches);
  std::vector<double> finish;
  for (const RankSeconds& rank : player.play(seconds)) finish.push_back(rank.finish);
  return finish;
}

void StepEstimate::find_fullest() {
  for (size_t i = 0; i < memory.size(); ++i)
    if (memory[i].total() > peak_bytes) {
      peak_bytes = memory[i].total();
      fullest_stage = static_cast<int64_t>(i);
    }
}

StepEstimate Estimator::estimate(const Strategy& s) {
  PIPER_DCHECK(s.sequence == sequence_ && s.precision == precision_);
  std::vector<Stage> chunks;
  int64_t first = 0;
  for (int64_t i = 0; i < s.mesh.num_virtual_stages();
       first += s.layers_per_stage[static_cast<size_t>(i++)])
    chunks.push_back(stage(s, i, first));
  std::vector<Stage> stages(static_cast<size_t>(s.mesh.pp));
  for (size_t i = 0; i < chunks.size(); ++i)
    stages[static_cast<size_t>(rank_of(s, static_cast<int64_t>(i)))] += chunks[i];
  const std::vector<StageSeconds> seconds = pipeline(s, stages);
  std::vector<double> finish;
  if (has_closed_form(s)) {
    finish = pipeline_finish(s.schedule, seconds, s.num_micro_batches);
    delay_last_backwards(stages, seconds, finish);
  } else {
    finish = played_finish(s, chunks);
  }

  const auto m = static_cast<double>(s.num_micro_batches);
  double until_norm = 0, optimizer = 0, compute = 0;  // compute: of one pipeline, all stages
  double longest_pass = 0;
  size_t busiest = 0;
  const auto busy = [&](size_t i) { return seconds[i].forward + seconds[i].backward; };
  // A table that both ends hold is summed when both have come so far.
  const auto reduced = [&](size_t i) { return finish[i] + stages[i].reductions; };
  const double ends =
      model_.shares_embedding() ? std::max(reduced(0), reduced(stages.size() - 1)) : 0;
  for (size_t i = 0; i < stages.size(); ++i) {
    const Stage& stage = stages[i];
    const bool is_end = i == 0 || i + 1 == stages.size();
    until_norm = std::max(until_norm, std::max(reduced(i), is_end ? ends : 0) + stage.norm);
    optimizer = std::max(optimizer, stage.optimizer);
    compute +=
        m * (stage.forward + stage.backward + stage.recompute) + stage.norm + stage.optimizer;
    longest_pass = std::max(longest_pass, busy(i));
    if (busy(i) > busy(busiest)) busiest = i;
  }
  const Group world{.size = s.mesh.world()};
  const double statistics = all_reduce_seconds(
      cluster_, world, static_cast<double>(num_statistics(model_, s)) * sizeof(double));

  StepEstimate estimate;
  estimate.seconds = until_norm + statistics + optimizer;
  if (const int64_t cores = cluster_.cores_per_node; cores > 0) {
    const auto ranks = static_cast<double>(ranks_per_node(cluster_, s));
    const double per_rank = compute / static_cast<double>(s.mesh.pp);
    const double ways = std::clamp(
        static_cast<double>(cores) / static_cast<double>(std::min<int64_t>(s.mesh.dp, cores)), 1.0,
        static_cast<double>(s.mesh.pp));
    // What idles while the pipeline fills and drains: (pp - 1)(F + B) in the closed form.
    const double idle = has_closed_form(s) || s.mesh.pp == 1
                            ? longest_pass
                            : std::max(0.0, std::ranges::max(finish) - m * longest_pass) /
                                  static_cast<double>(s.mesh.pp - 1);
    estimate.seconds = std::max(
        estimate.seconds, per_rank * ranks / static_cast<double>(cores) + (ways - 1) / 2 * idle);
  }
  const Stage& of = stages[busiest];
  estimate.time = {.forward = m * of.forward,
                   .backward = m * of.backward,
                   .recompute = m * of.recompute,
                   .exchange = m * (of.exchange_forward + of.exchange_backward),
                   .reductions = of.slowed + of.reductions,
                   .update = of.norm + statistics + of.optimizer};
  estimate.time.idle = std::max(0.0, estimate.seconds - estimate.time.total());
  estimate.bubble = estimate.seconds > 0 ? estimate.time.idle / estimate.seconds : 0;
  estimate.busiest_stage = static_cast<int64_t>(busiest);
  estimate.memory = memory(s);
  estimate.find_fullest();
  return estimate;
}

PassSeconds Estimator::pass_seconds(const Strategy& s) {
  PassSeconds pass;
  const auto of_layer = [&](int32_t i) {
    const LayerCost& layer = costs_.layer(costs_.type_of(i), s.micro_batch_sequences, s.mesh,
                                          s.capacity.factor, form_of(s));
    const RecomputeCost& again = layer.with(s.recompute);
    return layer.forward + layer.backward + layer.exchange_forward + again.compute + again.exchange;
  };
  for (int32_t i = 0; i < model_.num_layers(); ++i) pass.layers.push_back(of_layer(i));
  const EndCost& ends = costs_.ends(s.micro_batch_sequences);
  pass.embedding = ends.embedding_forward + ends.embedding_backward;
  pass.head = ends.head.forward + ends.head.backward;
  for (const HeadCost& module : ends.modules)
    pass.head += module.forward + module.backward + of_layer(module.layer);
  return pass;
}

}  // namespace piper::cost
