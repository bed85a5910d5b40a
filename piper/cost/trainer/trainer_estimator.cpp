#include <piper/base/error.h>
#include <piper/cluster/watch.h>
#include <piper/cost/trainer/priced_step.h>
#include <piper/cost/trainer/stage_memory.h>
#include <piper/cost/trainer/trainer_estimator.h>

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <utility>

namespace piper::cost {

using strategy::Strategy;

namespace {

// An estimator keeps the prices of every imbalance that it was asked for.
constexpr size_t kMostImbalances = 256;

// What the states of a stage add. `backward` counts gradients of weights with it.
void add(const StageOverlap& states, BusySeconds& to) {
  to.forward += states.forward;
  to.backward += states.backward + states.weights;
  to.weights += states.weights + states.reduces;
}

}  // namespace

TrainerEstimator::TrainerEstimator(const model::Model& model, const cluster::Cluster& cluster,
                                   const TrainerProfile& trainer, strategy::Precision precision,
                                   int64_t sequence)
    : context_{.model = model,
               .cluster = cluster,
               .trainer = trainer,
               .precision = precision,
               .sequence = sequence,
               .rates = Rates(cluster, precision),
               .efficiency = trainer.calibration_of(cluster.device).compute_efficiency},
      shapes_(context_),
      sums_(context_),
      overlaps_(context_, schedules_),
      pipeline_(context_, schedules_, sums_) {}

void TrainerEstimator::set_compute_efficiency(double efficiency) {
  context_.efficiency = efficiency;
  shapes_.clear();
  sums_.clear();
}

BusySeconds TrainerEstimator::busy_of(const Strategy& s, const StageSums& sums, int64_t stage) {
  BusySeconds busy = busy_seconds(context_, sums);
  // Not every micro-batch is in a pair.
  if (busy.hideable != 0) busy.hideable *= schedules_.lists(s)[static_cast<size_t>(stage)].paired;
  return busy;
}

Estimate TrainerEstimator::bytes(const Strategy& s, double imbalance, double) {
  return bytes_of(s, sums_.of(s, shapes_.of(s, imbalance)));
}

Estimate TrainerEstimator::bytes_of(const Strategy& s, const StrategySums& sums) {
  Estimate e;
  for (int64_t stage = 0; stage < s.mesh.pp; ++stage) {
    const StageBytes bytes = stage_bytes(context_, s, sums, stage, schedules_);
    if (bytes.total() > e.fullest.total()) {
      e.fullest = bytes;
      e.fullest_stage = stage;
    }
    e.states_bytes = std::max(e.states_bytes, bytes.weights_and_gradients + bytes.optimizer);
  }
  e.peak_bytes = e.fullest.total();
  return e;
}

Estimate TrainerEstimator::estimate(const Strategy& s, double imbalance,
                                    double give_up_above_seconds, double most_bytes) {
  PIPER_DCHECK(s.sequence == context_.sequence && s.precision == context_.precision);
  const ShapePrices& prices = shapes_.of(s, imbalance);
  const StrategySums& of_strategy = sums_.of(s, prices);
  const std::vector<StageSums>& sums = of_strategy.stages;
  const std::vector<StageOverlap>& states = overlaps_.of(s, prices, of_strategy);
  Estimate e = bytes_of(s, of_strategy);
  size_t busiest = 0;
  busy_.clear();
  for (size_t i = 0; i < sums.size(); ++i) {
    busy_.push_back(busy_of(s, sums[i], static_cast<int64_t>(i)));
    add(states[i], busy_.back());
    if (busy_.back().exposed() > busy_[busiest].exposed()) busiest = i;
  }
  e.busiest_stage = static_cast<int64_t>(busiest);

  const auto m = static_cast<double>(s.num_micro_batches);
  const StageSums& u = sums[busiest];
  const BusySeconds& b = busy_[busiest];
  // What pairs hide is taken from both in proportion.
  const double tensor = u.forward.tensor + u.backward.tensor,
               exchange = u.forward.exchange + u.backward.exchange;
  const double shown = b.hideable > 0 ? 1 - b.hideable / (tensor + exchange) : 1;
  e.time.tensor = m * shown * tensor;
  e.time.exchange = m * shown * exchange;
  e.time.context = m * (u.forward.context + u.backward.context);
  e.time.recompute = m * (u.again.compute / context_.efficiency + communication(u.again));
  const double with_states =
      m * (states[busiest].forward + states[busiest].backward + states[busiest].weights);
  e.time.compute = m * b.exposed() - e.time.tensor - e.time.exchange - e.time.context -
                   e.time.recompute - with_states;
  const StageMessages messages = stage_messages(context_, s, prices);
  e.time.messages = message_waits(s, messages, std::numeric_limits<double>::infinity());
  // Who updates most, which with divided states is not who holds most, ends last.
  const StageSums& most = *std::ranges::max_element(sums, {}, [&](const StageSums& x) {
    return update_seconds(context_, s, x) + optimizer_copy_seconds(context_, s, x);
  });
  e.time.update = update_seconds(context_, s, most);
  e.time.offload += optimizer_copy_seconds(context_, s, most);
  pipeline_.add(s, prices,
                {.states = states,
                 .in_turn = m * b.exposed(),
                 .with_states = with_states,
                 .last_backward = b.backward / static_cast<double>(s.mesh.vpp),
                 .bubble = pipeline_bubble(s, busy_, busiest, messages.mean.total())},
                {.seconds = give_up_above_seconds, .bytes = most_bytes}, e);
  if (!e.is_coarse) {
    e.time.messages = message_waits(s, messages, e.pipeline_seconds);
    e.at_least = e.time.total();
  }
  e.seconds = e.time.total();
  return e;
}

// What computing waits for by the trainer's profile. But no step is shorter than its busiest link
// is occupied, which carries all micro-batches one after the other each way: at least what this
// takes longer than the pipeline.
double TrainerEstimator::message_waits(const Strategy& s, const StageMessages& messages,
                                       double pipeline_seconds) const {
  const double each_way = static_cast<double>(s.num_micro_batches * s.mesh.vpp);
  return std::max(2 * messages.mean.total() * (1 - context_.trainer.hidden_messages) * each_way,
                  each_way * messages.longest.transfer - pipeline_seconds);
}

double TrainerEstimator::simulated_seconds(const Strategy& s, double imbalance) {
  const Estimate e = estimate(s, imbalance);
  if (s.mesh.pp == 1) return e.seconds;
  const ShapePrices& prices = shapes_.of(s, imbalance);
  const double pipeline =
      pipeline_.simulated(s, prices, overlaps_.of(s, prices, sums_.of(s, prices)));
  return e.seconds - e.pipeline_seconds - e.time.messages + pipeline +
         message_waits(s, stage_messages(context_, s, prices), pipeline);
}

StepParts TrainerEstimator::parts(const Strategy& s, double imbalance) {
  const ShapePrices& prices = shapes_.of(s, imbalance);
  return step_parts(context_, s, prices, sums_.of(s, prices), schedules_);
}

// Where ranks hold the same tokens, Parm's S1 is the schedule of a mixture layer that computes
// least. What one schedule of a mixture exposes of its collectives, another may hide.
double TrainerEstimator::bound(const Strategy& strategy, double imbalance) {
  Strategy s = strategy;
  if (context_.trainer.schedules_mixtures && s.mesh.tp > 1 && !s.sequence_parallel)
    s.moe_schedule = strategy::MoeSchedule::kParmS1;
  const ShapePrices& prices = shapes_.of(s, imbalance);
  double compute = prices.ends.head_forward + prices.ends.head_backward +
                   prices.ends.embedding_forward + prices.ends.embedding_backward;
  double others = 0, host = 0;
  for (size_t type = 0; type < prices.types.size(); ++type) {
    const LayerPrice& p = prices.types[type];
    const auto count = static_cast<double>(shapes_.layer_types().num_layers[type]);
    compute += count * (p.forward.compute + p.backward.compute);
    double tensor = p.forward.tensor + p.backward.tensor;
    if (context_.trainer.schedules_mixtures) {
      const auto left = [&](const MixtureCollectives& m, double compute) {
        return std::max(0.0, m.expert_tensor.moves.total() - compute / context_.efficiency);
      };
      tensor = p.tensor_forward.exposed() + p.tensor_backward.exposed() +
               left(p.mixture_forward, p.feed_forward.forward) +
               left(p.mixture_backward, p.feed_forward.backward);
    }
    others += count * (tensor + p.forward.context + p.backward.context);
    host += count * p.host_seconds;
  }
  const double serial =
      context_.trainer.serial_seconds_per_layer * static_cast<double>(model().num_layers());
  const double work = std::max(compute / context_.efficiency + serial, host) + others;
  return static_cast<double>(s.num_micro_batches) * work / static_cast<double>(s.mesh.pp);
}

double TrainerEstimator::bound_of_split(const Strategy& s, double imbalance) {
  double busiest = 0;
  for (const StageLoad& stage : stage_loads(s, imbalance))
    busiest = std::max(busiest, stage.seconds);
  return std::max(static_cast<double>(s.num_micro_batches) * busiest, least_link(s, imbalance));
}

// What the busiest link of the pipeline carries, wherever the search puts the stages.
double TrainerEstimator::least_link(Strategy s, double imbalance) {
  double least = std::numeric_limits<double>::infinity();
  for (const strategy::Placement placement : strategy::kPlacements) {
    s.placement = placement;
    const StageMessages messages = stage_messages(context_, s, shapes_.of(s, imbalance));
    least = std::min(least, messages.longest.transfer);
  }
  return static_cast<double>(s.num_micro_batches * s.mesh.vpp) * least;
}

double TrainerEstimator::bound_of_schedule(const Strategy& s, double imbalance) {
  double sum = 0;
  for (const StageSums& stage : sums_.of(s, shapes_.of(s, imbalance)).stages) {
    const BusySeconds b = busy_seconds(context_, stage);
    sum += b.total() - std::max(0.0, b.hideable);  // not every micro-batch is in a pair
  }
  return std::max(static_cast<double>(s.num_micro_batches) * sum / static_cast<double>(s.mesh.pp),
                  least_link(s, imbalance));
}

std::vector<StageLoad> TrainerEstimator::stage_loads(const Strategy& s, double imbalance) {
  const StrategySums& sums = sums_.of(s, shapes_.of(s, imbalance));
  std::vector<StageLoad> loads;
  for (int64_t stage = 0; stage < s.mesh.pp; ++stage)
    loads.push_back(
        {.bytes = stage_bytes(context_, s, sums, stage, schedules_).total(),
         .seconds = busy_of(s, sums.stages[static_cast<size_t>(stage)], stage).exposed()});
  return loads;
}

PassSeconds TrainerEstimator::pass_seconds(const Strategy& s, double imbalance) {
  const ShapePrices& prices = shapes_.of(s, imbalance);
  PassSeconds pass;
  std::vector<double> of_type;
  for (const LayerPrice& p : prices.types) {
    const PassPrice again = p.again(s.recompute, trainer());
    of_type.push_back((p.forward.compute + p.backward.compute + again.compute) /
                          context_.efficiency +
                      communication(p.forward) + communication(p.backward) + communication(again));
  }
  for (const size_t type : shapes_.layer_types().of_layer) pass.layers.push_back(of_type[type]);
  const EndPrice& e = prices.ends;
  pass.embedding = (e.embedding_forward + e.embedding_backward) / context_.efficiency;
  pass.head = (e.head_forward + e.head_backward) / context_.efficiency;
  return pass;
}

SampledEstimate TrainerEstimator::sampled(const Strategy& s,
                                          const std::vector<ExpertLoad>& loads) const {
  std::map<double, std::pair<double, double>> known;
  std::unique_ptr<TrainerEstimator> estimator;
  SampledEstimate sampled;
  for (const ExpertLoad& load : loads) {
    const double imbalance = imbalance_of(load, s.mesh.ep);
    const auto [found, is_new] = known.try_emplace(imbalance);
    if (is_new) {
      if (known.size() % kMostImbalances == 1)
        estimator = std::make_unique<TrainerEstimator>(model(), cluster(), trainer(), s.precision,
                                                       s.sequence);
      const Estimate e = estimator->estimate(s, imbalance);
      found->second = {e.seconds, e.peak_bytes};
    }
    sampled.seconds.push_back(found->second.first);
    sampled.peak_bytes.push_back(found->second.second);
  }
  return sampled;
}

PricedStep TrainerEstimator::priced_step(const Strategy& s, const std::vector<Rank>& ranks,
                                         double imbalance) {
  return write_priced_step(*this, s, ranks, imbalance);
}

schedule::ExecutionStyle TrainerEstimator::style() const { return style_of(trainer()); }

std::vector<cluster::Outside> TrainerEstimator::outside_measured(
    const std::vector<Strategy>& strategies, double imbalance) const {
  const auto watch = std::make_shared<cluster::Watch>();
  const cluster::Cluster watched = cluster::watched(cluster(), watch);
  for (const Strategy& s : strategies)
    TrainerEstimator(model(), watched, trainer(), s.precision, s.sequence).estimate(s, imbalance);
  return watch->outside();
}

}  // namespace piper::cost
