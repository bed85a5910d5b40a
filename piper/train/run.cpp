#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/checkpoint/hf_weights.h>
#include <piper/comm/counted_transport.h>
#include <piper/comm/local.h>
#include <piper/cost/expert_rows.h>
#include <piper/cost/host_link.h>
#include <piper/cost/links.h>
#include <piper/cost/segment_time.h>
#include <piper/executor/clock.h>
#include <piper/executor/tensor_device_operations.h>
#include <piper/files/output.h>
#include <piper/nn/counting_allocator.h>
#include <piper/report/run_files.h>
#include <piper/train/batches.h>
#include <piper/train/chosen_products.h>
#include <piper/train/evaluate.h>
#include <piper/train/expert_moves.h>
#include <piper/train/out_of_memory.h>
#include <piper/train/process_agreement.h>
#include <piper/train/rank_memory.h>
#include <piper/train/rank_reports.h>
#include <piper/train/run.h>
#include <piper/train/run_check.h>
#include <piper/train/run_folder.h>
#include <piper/train/run_saver.h>
#include <piper/train/starting_point.h>
#include <piper/train/step_records.h>
#include <piper/train/strategy_watch.h>
#include <piper/train/training_settings.h>
#include <piper/train/weight_export.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <tuple>

namespace piper::train {
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

// What process 0 verified and resumes from, as this process reads it.
checkpoint::FoundCheckpoint same_checkpoint(const RunContext& run, const std::string& host,
                                            const std::string& resumed) {
  constexpr size_t kHashDigits = 64;
  const std::filesystem::path path = resumed.substr(kHashDigits);
  checkpoint::FoundCheckpoint found{path, checkpoint::read_manifest(path)};
  if (files::sha256_of_file(path / "manifest.json") != resumed.substr(0, kHashDigits))
    throw IoError(fmt::format("{}: process {} on {} reads another manifest.json than process 0",
                              path.string(), run.world.process(), host));
  return found;
}

// The step with the median time among recorded ones; of its tasks and bytes nothing is known.
Measurement measured_before(const std::vector<report::StepMetrics>& metrics) {
  std::vector<std::pair<double, int64_t>> all;
  for (const report::StepMetrics& step : metrics)
    if (step["step_seconds"]) all.emplace_back(*step["step_seconds"], step.step);
  std::ranges::sort(all);
  Measurement measured;
  measured.num_steps = std::ssize(all);
  if (!all.empty()) std::tie(measured.step_seconds, measured.step) = all[all.size() / 2];
  return measured;
}

// Which of a host's CPUs this process computes on: the processes of one host divide them, when all
// may run on the same ones. Empty: on any.
std::vector<int> own_cpus(const RunContext& run, const std::vector<std::string>& hosts) {
  const std::vector<int> allowed = executor::allowed_cpus();
  const std::vector<std::string> sets = on_all_processes(
      run.world, "CPUs", [&] { return fmt::format("{}", fmt::join(allowed, ",")); });
  int64_t here = 0, before = 0, alike = 0;
  for (int64_t p = 0; p < run.world.num_processes(); ++p) {
    const auto i = static_cast<size_t>(p), mine = static_cast<size_t>(run.world.process());
    if (hosts[i] != hosts[mine]) continue;
    ++here;
    before += p < run.world.process() ? 1 : 0;
    alike += sets[i] == sets[mine] ? 1 : 0;
  }
  const int64_t limit = run.request.cluster.cores_per_node;
  return limit == std::ssize(allowed) && alike == here
             ? executor::own_cpus(allowed, before, here, std::ssize(run.world.local_ranks()))
             : std::vector<int>{};
}

// A run with one strategy: what its processes do before, in and behind the ranks' loop.
//
// Thread safety: members that ranks' threads call say so by taking a RankTrainer or a Transport,
// which are the rank's own; what they share is immutable, atomic, behind a mutex, or rank 0's
// alone.
class Run {
 public:
  explicit Run(const RunRequest& request);
  RunResult run();
  // After run(), the same in every process: the strategy with which to go on from the last
  // checkpoint; nullopt where the run is over.
  const std::optional<strategy::Strategy>& next_strategy() const { return next_strategy_; }

