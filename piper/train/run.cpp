// The ranks' loop: run_open.cpp comes before it, run_watch.cpp and run_save.cpp go on inside,
// run_close.cpp comes after.
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <piper/comm/counted_transport.h>
#include <piper/cost/segment_time.h>
#include <piper/executor/clock.h>
#include <piper/executor/tensor_device_operations.h>
#include <piper/nn/counting_allocator.h>
#include <piper/train/process_agreement.h>
#include <piper/train/run_parts.h>

#include <algorithm>

namespace piper::train {
namespace parts {
namespace {

// `live`: all that the rank holds before its first step.
HeldState held_state(RankTrainer& trainer, int64_t live) {
  HeldState held{0, 0, 0};
  for (const nn::Parameter& parameter : trainer.stage().parameters()) {
    held.weights += static_cast<int64_t>(parameter.value.nbytes());
    // Without memory between steps where they are divided.
    if (parameter.gradient.storage().data() != nullptr)
      held.gradients += static_cast<int64_t>(parameter.gradient.nbytes());
  }
  held.gradients += trainer.gradient_shares().bytes();
  held.optimizer = std::max<int64_t>(0, live - held.weights - held.gradients);
  return held;
}

}  // namespace

void Run::rank_main(comm::Transport& transport) {
  const Rank rank = transport.rank();
  Whereabouts here;
  nn::set_limit(rank, request_.memory_limit_bytes);
  try {
    train_rank(transport, here);
    nn::set_limit(rank, 0);
  } catch (nn::OutOfMemory& error) {
    nn::set_limit(rank, 0);
    error.rank = rank;
    const std::string where =
        here.step == 0 ? "before the first step" : fmt::format("step {}, {}", here.step, here.task);
    throw std::runtime_error(explain_out_of_memory(error, request_.model, request_.strategy,
                                                   request_.cluster, here.held, where));
  }
}

void Run::train_rank(comm::Transport& transport, Whereabouts& here) {
  at::set_num_threads(1);
  const Rank rank = transport.rank();
  const nn::AllocatingRank allocating(rank);
  const at::Device device = shared_.device_of(rank);
  const RankMemory memory = memory_of(rank);
  comm::CountedTransport counted(transport);
  // What lies on a device is counted where it is handed over, not by the words about it.
  std::unique_ptr<comm::DeviceMemory> device_memory;
  std::unique_ptr<comm::DeviceTransport> on_device;
  std::unique_ptr<comm::CountedTransport> counted_on_device;
  if (!device.is_cpu()) {
    device_memory = executor::make_tensor_device_operations(device);
    on_device = std::make_unique<comm::DeviceTransport>(transport, *device_memory, shared_.offers);
    counted_on_device = std::make_unique<comm::CountedTransport>(*on_device);
  }
  const auto take_traffic = [&] {
    std::vector<comm::CountedBytes> bytes = counted.take();
    if (counted_on_device)
      for (const comm::CountedBytes& of : counted_on_device->take()) bytes.push_back(of);
    return bytes;
  };
  RankTrainer trainer(shared_, counted, *cores_, rank_hooks(rank, here), counted_on_device.get());
  here.held = held_state(trainer, memory.live_bytes());
  load(trainer);
  recorder_.set_state_bytes(rank, memory.live_bytes());
  check_speed(0, transport);
  barrier(transport, kBarrierKeys, request_.options.timeout_seconds);
  start_seconds_[rank.index()] = executor::now_seconds();
  if (rank == Rank(0)) make_replanner();
  double before = start_seconds_[rank.index()];
  bool last = false;
  Rebalancer rebalancer = make_rebalancer();
  for (int64_t number = first_step_; !last; ++number) {
    if (writer_) writer_->check();
    memory.reset_peak();
    const Migrated migrated = rebalance(trainer, rebalancer, number);
    if (rebalancer.is_due(number)) {
      before = executor::now_seconds();
      take_traffic();  // what moved is no step's traffic
    }
    const StepOutcome outcome = trainer.step(number, recorder_.timeline_of(number));
    recorder_.set_peak_bytes(number, rank, memory.peak_bytes());
    recorder_.set_routed(number, rank, trainer.routed_rows(), trainer.distinct_tokens());
    if (rank == Rank(0)) recorder_.set_placements(number, displaced(trainer.placements()));
    recorder_.set_traffic(number, rank, take_traffic());
    const double after = executor::now_seconds();
    rebalancer.note(outcome);
    last = number == last_step() || outcome.stop;
    std::optional<double> validation_loss;
    if (request_.validate_every > 0 && (number % request_.validate_every == 0 || last))
      validation_loss = validate(trainer, number);
    if (rank == Rank(0)) {
      record_step(transport, number, outcome, after - before, validation_loss, migrated,
                  trainer.placements());
      say_saves();
    }
    if (!last) replan(trainer, transport, number, after - before, outcome);
    before = validation_loss || request_.replan.is_on() ? executor::now_seconds() : after;
    const int64_t every = request_.checkpoint_every;
    const bool saves = (every > 0 && (number % every == 0 || last)) || outcome.stop;
    if (request_.after_step) request_.after_step(number, trainer);
    const bool compares =
        request_.check_replicas_every > 0 && number % request_.check_replicas_every == 0;
    if (saves || compares || (last && request_.export_weights)) {
      trainer.gather_weights(kWeightKeys + (static_cast<uint64_t>(number) << 20));
      take_traffic();
    }
    if (saves || compares) check_replicas(trainer, transport, number);
    if (saves) {
      save(trainer, rebalancer, transport, number);
      before = executor::now_seconds();
    }
    if (!last) trainer.keep_weights();
    if (outcome.stop) stopped_ = true;
    if (check_speed(number, transport)) before = executor::now_seconds();
  }
  if (!is_alone()) gather_parts(transport);
  if (request_.export_weights && !stopped_) export_weights(trainer, transport);
}

RankMemory Run::memory_of(Rank rank) const {
  const auto num_devices = std::max<int64_t>(1, std::ssize(shared_.devices));
  return {rank, shared_.device_of(rank), std::max<int64_t>(1, world_.size() / num_devices)};
}

RankHooks Run::rank_hooks(Rank rank, Whereabouts& here) {
  return {.live_bytes = [memory = memory_of(rank)] { return memory.live_bytes(); },
          .note =
              [this, rank, &here](int64_t step, const std::string& operation) {
                here.step = step;
                here.task = operation;
                if (!is_alone()) world_.note(rank, step, operation);
              }};
}

// After step `number`, or before the first (0): all ranks at once, as they train. False: not asked
// for.
bool Run::check_speed(int64_t number, comm::Transport& transport) {
  if (!request_.speed_check || !speed_.possible()) return false;
  const uint64_t keys = kSpeedKeys + 2 * static_cast<uint64_t>(number);
  barrier(transport, keys, request_.options.timeout_seconds);
  speed_.measure(transport.rank(), *cores_);
  barrier(transport, keys + 1, request_.options.timeout_seconds);
  return true;
}

void Run::train_all_ranks() {
  try {
    comm::run_ranks(world_, [this](comm::Transport& transport) { rank_main(transport); });
  } catch (const std::exception& error) {
    try {
      if (writer_) writer_->finish();
    } catch (const std::exception& save_error) {
      if (std::string(save_error.what()) != error.what()) say(save_error.what());
    }
    throw;
  }
  if (writer_) writer_->finish();
  say_saves();
}

// A missing price is no reason not to train.
void Run::make_prediction() {
  const std::string missing = cost::unpriced(request_.cluster, request_.strategy.precision);
  if (missing.empty()) {
    prediction_ = predict(step_, request_.model, request_.strategy, request_.cluster);
    deviation_.emplace(step_, prediction_->timeline, prediction_->step_seconds,
                       request_.deviation_bound);
  } else {
    static const graph::Timeline nothing;
    deviation_.emplace(step_, nothing, 0, 0);
    say("nothing is predicted: " + missing);
  }
}

RunResult Run::run() {
  begun_seconds_ = executor::now_seconds();
  agree();
  on_all_processes(world_, "request", [this] {
    check();
    return std::string();
  });
  open_folder();
  price_experts();
  if (is_first()) {
    make_prediction();
    if (request_.on_start) request_.on_start();
  }
  start_seconds_.resize(static_cast<size_t>(world_.size()));
  nn::install_counting_allocator();
  train_all_ranks();
  if (request_.replan.kind == plan::Replan::kAuto) agree_on_change();
  return finish();
}

}  // namespace parts

namespace {

// What came before, in one result with what came after.
void put_before(RunResult& result, RunResult&& earlier) {
  result.metrics.insert(result.metrics.begin(), earlier.metrics.begin(), earlier.metrics.end());
  result.replanned.insert(result.replanned.begin(), earlier.replanned.begin(),
                          earlier.replanned.end());
}

}  // namespace

RunResult run_training(const RunRequest& request) {
  RunRequest next = request;
  RunResult result;
  for (;;) {
    std::optional<strategy::Strategy> strategy;
    {
      parts::Run run(next);
      RunResult part = run.run();
      strategy = run.next_strategy();
      put_before(part, std::move(result));
      result = std::move(part);
    }
    if (!strategy) return result;
    next.strategy = std::move(*strategy);
    next.resume = true;
    next.fresh = false;
    next.on_start = {};
  }
}

}  // namespace piper::train
