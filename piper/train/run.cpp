#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <piper/base/error.h>
#include <piper/base/units.h>
#include <piper/comm/local.h>
#include <piper/cost/shard.h>
#include <piper/model/count.h>
#include <piper/nn/counting_allocator.h>
#include <piper/report/run_files.h>
#include <piper/strategy/mesh.h>
#include <piper/train/available_memory.h>
#include <piper/train/checkpoint_reader.h>
#include <piper/train/checkpoint_state.h>
#include <piper/train/checkpoint_writer.h>
#include <piper/train/data.h>
#include <piper/train/deviation.h>
#include <piper/train/hf_weights.h>
#include <piper/train/out_of_memory.h>
#include <piper/train/replicas.h>
#include <piper/train/run.h>
#include <piper/train/run_lock.h>
#include <piper/train/run_recorder.h>
#include <piper/train/safetensors.h>
#include <piper/train/tensorboard.h>
#include <piper/train/together.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <mutex>
#include <optional>
#include <random>

namespace piper::train {
namespace {

namespace fs = std::filesystem;

// Operations beside the steps' own: a barrier before each save and, after the last step, what process 0 gathers.
constexpr uint64_t kBarrierKeys = uint64_t{1} << 62;
constexpr uint64_t kGatherKeys = kBarrierKeys + (uint64_t{1} << 40);
constexpr uint64_t kReplicaKeys = kBarrierKeys + (uint64_t{1} << 41);  // two a step

// How long a save goes on waiting for the shards of processes once the run has failed.
constexpr double kPartingSeconds = 1;

// Evaluations are numbered apart from steps, which stay below 2^31; numbers fit 32 bits.
constexpr int64_t kValidationNumbers = int64_t{1} << 31;

// `live`: all that the rank holds before its first step.
HeldState held_state(RankTrainer& trainer, int64_t live) {
  HeldState held{0, 0, 0};
  for (const nn::Parameter& parameter : trainer.stage().parameters()) {
    held.weights += static_cast<int64_t>(parameter.value.nbytes());
    held.gradients += static_cast<int64_t>(parameter.gradient.nbytes());
  }
  held.optimizer = std::max<int64_t>(0, live - held.weights - held.gradients);
  return held;
}

// Everything that the ranks' threads share.
class Run {
 public:
  explicit Run(const RunRequest& request)
      : request_(request),
        step_(checked_step(request.model, request.strategy)),
        shared_{request.model, request.strategy, step_, request.options, {}},
        cores_(request.cluster.cores_per_node),
        own_world_(request.world ? 1 : request.strategy.mesh.world()),
        world_(request.world ? *request.world : own_world_),
        recorder_(step_, request.strategy, request.cluster) {
    shared_.batches = [this](int64_t step, int64_t dp, int64_t micro_batch) {
      Batch batch = training_batch(request_.corpus, request_.strategy, shared_.options.seed, step,
                                   dp, micro_batch);
      return runtime::MicroBatch{std::move(batch.tokens_BS), std::move(batch.targets_T)};
    };
    shared_.stop_requested = request.stop_requested;
  }

  RunResult run();

 private:
  bool is_first() const { return world_.process() == 0; }  // holds rank 0, and writes the folder
  bool is_alone() const { return world_.num_processes() == 1; }
  void say(const std::string& line) const {
    if (request_.say && is_first()) request_.say(line);
  }
  int64_t last_step() const {
    return request_.stop_after > 0 ? std::min(request_.stop_after, request_.num_steps)
                                   : request_.num_steps;
  }
  void check() const;
  void check_memory() const;
  void agree() const;
  void open_folder();
  std::string prepare_folder();
  std::optional<FoundCheckpoint> find_checkpoint(const fs::path& checkpoints) const;
  void resume_from(FoundCheckpoint found);
  // Of one rank, for the message when memory ends.
  struct Whereabouts {
    HeldState held;
    int64_t step = 0;
    std::string task;
  };
  void rank_main(comm::Transport& transport);
  void train_rank(comm::Transport& transport, Whereabouts& here);
  RankHooks rank_hooks(Rank rank, Whereabouts& here);
  void load(RankTrainer& trainer);
  void train_all_ranks();
  double validate(RankTrainer& trainer, int64_t number);
  void record_step(comm::Transport& transport, int64_t number, const StepOutcome& outcome,
                   double seconds, std::optional<double> validation_loss);
  void write_events(const StepMetrics& metrics);
  void check_replicas(RankTrainer& trainer, comm::Transport& transport, int64_t number);
  void save(RankTrainer& trainer, comm::Transport& transport, int64_t number);
  int64_t bytes_saved_here() const;
  void open_writer();
  void say_saves();
  TrainState state_after(int64_t number) const;
  void gather_parts(comm::Transport& transport);
  void export_weights(RankTrainer& trainer, comm::Transport& transport);
  CheckpointIdentity identity() const;
  void carry_over(RunResult& result) const;
  RunResult finish();

