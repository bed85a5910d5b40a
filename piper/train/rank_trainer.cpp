#include <piper/balance/rank_load.h>
#include <piper/base/error.h>
#include <piper/executor/tensor_bytes.h>
#include <piper/executor/tensor_device_operations.h>
#include <piper/nn/host_read.h>
#include <piper/nn/product.h>
#include <piper/optim/parameter_share.h>
#include <piper/schedule/migration.h>
#include <piper/schedule/rank_chunks.h>
#include <piper/schedule/step_statistics.h>
#include <piper/strategy/divided_states.h>
#include <piper/strategy/rank_layout.h>
#include <piper/strategy/residual_code.h>
#include <piper/train/rank_trainer.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <utility>

namespace piper::train {
namespace {

nn::StageOptions stage_options(const RunShared& run, Rank rank) {
  const strategy::Strategy& s = run.strategy;
  nn::StageOptions options{.dtype = executor::scalar_type(s.precision),
                           .device = run.devices.of(rank),
                           .seed = run.options.seed,
                           .global_sequences = s.global_batch_sequences,
                           .global_target_tokens = s.global_batch_sequences * s.sequence,
                           .mtp_weight = run.options.mtp_weight,
                           .placements = run.placements};
  for (int64_t depth = 1; depth <= run.model.mtp_depth; ++depth)
    options.mtp_target_tokens.push_back(s.global_batch_sequences * (s.sequence - depth));
  return options;
}

int64_t total(const std::map<int32_t, std::vector<int64_t>>& by_layer) {
  int64_t sum = 0;
  for (const auto& [layer, counts] : by_layer)
    sum = std::accumulate(counts.begin(), counts.end(), sum);
  return sum;
}

}  // namespace

RankTrainer::RankTrainer(const RunShared& run, comm::Transport& transport, executor::Cores& cores,
                         RankHooks hooks, comm::Transport* device_transport)
    : run_(run),
      transport_(transport),
      cores_(cores),
      hooks_(std::move(hooks)),
      rank_(transport.rank()),
      device_(run.devices.of(rank_)),
      on_device_(device_),
      device_transport_(device_transport),
      layout_(run.strategy),
      at_(layout_.coordinates(rank_)) {
  nn::open_math_libraries(device_);
  if (!device_.is_cpu() && hooks_.opened) hooks_.opened();
  if (!device_.is_cpu() && device_transport_ == nullptr) {
    device_memory_ = executor::make_tensor_device_operations(device_);
    own_device_transport_ =
        std::make_unique<comm::DeviceTransport>(transport, *device_memory_, run.offers);
    device_transport_ = own_device_transport_.get();
  }
  stage_ = nn::make_stage(run.model, run.strategy, rank_, stage_options(run, rank_));
  const std::vector<nn::Parameter>& parameters = stage_->parameters();
  norm_shares_ = optim::own_shares(parameters, layout_, rank_);
  if (run.strategy.offload != strategy::Offload::kNone)
    host_memory_ = std::make_unique<executor::HostMemory>(executor::HostMemoryOptions{
        .device = device_,
        .bytes_per_second = run.host_bytes_per_second,
        .folder = run.host_folder,
        .page_lock =
            device_.is_cuda() ? std::optional(executor::runtime_page_lock()) : std::nullopt,
        .ended = [&transport] { transport.wake(); }});
  optim::AdamW::HostBytes with_host;
  if (strategy::offloads_optimizer(run.strategy.offload))
    with_host = [this](int64_t bytes) { return host_memory_->allocate(bytes); };
  using Shares = std::optional<std::vector<optim::ParameterShare>>;
  if (!run.evaluates_only)
    optimizer_ = std::make_unique<optim::AdamW>(
        parameters, run.options.adamw, run.strategy.zero > 0 ? Shares(norm_shares_) : Shares(),
        with_host);
  if (run.strategy.zero >= 2) {
    gradient_shares_ = optim::gradient_shares(*stage_, layout_, rank_, [&run](int32_t layer) {
      return strategy::divides_gradients(run.strategy, run.model, layer);
    });
    if (optimizer_ != nullptr) optimizer_->read_gradients(gradient_shares_);
  }
  const bool compresses = strategy::compresses_experts(run.strategy) && !run.evaluates_only;
  if (run.strategy.zero == 3 || compresses) {
    weight_shares_ = optim::weight_shares(*stage_, layout_, rank_, [&run](strategy::Axis axis) {
      return run.strategy.zero == 3 || axis == strategy::Axis::kExpertData;
    });
    if (optimizer_ != nullptr) optimizer_->update_weights(weight_shares_);
    if (run.strategy.zero == 3) note_selection_biases();
  }
  // A table that both ends hold counts on the first stage.
  if (const at::Tensor tied = at_.pp > 0 ? stage_->tied_embedding_gradient() : at::Tensor();
      tied.defined())
    std::erase_if(norm_shares_, [&](const optim::ParameterShare& share) {
      const at::Tensor& gradient = parameters[share.parameter].gradient;
      return gradient.is_alias_of(tied) && gradient.storage_offset() == tied.storage_offset();
    });
  if (!run.evaluates_only)
    executor_ = std::make_unique<executor::Executor>(run.step, run.strategy, run.model, rank_,
                                                     *stage_, transport, cores, executor_options());
  for (size_t i = 0; i < run.model.layers.size(); ++i)
    if (run.model.layers[i].feed_forward.is_moe())
      mixture_layers_.push_back(static_cast<int32_t>(i));
  for (const int32_t layer : mixture_layers_) {
    const auto given = run.placements.find(layer);
    placements_.emplace(
        layer, given != run.placements.end()
                   ? given->second
                   : balance::ExpertPlacement::plain(num_experts(layer), run.strategy.mesh.ep,
                                                     run.strategy.redundant_experts));
  }
  update_.num_statistics = schedule::num_statistics(run.model, run.strategy);
  update_.local_statistics = [this](std::span<double> statistics) { local_statistics(statistics); };
  update_.apply = [this](std::span<const double> statistics) { apply(statistics); };
  if (!with_host) return;
  update_.host_states = [this](int32_t layer) { return optimizer_->host_states(layer); };
  update_.update_layer = [this](int32_t layer, const at::Tensor& states) {
    if (!outcome_.skipped) optimizer_->update_layer(layer, states);
  };
}

RankTrainer::~RankTrainer() = default;

executor::ExecutorOptions RankTrainer::executor_options() {
  return {.timeout_seconds = run_.options.timeout_seconds,
          .live_bytes = hooks_.live_bytes,
          .topology = &run_.topology,
          .note = hooks_.note,
          .device = device_,
          .device_transport = device_transport_,
          .placements = &placements_,
          .gradient_shares = run_.strategy.zero >= 2 ? &gradient_shares_ : nullptr,
          .weight_shares = weight_shares_.empty() ? nullptr : &weight_shares_,
          .residuals = &residuals_,
          .host_memory = host_memory_.get()};
}

int64_t RankTrainer::num_experts(int32_t layer) const {
  return run_.model.layers[static_cast<size_t>(layer)].feed_forward.num_experts;
}

std::vector<executor::MicroBatch> RankTrainer::fetch(const BatchSource& source,
                                                     int64_t number) const {
  std::vector<executor::MicroBatch> batches(static_cast<size_t>(run_.strategy.num_micro_batches));
  if (!schedule::holds_an_end(run_.strategy, at_.pp)) return batches;
  for (size_t i = 0; i < batches.size(); ++i)
    batches[i] = source(number, at_.dp, static_cast<int64_t>(i));
  return batches;
}

report::StepOutcome RankTrainer::step(int64_t number, graph::Timeline* timeline) {
  number_ = number;
  outcome_ = {};
  const int64_t waits_before = nn::num_host_waits();
  keep_weights();
  stage_->zero_gradients();
  const std::vector<executor::MicroBatch> batches = fetch(run_.batches, number);
  executor_->run_step(number, batches, update_, timeline);
  if (!run_.devices.is_cpu()) outcome_.host_waits = nn::num_host_waits() - waits_before;
  return std::move(outcome_);
}

LossSum RankTrainer::evaluate(int64_t number, const BatchSource& batches, int64_t batch) {
  PIPER_CHECK(run_.evaluation != nullptr, "an evaluation that nobody has written");
  if (evaluation_executor_ == nullptr)
    evaluation_executor_ =
        std::make_unique<executor::Executor>(*run_.evaluation, run_.strategy, run_.model, rank_,
                                             *stage_, transport_, cores_, executor_options());
  LossSum sums;
  executor::Update look{.num_statistics = update_.num_statistics};
  look.local_statistics = [&](std::span<double> statistics) {
    local_statistics(statistics, stage_->take_statistics());
  };
  look.apply = [&](std::span<const double> statistics) {
    sums = {statistics[schedule::kLossSum], statistics[schedule::kTargetTokens]};
  };
  keep_weights();
  evaluation_executor_->run_step(number, fetch(batches, batch), look, nullptr);
  return sums;
}

void RankTrainer::keep_weights() {
  if (weight_shares_.empty() || !has_all_weights_) return;
  has_all_weights_ = false;
  if (std::exchange(knows_experts_, strategy::compresses_experts(run_.strategy))) return;
  for (const auto& [layer, replicas] : weight_shares_.keys()) {
    weight_shares_.keep({layer, replicas}, stage_->weights(layer, replicas));
    if (run_.strategy.zero == 3) stage_->release_weights(layer, replicas);
  }
}

// In fp32 and fp64 a bias lies among the other weights of its layer.
void RankTrainer::note_selection_biases() {
  for (size_t i = 0; i < run_.model.layers.size(); ++i) {
    const auto layer = static_cast<int32_t>(i);
    const at::Tensor bias = stage_->selection_bias(layer);
    if (!bias.defined()) continue;
    for (const nn::Parameter& p : stage_->parameters()) {
      const executor::WeightShares::Key key{p.layer, p.sharding.replicas};
      if (p.layer == layer && p.value.is_alias_of(stage_->weights(p.layer, p.sharding.replicas)) &&
          p.value.data_ptr() == bias.data_ptr() && weight_shares_.contains(key))
        selection_biases_.emplace(layer, p);
    }
  }
}

void RankTrainer::gather_weights(uint64_t key, bool tells) {
  if (run_.strategy.zero == 0 || (!weight_shares_.empty() && has_all_weights_)) return;
  has_all_weights_ = tells || !strategy::compresses_experts(run_.strategy);
  comm::Transport& tensors = device_transport_ != nullptr ? *device_transport_ : transport_;
  std::set<std::pair<int32_t, strategy::Axis>> buffers;
  for (const nn::Parameter& p : stage_->parameters())
    buffers.insert({p.layer, p.sharding.replicas});
  for (const auto& [layer, replicas] : buffers) {
    if (!tells && strategy::compresses_experts(run_.strategy) &&
        replicas == strategy::Axis::kExpertData)
      continue;
    const at::Tensor weights = stage_->weights(layer, replicas);
    if (weight_shares_.contains({layer, replicas}))
      weight_shares_.fill({layer, replicas}, run_.strategy.zero == 3
                                                 ? stage_->hold_weights(layer, replicas)
                                                 : weights);
    const comm::Group group{layout_.group(replicas, rank_),
                            optim::index_among_replicas(layout_, replicas, rank_)};
    const std::unique_ptr<comm::Operation> gather = executor::start_gather(
        tensors, group, {key++, "gather of weights"}, weights, run_.strategy.reduction,
        collective::topology_among(run_.topology, group.members));
    comm::wait(tensors, *gather, run_.options.timeout_seconds);
  }
}

void RankTrainer::local_statistics(std::span<double> statistics) {
  statistics[schedule::kSquaredNorm] =
      optim::sum_of_squares(stage_->parameters(), norm_shares_, gradient_shares_);
  local_statistics(statistics, stage_->take_statistics());
}

void RankTrainer::local_statistics(std::span<double> statistics,
                                   const nn::StageStatistics& stage) const {
  statistics[schedule::kLossSum] = stage.loss_sum;
  statistics[schedule::kTargetTokens] = static_cast<double>(stage.target_tokens);
  statistics[schedule::kAuxiliaryLoss] = stage.auxiliary_loss;
  statistics[schedule::kZLoss] = stage.z_loss;
  statistics[schedule::kMtpLoss] = stage.mtp_loss;
  statistics[schedule::kStops] = run_.stop_requested && run_.stop_requested() ? 1 : 0;
  double* next = put_counts(statistics.data() + schedule::kNumScalars, stage.expert_counts);
  if (run_.strategy.capacity.is_limited()) put_counts(next, stage.expert_rows);
}

// Zeros for the layers of other stages.
double* RankTrainer::put_counts(double* next,
                                const std::map<int32_t, std::vector<int64_t>>& counts) const {
  for (const int32_t layer : mixture_layers_) {
    const auto found = counts.find(layer);
    if (found == counts.end())
      next = std::fill_n(next, num_experts(layer), 0.0);
    else
      next = std::ranges::copy(found->second, next).out;
  }
  return next;
}

const double* RankTrainer::take_counts(const double* next,
                                       std::map<int32_t, std::vector<int64_t>>& counts) const {
  for (const int32_t layer : mixture_layers_) {
    const double* end = next + num_experts(layer);
    counts[layer].assign(next, end);
    next = end;
  }
  return next;
}

void RankTrainer::apply(std::span<const double> statistics) {
  outcome_.loss =
      statistics[schedule::kLossSum] / std::max(1.0, statistics[schedule::kTargetTokens]);
  outcome_.auxiliary_loss = statistics[schedule::kAuxiliaryLoss];
  outcome_.z_loss = statistics[schedule::kZLoss];
  if (run_.model.mtp_depth > 0) outcome_.mtp_loss = statistics[schedule::kMtpLoss];
  outcome_.grad_norm = std::sqrt(statistics[schedule::kSquaredNorm]);
  outcome_.stop = statistics[schedule::kStops] > 0;
  outcome_.learning_rate = optim::learning_rate(run_.options.learning_rate, number_);
  const double* next =
      take_counts(statistics.data() + schedule::kNumScalars, outcome_.expert_counts);
  for (const auto& [layer, counts] : outcome_.expert_counts)
    outcome_.load_imbalance = std::max(outcome_.load_imbalance, balance::imbalance(counts));
  if (run_.strategy.capacity.is_limited()) {
    take_counts(next, outcome_.expert_rows);
    const auto chosen = static_cast<double>(total(outcome_.expert_counts));
    outcome_.dropped_fraction =
        1 - static_cast<double>(total(outcome_.expert_rows)) / std::max(1.0, chosen);
  } else {
    outcome_.expert_rows = outcome_.expert_counts;
  }
  // The sums are the same bits on every rank, so all agree whether to skip.
  outcome_.skipped = !std::isfinite(statistics[schedule::kSquaredNorm]) ||
                     !std::isfinite(statistics[schedule::kLossSum]) ||
                     !std::isfinite(statistics[schedule::kMtpLoss]);
  if (outcome_.skipped) return;
  optimizer_->step(outcome_.learning_rate,
                   optim::clip_scale(outcome_.grad_norm, run_.options.clip_norm));
  if (run_.options.bias_update > 0) balance();
  // Offloaded optimizer states are updated only after this: then a gather finds the residuals
  // itself.
  if (strategy::compresses_experts(run_.strategy) &&
      !strategy::offloads_optimizer(run_.strategy.offload))
    for (const auto& [layer, replicas] : weight_shares_.keys())
      residuals_[layer] = executor::own_residuals(weight_shares_, layer, *stage_, run_.strategy);
}

void RankTrainer::migrate(int64_t number, const balance::Placements& next) {
  keep_weights();
  schedule::LayerMoves moves;
  for (const auto& [layer, placement] : next)
    moves[layer] = balance::moves_between(placements_.at(layer).homes(), placement.homes());
  if (std::ranges::any_of(moves, [](const auto& of) { return !of.second.empty(); }))
    move_homes(number, next, moves);
  for (const auto& [layer, placement] : next) {
    stage_->place_experts(layer, placement);
    placements_.insert_or_assign(layer, placement);
  }
}

void RankTrainer::move_homes(int64_t number, const balance::Placements& next,
                             const schedule::LayerMoves& moves) {
  const schedule::Migration migration = schedule::write_migration(run_.model, run_.strategy, moves);
  const schedule::StepGraph& graph = migration.step;
  executor::Executor executor(graph, run_.strategy, run_.model, rank_, *stage_, transport_, cores_,
                              {.timeout_seconds = run_.options.timeout_seconds,
                               .live_bytes = hooks_.live_bytes,
                               .topology = &run_.topology,
                               .note = hooks_.note,
                               .device = device_,
                               .device_transport = device_transport_});
  executor::Update update;
  update.take_expert = [&](graph::SegmentId segment) {
    return take_expert(graph.segments[segment.index()], migration.pieces[segment.index()]);
  };
  update.put_expert = [&](graph::SegmentId segment, const at::Tensor& state) {
    put_expert(graph.segments[segment.index()], migration.pieces[segment.index()], state);
  };
  next_ = &next;
  executor.run_step(number, {}, update, nullptr);
  next_ = nullptr;
}

namespace {

int64_t index_on(const balance::ExpertPlacement& placement, int64_t rank, int32_t expert) {
  const std::vector<int32_t>& held = placement.held(rank);
  const auto found = std::ranges::find(held, expert);
  PIPER_CHECK(found != held.end(), "an expert is moved by a rank that does not hold it");
  return found - held.begin();
}

}  // namespace

std::vector<optim::ParameterShare> RankTrainer::elements_of(int32_t layer, int64_t index,
                                                            const schedule::StatePieces& pieces) {
  const std::vector<size_t> parameters = stage_->expert_parameters(layer);
  const std::array<int64_t, 2> elements =
      schedule::expert_tensors(run_.model, run_.strategy, layer);
  std::vector<optim::ParameterShare> shares;
  for (const schedule::StatePiece& piece : pieces) {
    const auto tensor = static_cast<size_t>(piece.tensor);
    const int64_t first = index * elements[tensor];
    shares.push_back({parameters.at(tensor), first + piece.begin, first + piece.end});
  }
  return shares;
}

at::Tensor RankTrainer::take_expert(const schedule::Segment& segment,
                                    const schedule::StatePieces& pieces) {
  const int64_t index = index_on(placements_.at(segment.layer), at_.ep, segment.expert);
  std::vector<at::Tensor> parts;
  for (const optim::ParameterShare& share : elements_of(segment.layer, index, pieces))
    for (const at::Tensor& state : optimizer_->moving_state(share))
      parts.push_back(state.to(device_));
  return at::cat(parts);
}

void RankTrainer::put_expert(const schedule::Segment& segment, const schedule::StatePieces& pieces,
                             const at::Tensor& state) {
  const int64_t index = index_on(next_->at(segment.layer), at_.ep, segment.expert);
  int64_t next = 0;
  for (const optim::ParameterShare& share : elements_of(segment.layer, index, pieces)) {
    for (at::Tensor& here : optimizer_->moving_state(share)) {
      here.copy_(state.view(here.scalar_type()).narrow(0, next, here.numel()));
      next += here.numel();
    }
    optimizer_->round_again(share);
  }
}

// Every replica moves its copy by the same counts.
void RankTrainer::balance() {
  for (const auto& [layer, counts] : outcome_.expert_counts) {
    const at::Tensor bias = stage_->selection_bias(layer);
    if (!bias.defined()) continue;
    const at::Tensor rows = at::tensor(at::ArrayRef<int64_t>(counts)).to(at::kDouble);
    at::Tensor fewer = (rows.mean() - rows).sign();
    at::Tensor moved = bias;
    if (const auto divided = selection_biases_.find(layer); divided != selection_biases_.end()) {
      const nn::Parameter& p = divided->second;
      const executor::WeightShares::Part own =
          weight_shares_.own({p.layer, p.sharding.replicas}, p.offset, p.offset + fewer.numel());
      if (!own.weights.defined()) continue;
      moved = own.weights;
      fewer = fewer.narrow(0, own.first, moved.numel());
    }
    moved.add_(nn::put_on_device(fewer.to(moved.dtype()), moved.device()),
               run_.options.bias_update);
  }
}

}  // namespace piper::train