 private:
  void open();
  std::string open_folder();
  void begin_records(comm::Transport& transport);
  void make_prediction();
  void train_all_ranks();
  // A rank notes here what it holds and does, for the message when memory ends.
  struct Whereabouts {
    HeldState held;
    int64_t step = 0;
    std::string task;
  };
  void rank_main(comm::Transport& transport);
  void train_rank(comm::Transport& transport, Whereabouts& here);
  void export_loaded(RankTrainer& trainer, comm::Transport& transport);
  RankMemory memory_of(Rank rank) const;
  RankHooks rank_hooks(comm::Transport& transport, Whereabouts& here);
  bool check_speed(int64_t number, comm::Transport& transport);
  double validate(RankTrainer& trainer, int64_t number);
  checkpoint::TrainState state_after(int64_t number, const balance::Placements& placements,
                                     const Rebalancer& rebalancer) const;
  RunResult finish();
  RunResult finish_without_steps(RunResult result);
  void carry_over(RunResult& result) const;

  const RunRequest& request_;
  schedule::StepGraph step_;
  std::optional<schedule::StepGraph> evaluation_;  // where the run validates
  RunShared shared_;
  std::vector<int64_t> held_at_start_;  // by device (rank_memory.h); read after a barrier
  comm::LocalWorld own_world_;          // when the request brings none
  const RunContext context_;
  StartingPoint start_;
  RunFolder folder_;  // process 0's
  ChosenProducts products_;
  ExpertMoves moves_;
  RunRecorder recorder_;
  SpeedCheck speed_;
  RankReports reports_;
  StepRecords records_;  // process 0's
  RunSaver saver_;
  StrategyWatch watch_;  // rank 0's
  WeightExport export_;
  std::optional<executor::Cores> cores_;      // from open() on
  std::vector<std::string> hosts_;            // by process
  std::string token_;                         // of this run alone
  double begun_seconds_ = 0;                  // when run() was called
  std::optional<StepPrediction> prediction_;  // process 0's, where the cluster can price the step
  std::atomic<bool> stopped_{false};
  std::optional<strategy::Strategy> next_strategy_;
};

Run::Run(const RunRequest& request)
    : request_(request),
      step_(checked_step(request.model, request.strategy)),
      shared_{request.model, request.strategy, step_, request.options, {}},
      own_world_(request.world ? 1 : request.strategy.mesh.world()),
      context_{request, request.world ? *request.world : own_world_},
      start_(context_, shared_),
      folder_(context_),
      moves_(context_),
      recorder_(step_, request.strategy, request.cluster),
      speed_(request.cluster, request.strategy.precision, request.strategy.mesh.world()),
      reports_(context_, recorder_, speed_),
      records_(context_, recorder_),
      saver_(context_,
             [this] {
               folder_.check();
               records_.sync();
             }),
      watch_(context_),
      export_(context_) {
  shared_.batches = [this](int64_t step, int64_t dp, int64_t micro_batch) {
    return training_batch(request_.corpus, request_.strategy, shared_.options.seed, step, dp,
                          micro_batch);
  };
  shared_.stop_requested = [this] {
    return watch_.changes() || (request_.stop_requested && request_.stop_requested());
  };
  if (request.validate_every > 0)
    shared_.evaluation = &evaluation_.emplace(checked_evaluation(request.model, request.strategy));
  shared_.placements = request.placements;
  shared_.devices = request.devices;
  shared_.offers = std::make_shared<comm::DeviceOffers>(context_.world.local_ranks());
  shared_.topology = cost::topology_of_ranks(request.cluster, request.strategy.mesh.world());
  shared_.host_bytes_per_second = cost::host_bytes_per_second(request.cluster);
  shared_.host_folder = request.host_folder;
}

RunResult Run::run() {
  begun_seconds_ = executor::now_seconds();
  require_same_request(context_);
  on_all_processes(context_.world, "request", [this] {
    check_request(context_);
    return std::string();
  });
  open();
  moves_.price();
  if (context_.is_first()) {
    make_prediction();
    if (request_.on_start) request_.on_start();
  }
  nn::install_counting_allocator();
  train_all_ranks();
  if (request_.replan.kind == plan::Replan::kAuto && !start_.has_nothing_left())
    next_strategy_ = watch_.agree_on_change();
  return finish();
}

void Run::open() {
  // Now, and not while the other ranks wait for the first checkpoint: it reads the whole corpus.
  if (request_.checkpoint_every > 0) request_.corpus.fingerprint();
  const std::string resumed =
      on_first_process(context_.world, "folder of the run", [this] { return open_folder(); });
  token_ = on_first_process(context_.world, "token of the run", [] {
    return fmt::format("{}-{:08x}", ::getpid(), std::random_device()());
  });
  saver_.set_token(token_);
  hosts_ = on_all_processes(context_.world, "host", [] { return host_name(); });
  reports_.set_hosts(hosts_);
  if (const std::vector<int> cpus = own_cpus(context_, hosts_); !cpus.empty())
    cores_.emplace(cpus);
  else
    cores_.emplace(request_.cluster.cores_per_node);
  on_all_processes(context_.world, "start", [&] {
    if (!context_.is_first() && !resumed.empty())
      start_.resume_from(same_checkpoint(
          context_, hosts_[static_cast<size_t>(context_.world.process())], resumed));
    if (!request_.initial_weights.empty()) start_.read_weights();
    return std::string();
  });
  // Now that the weights to start from, which may lie there, have been read.
  on_first_process(context_.world, "folder of the weights", [&] {
    if (request_.export_weights)
      checkpoint::require_export_folder(request_.folder / WeightExport::kFolder);
    return std::string();
  });
  products_ = choose_products(context_, start_);
}

// Process 0's part. Returns the checkpoint to resume from, behind its manifest's hash; "" = none.
std::string Run::open_folder() {
  std::string resumed;
  if (auto found = folder_.open()) {
    resumed = files::sha256_of_file(found->path / "manifest.json") + found->path.string();
    start_.resume_from(std::move(*found));
  }
  return resumed;
}

// After the first step: nothing of an earlier run is touched before this one is sure to go on.
// All ranks call it.
void Run::begin_records(comm::Transport& transport) {
  if (transport.rank() == Rank(0)) {
    folder_.begin();
    if (request_.on_begin) request_.on_begin();
    records_.open(start_.first_step(), start_.state());
    files::write_json_file(request_.folder / report::kStrategyFile,
                           strategy::to_json(request_.strategy));
  }
  barrier(transport, kBegunKeys, request_.options.timeout_seconds);
}

// A missing price is no reason not to train.
void Run::make_prediction() {
  const std::string missing = cost::unpriced(request_.cluster, request_.strategy.precision);
  if (missing.empty()) {
    const int64_t ep = request_.strategy.mesh.ep;
    const double imbalance = cost::expected_imbalance(request_.load, request_.model, ep);
    const cost::ExpertLoad load = imbalance == 1 || ep == 1
                                      ? cost::ExpertLoad()
                                      : cost::busy_rank_load(request_.model, ep, imbalance);
    prediction_ = predict(step_, request_.model, request_.strategy, request_.cluster, load);
    records_.watch(
        {step_, prediction_->timeline, prediction_->step_seconds, request_.deviation_bound});
  } else {
    static const graph::Timeline nothing;
    records_.watch({step_, nothing, 0, 0});
    context_.say("nothing is predicted: " + missing);
  }
}

void Run::train_all_ranks() {
  held_at_start_.assign(shared_.devices.uses().size(), 0);
  try {
    comm::run_ranks(context_.world, [this](comm::Transport& transport) { rank_main(transport); });
  } catch (const std::exception& error) {
    try {
      saver_.finish();
    } catch (const std::exception& save_error) {
      if (std::string(save_error.what()) != error.what()) context_.say(save_error.what());
    }
    throw;
  }
  saver_.finish();
  saver_.say_saves();
}

void Run::rank_main(comm::Transport& transport) {
  const Rank rank = transport.rank();
  Whereabouts here;
  const auto explained = [&](const nn::OutOfMemory& error) {
    const std::string where =
        here.step == 0 ? "before the first step" : fmt::format("step {}, {}", here.step, here.task);
    return std::runtime_error(explain_out_of_memory(error, request_.model, request_.strategy,
                                                    request_.cluster, here.held, where));
  };
  nn::set_limit(rank, request_.memory_limit_bytes);
  try {
    train_rank(transport, here);
    nn::set_limit(rank, 0);
  } catch (nn::OutOfMemory& error) {
    nn::set_limit(rank, 0);
    if (!error.rank.valid()) error.live_bytes = nn::live_bytes(rank);  // a product's library asked
    error.rank = rank;
    throw explained(error);
  } catch (const c10::OutOfMemoryError& error) {
    throw explained(out_of_device_memory(error.what_without_backtrace(), rank,
                                         held_bytes(shared_.devices.of(rank))));
  }
}

void Run::train_rank(comm::Transport& transport, Whereabouts& here) {
  at::set_num_threads(1);
  const Rank rank = transport.rank();
  const nn::AllocatingRank allocating(rank);
  const at::Device device = shared_.devices.of(rank);
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
  RankTrainer trainer(shared_, counted, *cores_, rank_hooks(transport, here),
                      counted_on_device.get());
  here.held = held_state(trainer, memory.live_bytes());
  start_.load(trainer, fmt::format("rank {} on {}", rank.value,
                                   hosts_[static_cast<size_t>(context_.world.process())]));
  if (start_.has_nothing_left()) return export_loaded(trainer, transport);
  check_speed(0, transport);
  barrier(transport, kBarrierKeys, request_.options.timeout_seconds);
  // All ranks that share a device have their states now, and none has begun.
  recorder_.set_state_bytes(rank, memory.live_bytes());
  barrier(transport, kStateKeys, request_.options.timeout_seconds);
  double before = executor::now_seconds();
  reports_.set_start(rank, before);
  if (rank == Rank(0)) watch_.begin(step_, begun_seconds_);
  bool last = false;
  // Every process's, so that what was saved is not kept for the end.
  const bool says_saves = rank == context_.world.local_ranks().front();
  Rebalancer rebalancer = moves_.make_rebalancer(shared_, start_);
  for (int64_t number = start_.first_step(); !last; ++number) {
    saver_.check();
    memory.reset_peak();
    const report::Migrated migrated =
        moves_.before_step(trainer, rebalancer, number, prediction_.has_value());
    if (rebalancer.is_due(number)) {
      before = executor::now_seconds();
      take_traffic();  // what moved is no step's traffic
    }
    const report::StepOutcome outcome = trainer.step(number, recorder_.timeline_of(number));
    if (number == start_.first_step()) begin_records(transport);
    for (const Rank of : memory.reads_for())
      recorder_.set_peak_bytes(number, of, memory.peak_bytes());
    recorder_.set_routed(number, rank, trainer.routed_rows(), trainer.distinct_tokens());
    if (rank == Rank(0)) recorder_.set_placements(number, displaced(trainer.placements()));
    recorder_.set_traffic(number, rank, take_traffic());
    const double after = executor::now_seconds();
    rebalancer.note(outcome);
    last = number == context_.last_step() || outcome.stop;
    std::optional<double> validation_loss;
    if (request_.validate_every > 0 && (number % request_.validate_every == 0 || last))
      validation_loss = validate(trainer, number);
    if (rank == Rank(0)) {
      moves_.note_step(after - before);
      records_.add(transport, number, outcome, after - before, validation_loss, migrated,
                   trainer.placements());
    }
    if (says_saves) saver_.say_saves();
    if (!last && request_.replan.is_on()) {
      // A single process calls it, too: the other ranks have then written their part of the step.
      reports_.gather_step(transport, kReplanKeys + 2 * static_cast<uint64_t>(number), number);
      if (rank == Rank(0))
        watch_.note(number, after - before, *recorder_.timeline_of(number), outcome.expert_rows,
                    displaced(trainer.placements()));
    }
    before = validation_loss || request_.replan.is_on() ? executor::now_seconds() : after;
    const int64_t every = request_.checkpoint_every;
    const bool saves = (every > 0 && (number % every == 0 || last)) || outcome.stop;
    if (request_.after_step) request_.after_step(number, trainer);
    const bool compares =
        request_.check_replicas_every > 0 && number % request_.check_replicas_every == 0;
    const bool exports = last && request_.export_weights;
    if (saves || compares || exports) {
      trainer.gather_weights(kWeightKeys + (static_cast<uint64_t>(number) << 20),
                             /*tells=*/saves || exports);
      take_traffic();
      check_replicas(context_, trainer, transport, number);
    }
    if (saves) {
      saver_.save(trainer, transport, number,
                  [&] { return state_after(number, trainer.placements(), rebalancer); });
      before = executor::now_seconds();
    }
    if (!last) trainer.keep_weights();
    if (outcome.stop) stopped_ = true;
    if (check_speed(number, transport)) before = executor::now_seconds();
  }
  if (!context_.is_alone()) reports_.gather_all(transport, start_.first_step());
  if (request_.export_weights && !stopped_)
    export_.add(trainer, transport, context_.last_step(), token_);
}

// Exports the weights of a run whose last step the checkpoint holds.
void Run::export_loaded(RankTrainer& trainer, comm::Transport& transport) {
  if (!request_.export_weights) return;
  const int64_t number = context_.last_step();
  trainer.gather_weights(kWeightKeys + (static_cast<uint64_t>(number) << 20), /*tells=*/true);
  check_replicas(context_, trainer, transport, number);
  export_.add(trainer, transport, number, token_);
}

RankMemory Run::memory_of(Rank rank) const {
  const RankDevices& devices = shared_.devices;
  if (devices.is_cpu()) return RankMemory(rank);
  const size_t use = devices.use_of(rank);
  return {rank, devices.uses()[use], &held_at_start_[use]};
}

RankHooks Run::rank_hooks(comm::Transport& transport, Whereabouts& here) {
  const Rank rank = transport.rank();
  return {.live_bytes = [memory = memory_of(rank)] { return memory.live_bytes(); },
          .note =
              [this, rank, &here](int64_t step, const std::string& operation) {
                here.step = step;
                here.task = operation;
                if (!context_.is_alone()) context_.world.note(rank, step, operation);
              },
          .opened =
              [this, rank, &transport] {
                const double timeout = request_.options.timeout_seconds;
                barrier(transport, kOpenedKeys, timeout);
                const size_t use = shared_.devices.use_of(rank);
                const RankDevices::Use& of = shared_.devices.uses()[use];
                if (of.ranks.front() == rank) held_at_start_[use] = held_bytes(of.device);
                barrier(transport, kOpenedKeys + 1, timeout);
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

// Mean loss of a target token over the validation windows; every rank calls it, and all get the
// same.
double Run::validate(RankTrainer& trainer, int64_t number) {
  const strategy::Strategy& s = request_.strategy;
  const int64_t all = num_windows(request_.validation, s.sequence),
                most = request_.validation_windows;
  const int64_t windows = most > 0 ? std::min(most, all) : all;
  // As often as this was done before: every rank counts the same, and the names of operations stay
  // unique.
  const int64_t each = (windows - 1) / s.global_batch_sequences + 1,
                before = (number - 1) / request_.validate_every * each;
  PIPER_CHECK(before + each < kMigrationNumbers - kValidationNumbers, "too many evaluations");
  const LossSum sums =
      evaluate_windows(trainer, request_.validation, s, windows, kValidationNumbers + before);
  return sums.loss / sums.target_tokens;
}

checkpoint::TrainState Run::state_after(int64_t number, const balance::Placements& placements,
                                        const Rebalancer& rebalancer) const {
  checkpoint::TrainState state;
  state.step = number;
  state.seed = shared_.options.seed;
  state.target_tokens = start_.state().target_tokens +
                        (number - start_.first_step() + 1) *
                            request_.strategy.global_batch_sequences * request_.strategy.sequence;
  records_.count_skipped(state);
  state.text_fingerprint = request_.corpus.fingerprint();
  if (const balance::Placements some = displaced(placements); !some.empty())
    state.extra[kExpertPlacement] = balance::to_json(some);
  state.extra[kTrainingSettings] = training_settings(request_);
  if (!request_.config.empty()) state.extra[kModelConfig] = request_.config;
  if (request_.rebalance.is_on()) state.extra[kExpertLoads] = rebalancer.window();
  products_.add_to(state);
  return state;
}

RunResult Run::finish() {
  RunResult result{.stopped = stopped_ && !next_strategy_, .replanned = watch_.proposals()};
  if (!context_.is_first()) return result;
  if (start_.has_nothing_left()) return finish_without_steps(std::move(result));
  result.metrics = records_.metrics();
  if (context_.is_alone()) recorder_.set_slowdowns(start_.first_step(), speed_.slowdowns());
  result.prediction = std::move(prediction_);
  result.measurement = recorder_.measurement();
  cost::ExpertLoad load =
      cost::load_of(request_.model, request_.strategy, recorder_.measured_outcome().expert_rows);
  recorder_.measured_routing(load);
  if (result.prediction)
    result.prediction_with_load =
        predict(step_, request_.model, request_.strategy, request_.cluster, load,
                recorder_.slowdown_of(recorder_.median_step()));
  result.comparison = compare(step_, request_.model, request_.strategy, request_.cluster,
                              result.prediction_with_load, result.measurement);
  result.traffic = compare_traffic(
      step_, recorder_.median_step(),
      cost::sent_bytes(step_, request_.model, request_.strategy, shared_.topology, load),
      recorder_.measured_traffic());
  carry_over(result);
  if (result.prediction) result.same_order = recorder_.same_order(result.prediction->timeline);
  recorder_.write_files(request_.folder, result);
  export_.write();
  return result;
}

// What was measured is what the records say of the steps before the checkpoint: their times alone.
// A comparison that the run has left already says more, and stays.
RunResult Run::finish_without_steps(RunResult result) {
  const std::filesystem::path records = request_.folder / report::kMetricsFile;
  result.metrics = report::parse_metrics(read_text_file(records), records.string());
  result.prediction = std::move(prediction_);
  result.prediction_with_load = result.prediction;
  result.measurement = measured_before(result.metrics);
  result.comparison = compare(step_, request_.model, request_.strategy, request_.cluster,
                              result.prediction_with_load, result.measurement);
  carry_over(result);
  const std::filesystem::path comparison = request_.folder / report::kComparisonFile;
  if (!std::filesystem::exists(comparison))
    files::write_json_file(comparison, report::to_json(result.comparison));
  export_.write();
  return result;
}

// Beside what compare() knows: what the plan said, what was predicted at its load, and the load
// there was.
void Run::carry_over(RunResult& result) const {
  report::Comparison& comparison = result.comparison;
  if (result.prediction) comparison.expected_step_seconds = result.prediction->step_seconds;
  comparison.expected_load_imbalance = cost::expected_busiest_expert(request_.load, request_.model);
  if (const std::shared_ptr<const Json>& planned = request_.strategy.predicted)
    if (const auto found = planned->find("step_seconds");
        found != planned->end() && found->is_number())
      comparison.planned_step_seconds = found->get<double>();
  if (!speed_.slowdowns().empty())
    comparison.machine_slowdown = recorder_.slowdown_of(recorder_.median_step());
  if (start_.has_nothing_left()) return;
  if (const double measured = recorder_.measured_outcome().load_imbalance; measured > 0)
    comparison.measured_load_imbalance = measured;
}

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
      Run run(next);
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