  const RunRequest& request_;
  schedule::StepGraph step_;
  RunShared shared_;
  runtime::Cores cores_;
  comm::LocalWorld own_world_;  // when the request brings none
  comm::World& world_;
  std::vector<std::string> hosts_;  // by process
  std::vector<double>
      start_seconds_;  // by rank, of its process's clock: when it left the first barrier
  std::string token_;  // of this run alone
  std::atomic<bool> stopped_{false};
  RunRecorder recorder_;
  Prediction prediction_;
  std::optional<DeviationWatch> deviation_;  // process 0's
  std::optional<WeightFolder> weights_;
  std::optional<CheckpointReader> resumed_;
  int64_t first_step_ = 1;
  std::optional<MetricsWriter> metrics_writer_;
  std::optional<EventWriter> events_;
  std::vector<StepMetrics> metrics_;
  int64_t skipped_ = 0, skipped_in_a_row_ = 0;
  std::optional<RunLock> lock_;             // process 0's
  std::optional<CheckpointWriter> writer_;  // from the first save on

  std::mutex mutex_;
  std::vector<NamedTensor> exported_;
};

void Run::check() const {
  const strategy::Strategy& s = request_.strategy;
  std::vector<std::string> problems = nn::untrainable(request_.model);
  if (!request_.corpus.is_indexed() && request_.model.vocabulary < 256)
    problems.push_back(fmt::format("vocabulary of {} is {}; byte text needs at least 256",
                                   request_.model.name, request_.model.vocabulary));
  if (!problems.empty()) throw InvalidInput(problems);
  check_memory();
  check_window(request_.corpus, s.sequence);
  if (request_.validate_every > 0) check_window(request_.validation, s.sequence);
}

// Weights, gradients and optimizer of all ranks of this process must fit before anything is allocated.
void Run::check_memory() const {
  const strategy::Strategy& s = request_.strategy;
  const cost::StateBytes of_parameter = cost::state_bytes(s.precision);
  int64_t needed = 0;
  for (const Rank rank : world_.local_ranks())
    needed += cost::shard_of(request_.model, s, strategy::coordinates(s.mesh, rank).pp).total() *
              (of_parameter.weight + of_parameter.gradient + of_parameter.optimizer);
  if (const int64_t available = available_memory_bytes(); needed > available)
    throw InvalidInput(fmt::format(
        "{} on {} ranks of this machine needs {} for weights, gradients and optimizer, and {} is "
        "available; allowed: a smaller model, or fewer replicas of it (`piper estimate` breaks it "
        "down)",
        request_.model.name, world_.local_ranks().size(), format_bytes(static_cast<double>(needed)),
        format_bytes(static_cast<double>(available))));
}

CheckpointIdentity Run::identity() const {
  return {request_.model.name, model_fingerprint(request_.model), request_.strategy.mesh,
          request_.strategy.layers_per_stage};
}

// What the processes must have in common; all else follows from it.
void Run::agree() const {
  if (is_alone()) return;
  const strategy::Strategy& s = request_.strategy;
  if (world_.size() != s.mesh.world())
    throw InvalidInput(fmt::format("the launcher started {} ranks and the strategy is for {} ({})",
                                   world_.size(), s.mesh.world(), describe(s.mesh)));
  const TrainOptions& o = request_.options;
  require_agreement(world_, "model", model_fingerprint(request_.model));
  require_agreement(world_, "strategy", strategy::to_json(s).dump());
  require_agreement(
      world_, "length of the data",
      fmt::format("{} + {} tokens", request_.corpus.size(), request_.validation.size()));
  require_agreement(
      world_, "set of flags",
      fmt::format(
          "--steps {} --stop-after {} --seed {} --learning-rate {} {} {} {} --weight-decay {} "
          "--clip-norm {} --bias-update {} --z-loss {} --mtp-weight {} --checkpoint-every {} "
          "--check-replicas-every {} --validate-every {} "
          "--validation-windows {} resume {} weights {} export {}",
          request_.num_steps, request_.stop_after, o.seed, o.learning_rate.peak,
          o.learning_rate.minimum, o.learning_rate.warmup_steps, o.learning_rate.total_steps,
          o.adamw.weight_decay, o.clip_norm, o.bias_update, request_.model.router_z_coefficient,
          o.mtp_weight, request_.checkpoint_every, request_.check_replicas_every,
          request_.validate_every, request_.validation_windows, request_.resume,
          request_.initial_weights.string(), request_.export_weights));
}

// Process 0's part. Returns the checkpoint to resume from, "" = none.
std::string Run::prepare_folder() {
  const fs::path checkpoints = request_.folder / "checkpoints";
  std::error_code error;
  fs::create_directories(request_.folder, error);
  if (error) throw IoError(request_.folder.string() + ": cannot be made: " + error.message());
  lock_.emplace(request_.folder);
  if (request_.fresh) fs::remove_all(checkpoints);
  for (const std::string& leftover : sweep_leftovers(checkpoints))
    say("removed unfinished save " + leftover);
  std::string resumed;
  if (auto found = find_checkpoint(checkpoints)) {
    resumed = found->path.string();
    resume_from(std::move(*found));
  }
  metrics_writer_.emplace(request_.folder / "metrics.jsonl", first_step_ - 1);
  events_.emplace(request_.folder / "tensorboard", first_step_);
  write_json_file(request_.folder / "strategy.json", strategy::to_json(request_.strategy));
  return resumed;
}

std::optional<FoundCheckpoint> Run::find_checkpoint(const fs::path& checkpoints) const {
  Search search = find_newest_complete(checkpoints);
  if (!request_.resume) {
    if (search.newest)
      throw InvalidInput(fmt::format(
          "{} holds checkpoints of an earlier run; pass --resume to go on from {}, --fresh to "
          "delete them, or name another --run folder",
          checkpoints.string(), search.newest->path.filename().string()));
    return std::nullopt;
  }
  for (const std::string& line : search.skipped)
    if (search.newest) say("passed over a damaged checkpoint: " + line);
  return search.newest ? std::move(*search.newest) : require_newest_complete(checkpoints);
}

void Run::open_folder() {
  // Now, and not while the other ranks wait for the first checkpoint: it reads the whole corpus.
  if (request_.checkpoint_every > 0) request_.corpus.fingerprint();
  const std::string resumed =
      first_alone(world_, "folder of the run", [this] { return prepare_folder(); });
  token_ = first_alone(world_, "token of the run",
                       [] { return fmt::format("{}-{:08x}", ::getpid(), std::random_device()()); });
  hosts_ = together(world_, "host", [] {
    char name[256] = {};
    ::gethostname(name, sizeof(name) - 1);
    return std::string(name);
  });
  together(world_, "start", [&] {
    if (!is_first() && !resumed.empty())
      resume_from({resumed, parse_manifest(read_json_file(fs::path(resumed) / "manifest.json"),
                                           resumed + "/manifest.json")});
    if (!request_.initial_weights.empty()) {
      weights_.emplace(request_.initial_weights);
      check_weights(*weights_, request_.model);
    }
    return std::string();
  });
}

void Run::resume_from(FoundCheckpoint found) {
  const CheckpointIdentity run = identity();
  if (const auto problems = differences(found.manifest, run, found.path); !problems.empty())
    throw InvalidInput(problems);
  const TrainState state = found.manifest.state;
  if (state.text_fingerprint != request_.corpus.fingerprint())
    throw InvalidInput(fmt::format("{}: was trained on another text than {}", found.path.string(),
                                   request_.corpus.source()));
  const int64_t step_tokens = request_.strategy.global_batch_sequences * request_.strategy.sequence;
  if (request_.corpus.is_indexed() && state.target_tokens != state.step * step_tokens)
    throw InvalidInput(fmt::format(
        "{}: has read {} tokens in {} steps; allowed: the same global batch and sequence, or its "
        "position in {} is lost",
        found.path.string(), state.target_tokens, state.step, request_.corpus.source()));
  first_step_ = state.step + 1;
  skipped_ = state.skipped_steps;
  shared_.options.seed = state.seed;
  say(fmt::format("resuming after step {} from {}", state.step, found.path.string()));
  if (const std::string change = resharding(found.manifest.identity, run); !change.empty())
    say(change);
  if (first_step_ > last_step())
    throw InvalidInput(fmt::format(
        "the run is to end after step {} (--steps, --stop-after), and the checkpoint has {} steps "
        "already; allowed: more than that",
        last_step(), state.step));
  resumed_.emplace(std::move(found));
  resumed_->require_exactly(request_.model);
}

void Run::load(RankTrainer& trainer) {
  if (resumed_) {
    resumed_->read(state_tensors(trainer.stage(), trainer.optimizer()));
  } else if (weights_) {
    load_weights(*weights_, trainer.stage().named_pieces(), request_.model.tied_embeddings);
    trainer.optimizer().take_parameters();
  }
}

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
  RankTrainer trainer(shared_, transport, cores_, rank_hooks(rank, here));
  here.held = held_state(trainer, nn::live_bytes(rank));
  load(trainer);
  recorder_.set_state_bytes(rank, nn::live_bytes(rank));
  barrier(transport, kBarrierKeys, request_.options.timeout_seconds);
  start_seconds_[rank.index()] = runtime::now_seconds();
  double before = start_seconds_[rank.index()];
  bool last = false;
  for (int64_t number = first_step_; !last; ++number) {
    if (writer_) writer_->check();
    nn::reset_peak(rank);
    const StepOutcome outcome = trainer.step(number, recorder_.timeline_of(number));
    recorder_.set_peak_bytes(number, rank, nn::peak_bytes(rank));
    recorder_.set_routed(number, rank, trainer.routed_rows());
    const double after = runtime::now_seconds();
    last = number == last_step() || outcome.stop;
    std::optional<double> validation_loss;
    if (request_.validate_every > 0 && (number % request_.validate_every == 0 || last))
      validation_loss = validate(trainer, number);
    if (rank == Rank(0)) {
      record_step(transport, number, outcome, after - before, validation_loss);
      say_saves();
    }
    before = validation_loss ? runtime::now_seconds() : after;
    const int64_t every = request_.checkpoint_every;
    const bool saves = (every > 0 && (number % every == 0 || last)) || outcome.stop;
    if (request_.after_step) request_.after_step(number, trainer);
    if (saves || (request_.check_replicas_every > 0 && number % request_.check_replicas_every == 0))
      check_replicas(trainer, transport, number);
    if (saves) {
      save(trainer, transport, number);
      before = runtime::now_seconds();
    }
    if (outcome.stop) stopped_ = true;
  }
  if (!is_alone()) gather_parts(transport);
  if (request_.export_weights && !stopped_) export_weights(trainer, transport);
}

RankHooks Run::rank_hooks(Rank rank, Whereabouts& here) {
  return {.live_bytes = [rank] { return nn::live_bytes(rank); },
          .note =
              [this, rank, &here](int64_t step, const std::string& operation) {
                here.step = step;
                here.task = operation;
                if (!is_alone()) world_.note(rank, step, operation);
              }};
}

// Process 0 writes the report of all ranks: the median step of each.
void Run::gather_parts(comm::Transport& transport) {
  const Rank rank = transport.rank();
  const double timeout = request_.options.timeout_seconds;
  const int64_t step =
      broadcast(transport, kGatherKeys, rank == Rank(0) ? recorder_.median_step() : 0, timeout);
  std::string mine;
  if (!is_first()) {
    mine.assign(reinterpret_cast<const char*>(&start_seconds_[rank.index()]), sizeof(double));
    mine += recorder_.part_of(rank, step);
  }
  const std::vector<std::string> parts = gather(transport, kGatherKeys + 1, mine, timeout);
  const int64_t ranks_per_process = world_.size() / world_.num_processes();
  for (size_t r = 0; r < parts.size(); ++r) {
    if (parts[r].empty()) continue;
    double start = 0;
    std::memcpy(&start, parts[r].data(), sizeof(start));
    // Hosts have clocks of their own; all ranks left the first barrier at about the same time.
    const bool same_clock = hosts_[r / static_cast<size_t>(ranks_per_process)] == hosts_.front();
    recorder_.add_part(Rank(static_cast<int64_t>(r)), step, parts[r].substr(sizeof(start)),
                       same_clock ? 0 : start_seconds_[0] - start);
  }
}

// Mean loss of a target token over the validation windows; every rank calls it, and all get the same.
double Run::validate(RankTrainer& trainer, int64_t number) {
  const strategy::Strategy& s = request_.strategy;
  const int64_t all = num_windows(request_.validation, s.sequence);
  const int64_t windows =
      request_.validation_windows > 0 ? std::min(request_.validation_windows, all) : all;
  const BatchSource batches = [&](int64_t batch, int64_t dp, int64_t micro_batch) {
    Batch rows = validation_batch(request_.validation, s, windows, batch, dp, micro_batch);
    return runtime::MicroBatch{std::move(rows.tokens_BS), std::move(rows.targets_T)};
  };
  const int64_t num_batches = (windows - 1) / s.global_batch_sequences + 1;
  // As often as this was done before: every rank counts the same, and the names of operations stay unique.
  const int64_t before = (number - 1) / request_.validate_every * num_batches;
  LossSum sums;
  for (int64_t batch = 0; batch < num_batches; ++batch) {
    const LossSum more = trainer.evaluate(kValidationNumbers + before + batch, batches, batch);
    sums.loss += more.loss;
    sums.target_tokens += more.target_tokens;
  }
  return sums.loss / sums.target_tokens;
}

void Run::record_step(comm::Transport& transport, int64_t number, const StepOutcome& outcome,
                      double seconds, std::optional<double> validation_loss) {
  const strategy::Strategy& s = request_.strategy;
  skipped_ += outcome.skipped;
  skipped_in_a_row_ = outcome.skipped ? skipped_in_a_row_ + 1 : 0;
  StepMetrics metrics;
  metrics.step = number;
  metrics.loss = outcome.loss;
  metrics.auxiliary_loss = outcome.auxiliary_loss;
  metrics.z_loss = outcome.z_loss;
  metrics.grad_norm = outcome.grad_norm;
  metrics.learning_rate = outcome.learning_rate;
  metrics.step_seconds = seconds;
  metrics.tokens_per_second = static_cast<double>(s.global_batch_sequences * s.sequence) / seconds;
  metrics.mfu = model_flops_utilization(request_.model, s, request_.cluster, seconds,
                                        1 - outcome.dropped_fraction.value_or(0));
  metrics.peak_bytes = recorder_.largest_peak_bytes(number);
  metrics.load_imbalance = outcome.load_imbalance;
  metrics.dropped_fraction = outcome.dropped_fraction;
  metrics.skipped = outcome.skipped;
  if (request_.model.mtp_depth > 0) metrics.extra["mtp_loss"] = outcome.mtp_loss;
  if (validation_loss) metrics.extra["validation_loss"] = *validation_loss;
  metrics_writer_->write(metrics);
  write_events(metrics);
  metrics_.push_back(metrics);
  recorder_.record(number, seconds, outcome.expert_rows);
  if (request_.on_step) request_.on_step(metrics);
  if (const auto line = deviation_->note(number, seconds, *recorder_.timeline_of(number)))
    say(*line);
  if (skipped_in_a_row_ >= 3) {
    const std::string what =
        fmt::format("loss or gradient was not finite in 3 steps in a row, up to step {}", number);
    transport.fail(what);
    throw InvalidInput(what + "; lower --learning-rate");
  }
}

// For TensorBoard: the metrics, and each mixture layer's load imbalance.
void Run::write_events(const StepMetrics& m) {
  const double now =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  std::vector<std::pair<std::string, double>> scalars = {
      {"train/loss", m.loss},
      {"train/auxiliary_loss", m.auxiliary_loss},
      {"train/z_loss", m.z_loss},
      {"train/grad_norm", m.grad_norm},
      {"train/learning_rate", m.learning_rate},
      {"speed/step_seconds", m.step_seconds},
      {"speed/tokens_per_second", m.tokens_per_second},
      {"speed/mfu", m.mfu},
      {"memory/peak_bytes", static_cast<double>(m.peak_bytes)},
      {"experts/load_imbalance", m.load_imbalance}};
  if (m.dropped_fraction) scalars.emplace_back("experts/dropped_fraction", *m.dropped_fraction);
  if (m.extra.contains("mtp_loss"))
    scalars.emplace_back("train/mtp_loss", m.extra.at("mtp_loss").get<double>());
  if (m.extra.contains("validation_loss"))
    scalars.emplace_back("validation/loss", m.extra.at("validation_loss").get<double>());
  events_->write(m.step, now, scalars);
}

TrainState Run::state_after(int64_t number) const {
  const int64_t before = resumed_ ? resumed_->checkpoint().manifest.state.target_tokens : 0;
  TrainState state;
  state.step = number;
  state.seed = shared_.options.seed;
  state.target_tokens = before + (number - first_step_ + 1) *
                                     request_.strategy.global_batch_sequences *
                                     request_.strategy.sequence;
  state.skipped_steps = skipped_;
  state.text_fingerprint = request_.corpus.fingerprint();
  return state;
}

// At most: replicas write nothing twice.
int64_t Run::bytes_saved_here() const {
  int64_t parameters = 0;
  const strategy::Strategy& s = request_.strategy;
  for (const Rank rank : world_.local_ranks())
    parameters += cost::shard_of(request_.model, s, strategy::coordinates(s.mesh, rank).pp).total();
  const model::Parameters all = model::count_parameters(request_.model);
  const bool has_modules = request_.model.mtp_depth > 0;
  parameters = std::min(parameters, all.total() + (has_modules ? all.next_token_layers : 0));
  const cost::StateBytes of_parameter = cost::state_bytes(s.precision);
  return parameters * (of_parameter.weight + of_parameter.optimizer);
}

// Of the state that lies in this process a copy is made once.
void Run::open_writer() {
  const int64_t bytes = bytes_saved_here();
  const int64_t available = available_memory_bytes();
  const bool fits = bytes + bytes / 4 < available;
  if (request_.async_save && !fits)
    say(fmt::format(
        "training waits for each save: to go on meanwhile needs {} more memory, {} is "
        "available",
        format_bytes(static_cast<double>(bytes)), format_bytes(static_cast<double>(available))));
  WriterOptions options{.folder = request_.folder / "checkpoints",
                        .keep = request_.keep_checkpoints,
                        .copies = request_.async_save && fits,
                        .disk = request_.disk,
                        .process = world_.process(),
                        .num_processes = world_.num_processes(),
                        .num_local_ranks = std::ssize(world_.local_ranks()),
                        .token = is_alone() ? std::string() : token_,
                        .timeout_seconds = request_.options.timeout_seconds};
  options.others_failed = [this, failed_at = -1.0]() mutable {
    if (failed_at < 0 && world_.failed_rank().valid()) failed_at = runtime::now_seconds();
    return failed_at >= 0 && runtime::now_seconds() > failed_at + kPartingSeconds;
  };
  writer_.emplace(std::move(options), identity());
}

// Before a save, so that what drifted apart is never saved.
void Run::check_replicas(RankTrainer& trainer, comm::Transport& transport, int64_t number) {
  if (request_.strategy.mesh.dp == 1) return;
  const std::vector<std::string> all =
      gather(transport, kReplicaKeys + 2 * static_cast<uint64_t>(number),
             replica_hashes(trainer.stage().parameters()), request_.options.timeout_seconds);
  if (trainer.rank() != Rank(0)) return;
  const std::vector<std::string> drifted = drifted_replicas(request_.strategy.mesh, all);
  if (drifted.empty()) return;
  const std::string what = fmt::format(
      "replicas drifted apart by step {}: {}; nothing of it was saved, go on from an "
      "earlier checkpoint with --resume, on other hardware if it happens again",
      number, fmt::join(drifted, "; "));
  transport.fail(what);
  throw CommError(what);
}

// Behind the barrier every rank hands in, or none does.
void Run::save(RankTrainer& trainer, comm::Transport& transport, int64_t number) {
  const Rank rank = trainer.rank();
  if (rank == world_.local_ranks().front() && !writer_) open_writer();
  barrier(transport, kBarrierKeys + static_cast<uint64_t>(number),
          request_.options.timeout_seconds);
  writer_->hand_in(
      rank, rank == Rank(0) ? state_after(number) : TrainState{.step = number},
      written_tensors(trainer.stage(), trainer.optimizer(), request_.strategy.mesh, rank));
}

void Run::say_saves() {
  if (!writer_) return;
  for (const SaveReport& report : writer_->take_reports())
    say(fmt::format("saved step {}: {} in {}, training was kept waiting for {}", report.step,
                    format_bytes(static_cast<double>(report.bytes)),
                    format_seconds(report.written_seconds), format_seconds(report.waited_seconds)));
}

// Other processes leave their pieces in files, which process 0 reads.
void Run::export_weights(RankTrainer& trainer, comm::Transport& transport) {
  const fs::path pieces = request_.folder / ("weights.tmp-" + token_);
  std::vector<NamedTensor> mine;
  for (const nn::NamedPiece& piece : trainer.stage().named_pieces())
    mine.push_back({piece.name, piece.value.clone()});
  if (!is_first()) {
    fs::create_directories(pieces);
    write_safetensors(pieces / shard_name(trainer.rank().value), mine);
    mine.clear();
  }
  barrier(transport, kGatherKeys + 3, request_.options.timeout_seconds);
  const std::lock_guard lock(mutex_);
  exported_.insert(exported_.end(), mine.begin(), mine.end());
  if (trainer.rank() != Rank(0) || is_alone()) return;
  for (int64_t r = std::ssize(world_.local_ranks()); r < world_.size(); ++r) {
    const SafetensorsFile file(pieces / shard_name(r));
    for (const TensorEntry& entry : file.tensors()) {
      exported_.push_back({entry.name, at::empty(entry.shape, scalar_type(entry.dtype))});
      file.read(entry, exported_.back().value);
    }
  }
  fs::remove_all(pieces);
}

RunResult Run::finish() {
  RunResult result{.stopped = stopped_};
  if (!is_first()) return result;
  result.metrics = metrics_;
  result.prediction = std::move(prediction_);
  result.measurement = recorder_.measurement();
  cost::ExpertLoad load = load_of(request_.model, request_.strategy, recorder_.measured_rows());
  load.routed = recorder_.measured_routing();
  result.prediction_with_load =
      predict(step_, request_.model, request_.strategy, request_.cluster, load);
  result.comparison = compare(step_, request_.model, request_.strategy, request_.cluster,
                              result.prediction_with_load, result.measurement);
  carry_over(result);
  result.same_order = recorder_.same_order(result.prediction.timeline);
  recorder_.write_files(request_.folder, result);
  if (!exported_.empty())
    train::export_weights(request_.folder / "weights",
                          config_with_modules(request_.config, request_.model),
                          with_module_tables(std::move(exported_), request_.model));
  return result;
}

// Beside what compare() knows: what the plan said, what an even load would give, and the load there was.
void Run::carry_over(RunResult& result) const {
  report::Comparison& comparison = result.comparison;
  comparison.balanced_step_seconds = result.prediction.step_seconds;
  if (const auto found = request_.strategy.predicted.find("step_seconds");
      found != request_.strategy.predicted.end() && found->is_number())
    comparison.planned_step_seconds = found->get<double>();
  std::vector<double> imbalance;
  for (const StepMetrics& metrics : metrics_) imbalance.push_back(metrics.load_imbalance);
  std::ranges::sort(imbalance);
  if (!imbalance.empty() && imbalance.back() > 0)
    comparison.measured_load_imbalance = imbalance[imbalance.size() / 2];
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

RunResult Run::run() {
  agree();
  together(world_, "request", [this] {
    check();
    return std::string();
  });
  open_folder();
  if (is_first()) {
    prediction_ = predict(step_, request_.model, request_.strategy, request_.cluster);
    deviation_.emplace(step_, prediction_.timeline, prediction_.step_seconds,
                       request_.deviation_bound);
    if (request_.on_start) request_.on_start();
  }
  start_seconds_.resize(static_cast<size_t>(world_.size()));
  nn::install_counting_allocator();
  train_all_ranks();
  return finish();
}

}  // namespace

RunResult run_training(const RunRequest& request) { return Run(request).run(); }

}  // namespace piper::train
