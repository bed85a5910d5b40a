#include <piper/base/error.h>
#include <piper/cost/exchange_time.h>
#include <piper/cost/segment_time.h>
#include <piper/cost/shard.h>
#include <piper/cost/step_time.h>

#include <algorithm>

namespace piper::cost {
namespace {

using strategy::Strategy;

constexpr double kStatisticsBytes = 64;  // a handful of sums

// Ranks on the fullest node.
int64_t ranks_per_node(const cluster::Cluster& cluster, const Strategy& s) {
  return std::min(cluster.devices_per_node(), s.mesh.world());
}

// Where ranks share cores, an expert group that meets at every exchange computes in rounds: all of its members
// must have had a core before any goes on.
double rounds(const cluster::Cluster& cluster, const Strategy& s) {
  if (cluster.cores_per_node == 0 || s.mesh.ep == 1) return 1;
  const int64_t together = std::min(s.mesh.ep, ranks_per_node(cluster, s));
  const int64_t rounds = (together + cluster.cores_per_node - 1) / cluster.cores_per_node;
  return static_cast<double>(rounds);
}

}  // namespace

Estimator::Estimator(const model::Model& model, const cluster::Cluster& cluster,
                     strategy::Precision precision, int64_t sequence)
    : model_(model),
      cluster_(cluster),
      precision_(precision),
      sequence_(sequence),
      costs_(model, cluster, precision, sequence),
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

int64_t Estimator::parameters(const Strategy& s, int64_t index, int64_t first_layer) const {
  int64_t count = 0;
  const int64_t end = first_layer + s.layers_per_stage[static_cast<size_t>(index)];
  for (int64_t layer = first_layer; layer < end; ++layer) {
    const TypeParameters& p = type_parameters_[costs_.type_of(static_cast<int32_t>(layer))];
    count += p.dense + p.experts / s.mesh.ep;
  }
  if (index == 0) count += embedding_parameters_;
  if (index < s.mesh.pp - 1) return count;
  for (int64_t layer = model_.num_layers(); layer < std::ssize(model_.layers); ++layer) {
    const TypeParameters& p = type_parameters_[costs_.type_of(static_cast<int32_t>(layer))];
    count += p.dense + p.experts / s.mesh.ep;
  }
  return count + head_parameters_ + (s.mesh.pp > 1 ? tied_parameters_ : 0);
}

void Estimator::add_layer(const Strategy& s, int32_t index, Stage& stage) {
  const LayerCost& layer =
      costs_.layer(costs_.type_of(index), s.micro_batch_sequences, s.mesh, s.capacity.factor);
  const RecomputeCost& again = layer.with(s.recompute);
  stage.forward += layer.forward;
  stage.backward += layer.backward;
  stage.exchange_forward += layer.exchange_forward;
  stage.exchange_backward += again.exchange;
  stage.recompute += again.compute;
  stage.recompute_ahead = again.ahead;  // of the last layer, which comes first
}

Estimator::Stage Estimator::stage(const Strategy& s, int64_t index, int64_t first_layer) {
  Stage stage;
  const int64_t end = first_layer + s.layers_per_stage[static_cast<size_t>(index)];
  for (int64_t i = first_layer; i < end; ++i) add_layer(s, static_cast<int32_t>(i), stage);
  const EndCost& ends = costs_.ends(s.micro_batch_sequences);
  if (index == 0) {
    stage.forward += ends.embedding_forward;
    stage.backward += ends.embedding_backward;
  }
  if (index == s.mesh.pp - 1) {
    stage.forward += ends.head.forward;
    stage.backward += ends.head.backward;
    for (const HeadCost& module : ends.modules) {
      add_layer(s, module.layer, stage);
      stage.forward += module.forward;
      stage.backward += module.backward;
    }
  }
  price_update(s, index, first_layer, stage);
  return stage;
}

// Reductions start layer by layer, from the last to the first, as the last backward leaves them;
// what counts is how long after the stage's last backward the last of them ends.
void Estimator::price_update(const Strategy& s, int64_t index, int64_t first_layer, Stage& stage) {
  const auto gradient = static_cast<double>(state_bytes(precision_).gradient);
  const int64_t base = index * s.mesh.dp;
  const Group dense{.first = base, .size = s.mesh.dp};
  const Group experts{.first = base, .stride = s.mesh.ep, .size = s.mesh.edp()};
  const auto reduce = [&](const Group& group, int64_t parameters) {
    return all_reduce_seconds(cluster_, group, gradient * static_cast<double>(parameters));
  };
  const EndCost& ends = costs_.ends(s.micro_batch_sequences);
  double later = 0;  // backward work that still follows, in seconds before the stage's end
  double exposed = 0;
  if (index == 0) {
    exposed = reduce(dense, embedding_parameters_);
    later = ends.embedding_backward;
  }
  const int64_t end = first_layer + s.layers_per_stage[static_cast<size_t>(index)];
  double by_type[2] = {0, 0};
  size_t known_type = costs_.num_types();
  for (int64_t i = first_layer; i < end; ++i) {
    const size_t type = costs_.type_of(static_cast<int32_t>(i));
    if (type != known_type) {
      by_type[0] = reduce(dense, type_parameters_[type].dense);
      by_type[1] = reduce(experts, type_parameters_[type].experts / s.mesh.ep);
      known_type = type;
    }
    exposed = std::max(exposed, std::max(by_type[0], by_type[1]) - later);
    const LayerCost& layer = costs_.layer(type, s.micro_batch_sequences, s.mesh, s.capacity.factor);
    const RecomputeCost& again = layer.with(s.recompute);
    later += layer.backward + again.compute + again.exchange;
  }
  const bool last = index == s.mesh.pp - 1;
  if (last)
    exposed = std::max(
        exposed, reduce(dense, head_parameters_ + (s.mesh.pp > 1 ? tied_parameters_ : 0)) - later);
  if (last && model_.mtp_depth > 0) {  // those of the first module's layer stand before the head's
    const TypeParameters& p = type_parameters_[costs_.type_of(ends.modules.front().layer)];
    exposed = std::max(
        exposed, std::max(reduce(dense, p.dense), reduce(experts, p.experts / s.mesh.ep)) - later);
  }
  if (model_.shares_embedding() && s.mesh.pp > 1 && (index == 0 || last))
    exposed +=
        reduce({.first = 0, .stride = (s.mesh.pp - 1) * s.mesh.dp, .size = 2}, tied_parameters_);
  const auto held = static_cast<double>(parameters(s, index, first_layer));
  stage.reductions = exposed;
  stage.norm = held * norm_per_parameter_;
  stage.optimizer = held * optimizer_per_parameter_;
}

std::vector<StageSeconds> Estimator::pipeline(const Strategy& s, const std::vector<Stage>& stages) {
  const auto bytes = static_cast<double>(costs_.ends(s.micro_batch_sequences).hidden_bytes);
  const double slower = rounds(cluster_, s);
  std::vector<StageSeconds> seconds;
  for (size_t i = 0; i < stages.size(); ++i) {
    const Stage& stage = stages[i];
    const auto here = static_cast<int64_t>(i) * s.mesh.dp;
    StageSeconds now{
        .forward = slower * stage.forward + stage.exchange_forward,
        .backward = slower * (stage.backward + stage.recompute) + stage.exchange_backward};
    if (i + 1 < stages.size()) now.ahead = stage.recompute_ahead;
    if (i + 1 < stages.size())
      now.send_forward = point_to_point_seconds(cluster_, here, here + s.mesh.dp, bytes);
    if (i > 0) now.send_backward = point_to_point_seconds(cluster_, here, here - s.mesh.dp, bytes);
    seconds.push_back(now);
  }
  return seconds;
}

StepEstimate Estimator::estimate(const Strategy& s) {
  PIPER_DCHECK(s.sequence == sequence_ && s.precision == precision_);
  std::vector<Stage> stages;
  int64_t first = 0;
  for (int64_t i = 0; i < s.mesh.pp; first += s.layers_per_stage[static_cast<size_t>(i++)])
    stages.push_back(stage(s, i, first));
  const std::vector<StageSeconds> seconds = pipeline(s, stages);
  const std::vector<double> finish = pipeline_finish(s.schedule, seconds, s.num_micro_batches);

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
  const double statistics = all_reduce_seconds(cluster_, world, kStatisticsBytes);

  StepEstimate estimate;
  estimate.seconds = until_norm + statistics + optimizer;
  if (const int64_t cores = cluster_.cores_per_node; cores > 0) {
    const auto ranks = static_cast<double>(ranks_per_node(cluster_, s));
    const double per_rank = compute / static_cast<double>(s.mesh.pp);
    const double ways = std::clamp(
        static_cast<double>(cores) / static_cast<double>(std::min<int64_t>(s.mesh.dp, cores)), 1.0,
        static_cast<double>(s.mesh.pp));
    estimate.seconds = std::max(estimate.seconds, per_rank * ranks / static_cast<double>(cores) +
                                                      (ways - 1) / 2 * longest_pass);
  }
  const Stage& of = stages[busiest];
  estimate.time = {.forward = m * of.forward,
                   .backward = m * of.backward,
                   .recompute = m * of.recompute,
                   .exchange = m * (of.exchange_forward + of.exchange_backward),
                   .reductions = of.reductions,
                   .update = of.norm + statistics + of.optimizer};
  estimate.time.idle = std::max(0.0, estimate.seconds - estimate.time.total());
  estimate.bubble = estimate.seconds > 0 ? estimate.time.idle / estimate.seconds : 0;
  estimate.memory = memory(s);
  for (size_t i = 0; i < estimate.memory.size(); ++i)
    if (estimate.memory[i].total() > estimate.peak_bytes) {
      estimate.peak_bytes = estimate.memory[i].total();
      estimate.fullest_stage = static_cast<int64_t>(i);
    }
  return estimate;
}

PassSeconds Estimator::pass_seconds(const Strategy& s) {
  PassSeconds pass;
  const auto of_layer = [&](int32_t i) {
    const LayerCost& layer =
        costs_.layer(costs_.type_of(i), s.micro_batch_sequences, s.mesh, s.capacity.factor);
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
