#include <piper/base/error.h>
#include <piper/cost/bubble.h>
#include <piper/cost/mfu.h>
#include <piper/cost/pipeline_player.h>
#include <piper/model/count.h>
#include <piper/stack/estimator.h>

#include <algorithm>
#include <cmath>

namespace piper::stack {

using strategy::PipelineSchedule;
using strategy::Recompute;
using strategy::Strategy;

struct Estimator::Prices {
  std::vector<LayerPrice> types;
  EndPrice ends;
};

// One rank of the pipeline, all its chunks.
struct Estimator::StageSums {
  PassPrice forward, backward, again;  // compute before calibration
  double weights = 0;                  // compute of backward that makes gradients of weights
  double kept_bytes = 0, input_bytes = 0, backward_bytes = 0, placeholder_bytes = 0;
  double head_bytes = 0, head_placeholder_bytes = 0;
  double dense_parameters = 0, expert_parameters = 0;
  double layers = 0, host_seconds = 0;
};

struct Estimator::Busy {
  double forward = 0, backward = 0, weights = 0, hideable = 0;
  double total() const { return forward + backward; }
  double shown() const { return total() - hideable; }  // of a micro-batch in the steady state
};

struct Estimator::Sums {
  const Prices* prices = nullptr;
  bool is_v = false;
  int64_t vpp = 0;
  Recompute recompute = Recompute::kNone;
  std::vector<Recompute> recompute_per_stage;
  std::vector<int64_t> split;
  std::vector<StageSums> stages;
};

namespace {

void add(PassPrice& to, const PassPrice& what, double times = 1) {
  to.compute += what.compute * times;
  to.tensor += what.tensor * times;
  to.exchange += what.exchange * times;
  to.context += what.context * times;
}

double communication(const PassPrice& p) { return p.tensor + p.exchange + p.context; }

// Virtual stages of one rank of the pipeline.
void for_each_chunk(const Strategy& s, int64_t stage, auto visit) {
  const int64_t pp = s.mesh.pp;
  if (strategy::is_v(s.schedule)) {
    visit(stage);
    visit(2 * pp - 1 - stage);
    return;
  }
  for (int64_t chunk = 0; chunk < s.mesh.vpp; ++chunk) visit(chunk * pp + stage);
}

}  // namespace

Estimator::Estimator(const model::Model& model, const cluster::Cluster& cluster, const Stack& stack,
                     strategy::Precision precision, int64_t sequence)
    : model_(model),
      cluster_(cluster),
      stack_(stack),
      precision_(precision),
      sequence_(sequence),
      rates_(cluster, precision),
      efficiency_(stack.calibration_of(cluster.device).compute_efficiency),
      sums_(std::make_unique<Sums>()),
      busy_(std::make_unique<std::vector<Busy>>()) {
  for (int64_t layer = 0; layer < model.num_layers(); ++layer) {
    const model::Layer& l = model.layers[static_cast<size_t>(layer)];
    size_t type = 0;
    while (type < representative_.size() &&
           !(model.layers[static_cast<size_t>(representative_[type])] == l))
      ++type;
    if (type == representative_.size()) {
      representative_.push_back(layer);
      layers_of_type_.push_back(0);
    }
    ++layers_of_type_[type];
    type_.push_back(type);
  }
}

Estimator::~Estimator() = default;

void Estimator::set_compute_efficiency(double efficiency) { efficiency_ = efficiency; }

const Estimator::Prices& Estimator::prices(const Strategy& s, double imbalance) {
  const Key key{s.micro_batch_sequences, s.mesh.tp,         s.mesh.cp, s.mesh.ep, s.mesh.etp,
                s.sequence_parallel,     s.capacity.factor, imbalance};
  if (last_ != nullptr && key == last_key_) return *last_;
  std::unique_ptr<Prices>& found = known_[key];
  if (!found) {
    found = std::make_unique<Prices>();
    const LayerShape shape{.tokens = static_cast<double>(s.micro_batch_sequences * sequence_) /
                                     static_cast<double>(s.mesh.cp),
                           .sequence = static_cast<double>(sequence_),
                           .tp = s.mesh.tp,
                           .cp = s.mesh.cp,
                           .ep = s.mesh.ep,
                           .etp = s.mesh.etp,
                           .sequence_parallel = s.sequence_parallel,
                           .capacity_factor = s.capacity.factor,
                           .imbalance = imbalance};
    for (const int64_t layer : representative_)
      found->types.push_back(price_layer(model_, model_.layers[static_cast<size_t>(layer)], shape,
                                         stack_, rates_, precision_));
    found->ends = price_ends(model_, shape, stack_, rates_);
  }
  last_key_ = key;
  last_ = found.get();
  return *last_;
}

void Estimator::sum_stage(const Strategy& s, const Prices& prices, int64_t stage, StageSums& sums) {
  for_each_chunk(s, stage,
                 [&](int64_t chunk) { sum_chunk(s, prices, s.recompute_of(stage), chunk, sums); });
}

void Estimator::sum_chunk(const Strategy& s, const Prices& prices, Recompute recompute,
                          int64_t chunk, StageSums& sums) {
  const int64_t last_chunk = s.mesh.pp * s.mesh.vpp - 1;

  int64_t first = 0;
  for (int64_t c = 0; c < chunk; ++c) first += s.layers_per_stage[static_cast<size_t>(c)];
  const int64_t end = first + s.layers_per_stage[static_cast<size_t>(chunk)];
  for (int64_t layer = first; layer < end;) {
    const size_t type = type_[static_cast<size_t>(layer)];
    int64_t next = layer + 1;
    while (next < end && type_[static_cast<size_t>(next)] == type) ++next;
    const auto count = static_cast<double>(next - layer);
    const LayerPrice& p = prices.types[type];
    add(sums.forward, p.forward, count);
    add(sums.backward, p.backward, count);
    add(sums.again, p.again(recompute, stack_), recompute == Recompute::kNone ? 0 : count);
    sums.weights += p.backward_weights * count;
    sums.kept_bytes += p.kept_bytes(recompute, stack_) * count;
    sums.input_bytes += p.input_bytes * count;
    // Recomputed pieces are whole for the moment of their backward.
    sums.backward_bytes =
        std::max(sums.backward_bytes, p.backward_bytes + p.kept_bytes(Recompute::kNone, stack_) -
                                          p.kept_bytes(recompute, stack_));
    sums.placeholder_bytes = std::max(sums.placeholder_bytes, p.placeholder_bytes);
    sums.dense_parameters += p.dense_parameters * count;
    sums.expert_parameters += p.expert_parameters * count;
    sums.layers += count;
    sums.host_seconds += p.host_seconds * count;
    layer = next;
  }
  const EndPrice& ends = prices.ends;
  if (chunk == 0) {
    sums.forward.compute += ends.embedding_forward;
    sums.backward.compute += ends.embedding_backward;
    sums.dense_parameters += ends.embedding_parameters;
  }
  if (chunk != last_chunk) return;
  sums.forward.compute += ends.head_forward;
  sums.backward.compute += ends.head_backward;
  sums.head_bytes = ends.head_bytes;
  sums.head_placeholder_bytes = ends.placeholder_bytes;
  sums.dense_parameters += ends.head_parameters;
  if (model_.tied_embeddings && chunk != 0) sums.dense_parameters += ends.embedding_parameters;
}

double in_flight(const Strategy& s, int64_t stage) {
  return cost::rank_forwards_in_flight(s.schedule, s.mesh.pp, s.mesh.vpp, stage,
                                       s.num_micro_batches);
}

StageBytes Estimator::stage_bytes(const Strategy& s, const StageSums& sums, int64_t stage) const {
  const auto dp = static_cast<double>(s.mesh.dp * s.mesh.cp);
  const auto edp = static_cast<double>(s.mesh.edp());
  const bool keeps_weights = s.zero == 3 && s.mesh.pp > 1 && stack_.keeps_weights_in_pipelines;
  const StateBytes& bytes =
      keeps_weights ? stack_.state_zero3_pipelined : stack_.state[static_cast<size_t>(s.zero)];
  StageBytes b;
  const bool away = strategy::offloads_optimizer(s.offload);
  constexpr double kOptimizer = 12;  // master copy and two moments: what may live with the host
  const auto held = [&](double parameters, double replicas) {
    if (replicas <= 1) {
      b.weights_and_gradients += parameters * std::min(stack_.state_alone, 6.0);
      if (!away) b.optimizer += parameters * std::max(stack_.state_alone - 6.0, 0.0);
      return;
    }
    const double whole =
        away ? std::max(bytes.replicated - kOptimizer, std::min(bytes.replicated, 6.0))
             : bytes.replicated;
    const double divided =
        away && bytes.sharded >= kOptimizer ? bytes.sharded - kOptimizer : bytes.sharded;
    b.weights_and_gradients += parameters * whole;
    b.optimizer += parameters * divided / replicas;
  };
  held(sums.dense_parameters, dp);
  held(sums.expert_parameters, edp);
  if (s.mesh.tp > 1)
    b.working += stack_.gathered_buffers * 2 *
                 static_cast<double>(s.micro_batch_sequences * s.sequence * model_.hidden) /
                 static_cast<double>(s.mesh.cp);
  if (s.zero == 3 && !keeps_weights && sums.layers > 0)  // two layers' weights are whole at a time
    b.working += 2 * 2 * (sums.dense_parameters + sums.expert_parameters) / sums.layers;
  const double flights = in_flight(s, stage);
  b.activations = sums.kept_bytes * flights;
  if (strategy::offloads_activations(s.offload))
    b.activations = sums.kept_bytes * std::min(flights, 1.0);
  b.working += sums.placeholder_bytes +
               std::max(sums.head_bytes, sums.backward_bytes + sums.head_placeholder_bytes);
  b.fixed = stack_.fixed_bytes;
  return b;
}

// Of equal stages from cost/bubble.h; stages that differ idle by what the others do instead of p - 1 means.
double Estimator::bubble_of(const Strategy& s, const std::vector<Busy>& stages, size_t busiest,
                            double message) {
  if (s.mesh.pp == 1) return 0;
  Busy mean;
  double others = 0;
  const auto p = static_cast<double>(stages.size());
  for (size_t i = 0; i < stages.size(); ++i) {
    mean.forward += stages[i].forward / p;
    mean.backward += stages[i].backward / p;
    mean.weights += stages[i].weights / p;
    if (i != busiest) others += stages[i].total();
  }
  const cost::RankPassSeconds pass{.forward = mean.forward,
                                   .backward_input = mean.backward - mean.weights,
                                   .backward_weights = mean.weights};
  const double equal =
      cost::bubble_seconds(s.schedule, s.mesh.pp, s.mesh.vpp, s.num_micro_batches, pass, message);
  return mean.total() > 0 ? equal * others / ((p - 1) * mean.total()) : equal;
}

void Estimator::price_update(const Strategy& s, const StageSums& fullest, double hides,
                             Estimate& e) const {
  const Rates& r = rates_;
  const int64_t replicas = s.mesh.dp * s.mesh.cp, edp = s.mesh.edp();
  const bool far = s.placement == strategy::Placement::kPipelineInside;
  const int64_t stride = s.mesh.tp * (far ? s.mesh.pp : 1);
  const int64_t expert_stride = s.mesh.ep * s.mesh.etp * (far ? s.mesh.pp : 1);
  const double bytes = stack_.reduction_bytes;
  constexpr double kWeight = 2;
  const auto of = [&](int64_t size, int64_t step, double parameters) {
    if (size <= 1 || parameters <= 0) return 0.0;
    if (s.zero == 0) return r.all_reduce_seconds(size, step, parameters * bytes);
    // Scatter of gradients, gather of weights; with ZeRO 3 weights are gathered for forward and backward of every
    // micro-batch, with ZeRO 2 and more gradients are scattered after each, unless the stack keeps both whole in a
    // pipeline.
    const bool keeps = s.mesh.pp > 1 && stack_.keeps_weights_in_pipelines;
    const double m = keeps ? 1.0 : static_cast<double>(s.num_micro_batches);
    const double scatters = s.zero >= 2 ? m : 1, gathers = s.zero == 3 ? 2 * m : 1;
    return scatters * r.reduce_scatter_seconds(size, step, parameters * bytes) +
           gathers * r.all_gather_seconds(size, step, parameters * kWeight);
  };
  const double all = of(replicas, stride, fullest.dense_parameters) +
                     of(edp, expert_stride, fullest.expert_parameters);
  e.time.reductions = std::max(all * (1 - stack_.hidden_gradients), all - hides);
  const auto share = [&](double parameters, int64_t size) {
    return parameters / (s.zero >= 1 ? static_cast<double>(size) : 1.0);
  };
  const double updated =
      share(fullest.dense_parameters, replicas) + share(fullest.expert_parameters, edp);
  constexpr double kTouched =
      34;  // gradient, two moments and master read and written, weight written
  e.time.update = r.pass_seconds(updated * kTouched);
  if (strategy::offloads_optimizer(s.offload))
    e.time.offload +=
        r.host_copy_seconds(updated * 6);  // gradients down, weights up; the host updates meanwhile
}

Estimator::Busy Estimator::busy_of(const Strategy& s, const StageSums& u) const {
  const auto slow = [&](double compute, double least) {
    return std::max(compute / efficiency_ + least * stack_.serial_seconds_per_layer * u.layers,
                    least * u.host_seconds);
  };
  Busy b;
  b.forward = slow(u.forward.compute, 1.0 / 3) + communication(u.forward);
  b.backward = slow(u.backward.compute + u.again.compute, 2.0 / 3) + communication(u.backward) +
               communication(u.again);
  b.weights = u.weights / efficiency_;
  if (s.schedule == PipelineSchedule::kDualPipeV) {
    // Forward and backward of two micro-batches hide each other's exchanges behind compute.
    const double exchange = u.forward.exchange + u.backward.exchange;
    b.hideable = std::min(exchange, (u.forward.compute + u.backward.compute) / efficiency_);
  }
  return b;
}

// Neighbours in a search share everything but schedule, ZeRO, offload and placement: the sums of the last call are kept.
const std::vector<Estimator::StageSums>& Estimator::stage_sums(const Strategy& s,
                                                               const Prices& prices) {
  Sums& last = *sums_;
  const bool is_v = strategy::is_v(s.schedule);
  if (last.prices == &prices && last.is_v == is_v && last.recompute == s.recompute &&
      last.recompute_per_stage == s.recompute_per_stage && last.split == s.layers_per_stage &&
      last.vpp == s.mesh.vpp)
    return last.stages;
  last = {.prices = &prices,
          .is_v = is_v,
          .vpp = s.mesh.vpp,
          .recompute = s.recompute,
          .recompute_per_stage = s.recompute_per_stage,
          .split = s.layers_per_stage,
          .stages = std::move(last.stages)};
  last.stages.assign(static_cast<size_t>(s.mesh.pp), {});
  for (int64_t stage = 0; stage < s.mesh.pp; ++stage)
    sum_stage(s, prices, stage, last.stages[static_cast<size_t>(stage)]);
  return last.stages;
}

Estimate Estimator::estimate(const Strategy& s, double imbalance) {
  PIPER_DCHECK(s.sequence == sequence_ && s.precision == precision_);
  const Prices& prices = this->prices(s, imbalance);
  const auto pp = static_cast<size_t>(s.mesh.pp);
  const std::vector<StageSums>& sums = stage_sums(s, prices);
  busy_->assign(pp, {});
  std::vector<Busy>& busy = *busy_;
  Estimate e;
  size_t busiest = 0, fullest = 0;
  for (size_t i = 0; i < pp; ++i) {
    const StageSums& u = sums[i];
    Busy& b = busy[i];
    b = busy_of(s, u);
    if (b.shown() > busy[busiest].shown()) busiest = i;
    const StageBytes bytes = stage_bytes(s, u, static_cast<int64_t>(i));
    if (bytes.total() > e.fullest.total()) {
      e.fullest = bytes;
      fullest = i;
    }
    e.states_bytes = std::max(e.states_bytes, bytes.weights_and_gradients + bytes.optimizer);
  }
  e.fullest_stage = static_cast<int64_t>(fullest);
  e.busiest_stage = static_cast<int64_t>(busiest);
  e.peak_bytes = e.fullest.total();

  const auto m = static_cast<double>(s.num_micro_batches);
  const StageSums& u = sums[busiest];
  const Busy& b = busy[busiest];
  const double hidden =
      b.hideable > 0 ? 1 - b.hideable / (u.forward.exchange + u.backward.exchange) : 1;
  e.time.tensor = m * (u.forward.tensor + u.backward.tensor);
  e.time.exchange = m * hidden * (u.forward.exchange + u.backward.exchange);
  e.time.context = m * (u.forward.context + u.backward.context);
  e.time.recompute = m * (u.again.compute / efficiency_ + communication(u.again));
  e.time.compute =
      m * b.shown() - e.time.tensor - e.time.exchange - e.time.context - e.time.recompute;
  double message = 0;
  if (s.mesh.pp > 1) {
    const bool far = s.placement == strategy::Placement::kDataInside;
    const int64_t distance = s.mesh.tp * s.mesh.cp * (far ? s.mesh.dp : 1);
    message =
        rates_.message_seconds(distance, prices.ends.message_bytes) + stack_.seconds_per_message;
    const auto chunks = static_cast<double>(s.mesh.vpp);
    e.time.messages = 2 * message * (1 - stack_.hidden_messages) * m * chunks;
  }
  e.time.bubble = bubble_of(s, busy, busiest, message);
  double pass = b.shown();  // what hides reductions: copies to the host stretch it
  if (strategy::offloads_activations(s.offload)) {
    for (const StageSums& stage : sums)
      pass = std::max(pass, 2 * rates_.host_copy_seconds(stage.kept_bytes));
    e.time.offload = m * (pass - b.shown());
  }
  const StageSums& most = *std::ranges::max_element(
      sums, {}, [](const StageSums& x) { return x.dense_parameters + x.expert_parameters; });
  // The last micro-batch's backward hides reductions; gathers hide behind the first forward.
  price_update(s, most, (s.zero >= 2 ? m : 1) * pass, e);
  e.seconds = e.time.total();
  return e;
}

double Estimator::played_seconds(const Strategy& s, double imbalance) {
  const Estimate e = estimate(s, imbalance);
  if (s.mesh.pp == 1) return e.seconds;
  const Prices& prices = this->prices(s, imbalance);
  const bool far = s.placement == strategy::Placement::kDataInside;
  const double message = rates_.message_seconds(s.mesh.tp * s.mesh.cp * (far ? s.mesh.dp : 1),
                                                prices.ends.message_bytes) +
                         stack_.seconds_per_message;
  const int64_t virtual_stages = s.mesh.pp * s.mesh.vpp;
  std::vector<cost::ChunkSeconds> chunks(static_cast<size_t>(virtual_stages));
  double hideable = 0;
  for (int64_t stage = 0; stage < s.mesh.pp; ++stage)
    for_each_chunk(s, stage, [&](int64_t chunk) {
      StageSums sums;
      sum_chunk(s, prices, s.recompute_of(stage), chunk, sums);
      const Busy b = busy_of(s, sums);
      chunks[static_cast<size_t>(chunk)] = {.forward = b.forward,
                                            .backward_input = b.backward - b.weights,
                                            .backward_weights = b.weights,
                                            .backward = b.backward,
                                            .send_forward = message,
                                            .send_backward = message};
      hideable += b.hideable / static_cast<double>(virtual_stages);
    });
  cost::PipelinePlayer player(s.schedule, s.mesh.pp, s.mesh.vpp, s.num_micro_batches);
  const auto ranks = player.play(
      chunks, s.schedule == PipelineSchedule::kDualPipeV ? std::optional(hideable) : std::nullopt);
  double finish = 0;
  for (const cost::RankSeconds& rank : ranks) finish = std::max(finish, rank.finish);
  // What is not the pipeline's, and messages that the stack does not hide in the steady state.
  return finish + e.time.messages + e.time.reductions + e.time.update + e.time.offload;
}

Estimator::Bound Estimator::bound(const Strategy& s, double imbalance) {
  const Prices& prices = this->prices(s, imbalance);
  double compute = prices.ends.head_forward + prices.ends.head_backward +
                   prices.ends.embedding_forward + prices.ends.embedding_backward;
  double others = 0, host = 0;
  for (size_t type = 0; type < prices.types.size(); ++type) {
    const LayerPrice& p = prices.types[type];
    const auto count = static_cast<double>(layers_of_type_[type]);
    compute += count * (p.forward.compute + p.backward.compute);
    others +=
        count * (p.forward.tensor + p.backward.tensor + p.forward.context + p.backward.context);
    host += count * p.host_seconds;
  }
  const double serial = stack_.serial_seconds_per_layer * static_cast<double>(model_.num_layers());
  const double work = std::max(compute / efficiency_ + serial, host) + others;
  return {static_cast<double>(s.num_micro_batches) * work / static_cast<double>(s.mesh.pp)};
}

Estimator::Pass Estimator::pass_seconds(const Strategy& s, double imbalance) {
  const Prices& prices = this->prices(s, imbalance);
  Pass pass;
  std::vector<double> of_type;
  for (const LayerPrice& p : prices.types) {
    const PassPrice again = p.again(s.recompute, stack_);
    of_type.push_back((p.forward.compute + p.backward.compute + again.compute) / efficiency_ +
                      communication(p.forward) + communication(p.backward) + communication(again));
  }
  for (const size_t type : type_) pass.layers.push_back(of_type[type]);
  const EndPrice& e = prices.ends;
  pass.embedding = (e.embedding_forward + e.embedding_backward) / efficiency_;
  pass.head = (e.head_forward + e.head_backward) / efficiency_;
  return pass;
}

double mfu(const model::Model& model, const Strategy& strategy, const cluster::Cluster& cluster,
           double seconds) {
  const auto found = cluster.compute.find(compute_key(strategy.precision));
  PIPER_CHECK(found != cluster.compute.end(), "no figures for the precision");
  const double peak =
      found->second.peak_flops_per_second * static_cast<double>(strategy.mesh.world());
  return cost::step_flops(model, strategy.sequence, strategy.global_batch_sequences,
                          cost::kept_part(model, strategy)) /
         (seconds * peak);
}

}  // namespace piper::stack
