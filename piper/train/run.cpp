#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/base/units.h>
#include <piper/comm/local.h>
#include <piper/cost/shard.h>
#include <piper/model/count.h>
#include <piper/nn/counting_allocator.h>
#include <piper/report/run_files.h>
#include <piper/train/available_memory.h>
#include <piper/train/checkpoint_reader.h>
#include <piper/train/checkpoint_state.h>
#include <piper/train/checkpoint_writer.h>
#include <piper/train/data.h>
#include <piper/train/hf_weights.h>
#include <piper/train/run.h>
#include <piper/train/run_recorder.h>
#include <piper/train/tensorboard.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <optional>

namespace piper::train {
namespace {

namespace fs = std::filesystem;

// Meeting point of all ranks; also tells whether one of them has failed (then it throws CommError).
void barrier(comm::Transport& transport, const comm::Group& world, uint64_t key,
             double timeout_seconds) {
  std::vector<int64_t> send(world.members.size(), 0), received(world.members.size());
  const auto operation =
      comm::start_exchange_counts(transport, world, {key, "barrier"}, 1, send, received);
  comm::wait(transport, *operation, timeout_seconds);
}

constexpr uint64_t kBarrierKeys = uint64_t{1} << 62;  // apart from the steps' operations

// Evaluations are numbered apart from steps, which stay below 2^31; numbers fit 32 bits.
constexpr int64_t kValidationNumbers = int64_t{1} << 31;

// Everything that the ranks' threads share.
class Run {
 public:
  explicit Run(const RunRequest& request)
      : request_(request),
        step_(checked_step(request.model, request.strategy)),
        shared_{request.model, request.strategy, step_, request.options, {}},
        cores_(request.cluster.cores_per_node),
        world_(request.strategy.mesh.world()),
        recorder_(step_, request.strategy, request.cluster) {
    shared_.batches = [this](int64_t step, int64_t dp, int64_t micro_batch) {
      Batch batch = training_batch(request_.corpus, request_.strategy, shared_.options.seed, step,
                                   dp, micro_batch);
      return runtime::MicroBatch{std::move(batch.tokens_BS), std::move(batch.targets_T)};
    };
  }

  RunResult run();

 private:
  void say(const std::string& line) const {
    if (request_.say) request_.say(line);
  }
  int64_t last_step() const {
    return request_.stop_after > 0 ? std::min(request_.stop_after, request_.num_steps)
                                   : request_.num_steps;
  }
  void check() const;
  void check_memory() const;
  void open_folder();
  void open_checkpoint(const fs::path& checkpoints);
  void rank_main(comm::Transport& transport);
  void load(RankTrainer& trainer);
  void train_all_ranks();
  double validate(RankTrainer& trainer, int64_t number);
  void record_step(comm::Transport& transport, int64_t number, const StepOutcome& outcome,
                   double seconds, std::optional<double> validation_loss);
  void write_events(const StepMetrics& metrics);
  void save(RankTrainer& trainer, comm::Transport& transport, const comm::Group& world,
            int64_t number);
  void open_writer();
  void say_saves();
  TrainState state_after(int64_t number) const;
  void export_weights(RankTrainer& trainer);
  CheckpointIdentity identity() const;
  RunResult finish();

  const RunRequest& request_;
  schedule::StepGraph step_;
  RunShared shared_;
  runtime::Cores cores_;
  comm::LocalWorld world_;
  RunRecorder recorder_;
  Prediction prediction_;
  std::optional<WeightFolder> weights_;
  std::optional<CheckpointReader> resumed_;
  int64_t first_step_ = 1;
  std::optional<MetricsWriter> metrics_writer_;
  std::optional<EventWriter> events_;
  std::vector<StepMetrics> metrics_;
  int64_t skipped_ = 0, skipped_in_a_row_ = 0;
  std::optional<CheckpointWriter> writer_;  // from the first save on

  std::mutex mutex_;
  std::vector<NamedTensor> exported_;
};

void Run::check() const {
  const strategy::Strategy& s = request_.strategy;
  std::vector<std::string> problems = nn::untrainable(request_.model);
  if (s.precision == strategy::Precision::kBf16)
    problems.push_back(
        "precision is bf16; allowed: fp32, fp64 (training in bf16 is not available in this "
        "version)");
  if (!request_.corpus.is_indexed() && request_.model.vocabulary < 256)
    problems.push_back(fmt::format("vocabulary of {} is {}; byte text needs at least 256",
                                   request_.model.name, request_.model.vocabulary));
  if (!problems.empty()) throw InvalidInput(problems);
  check_memory();
  check_window(request_.corpus, s.sequence);
  if (request_.validate_every > 0) check_window(request_.validation, s.sequence);
}

// All ranks are threads here: weights, gradients and optimizer of all of them must fit before anything is allocated.
void Run::check_memory() const {
  const strategy::Strategy& s = request_.strategy;
  const cost::StateBytes of_parameter = cost::state_bytes(s.precision);
  int64_t needed = 0;
  for (int64_t stage = 0; stage < s.mesh.pp; ++stage)
    needed += s.mesh.dp * cost::shard_of(request_.model, s, stage).total() *
              (of_parameter.weight + of_parameter.gradient + of_parameter.optimizer);
  if (const int64_t available = available_memory_bytes(); needed > available)
    throw InvalidInput(fmt::format(
        "{} on {} ranks of this machine needs {} for weights, gradients and optimizer, and {} is "
        "available; allowed: a smaller model, or fewer replicas of it (`piper estimate` breaks it "
        "down)",
        request_.model.name, s.mesh.world(), format_bytes(static_cast<double>(needed)),
        format_bytes(static_cast<double>(available))));
}

CheckpointIdentity Run::identity() const {
  return {request_.model.name, model_fingerprint(request_.model), request_.strategy.mesh,
          request_.strategy.layers_per_stage};
}

void Run::open_folder() {
  const fs::path checkpoints = request_.folder / "checkpoints";
  // Now, and not while the other ranks wait for the first checkpoint: it reads the whole corpus.
  if (request_.checkpoint_every > 0) request_.corpus.fingerprint();
  std::error_code error;
  fs::create_directories(request_.folder, error);
  if (error) throw IoError(request_.folder.string() + ": cannot be made: " + error.message());
  for (const std::string& leftover : sweep_leftovers(checkpoints))
    say("removed unfinished save " + leftover);
  if (request_.resume) {
    open_checkpoint(checkpoints);
  } else if (const Search found = find_newest_complete(checkpoints); found.newest) {
    throw InvalidInput(fmt::format(
        "{} holds checkpoints of an earlier run; pass --resume to go on from {}, --fresh to "
        "delete them, or name another --run folder",
        checkpoints.string(), found.newest->path.filename().string()));
  }
  if (!request_.initial_weights.empty()) {
    weights_.emplace(request_.initial_weights);
    check_weights(*weights_, request_.model);
  }
  metrics_writer_.emplace(request_.folder / "metrics.jsonl", first_step_ - 1);
  events_.emplace(request_.folder / "tensorboard", first_step_);
  write_json_file(request_.folder / "strategy.json", strategy::to_json(request_.strategy));
}

void Run::open_checkpoint(const fs::path& checkpoints) {
  Search search = find_newest_complete(checkpoints);
  for (const std::string& line : search.skipped)
    if (search.newest) say("passed over a damaged checkpoint: " + line);
  FoundCheckpoint found =
      search.newest ? std::move(*search.newest) : require_newest_complete(checkpoints);
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
  }
}

void Run::rank_main(comm::Transport& transport) {
  at::set_num_threads(1);
  const Rank rank = transport.rank();
  const nn::AllocatingRank allocating(rank);
  comm::Group world;
  for (int64_t r = 0; r < transport.world_size(); ++r) world.members.push_back(Rank(r));
  world.index = rank.value;

  RankTrainer trainer(shared_, transport, cores_, [rank] { return nn::live_bytes(rank); });
  load(trainer);
  recorder_.set_state_bytes(rank, nn::live_bytes(rank));
  barrier(transport, world, kBarrierKeys, request_.options.timeout_seconds);
  double before = runtime::now_seconds();
  for (int64_t number = first_step_; number <= last_step(); ++number) {
    if (writer_) writer_->check();
    nn::reset_peak(rank);
    const StepOutcome outcome = trainer.step(number, recorder_.timeline_of(number));
    recorder_.set_peak_bytes(number, rank, nn::peak_bytes(rank));
    const double after = runtime::now_seconds();
    const bool last = number == last_step();
    std::optional<double> validation_loss;
    if (request_.validate_every > 0 && (number % request_.validate_every == 0 || last))
      validation_loss = validate(trainer, number);
    if (rank == Rank(0)) {
      record_step(transport, number, outcome, after - before, validation_loss);
      say_saves();
    }
    before = validation_loss ? runtime::now_seconds() : after;
    if (request_.checkpoint_every > 0 && (number % request_.checkpoint_every == 0 || last)) {
      save(trainer, transport, world, number);
      before = runtime::now_seconds();
    }
  }
  if (request_.export_weights) export_weights(trainer);
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
  metrics.grad_norm = outcome.grad_norm;
  metrics.learning_rate = outcome.learning_rate;
  metrics.step_seconds = seconds;
  metrics.tokens_per_second = static_cast<double>(s.global_batch_sequences * s.sequence) / seconds;
  metrics.mfu = model_flops_utilization(request_.model, s, request_.cluster, seconds);
  metrics.peak_bytes = recorder_.largest_peak_bytes(number);
  metrics.load_imbalance = outcome.load_imbalance;
  metrics.skipped = outcome.skipped;
  if (validation_loss) metrics.extra["validation_loss"] = *validation_loss;
  metrics_writer_->write(metrics);
  write_events(metrics);
  metrics_.push_back(metrics);
  recorder_.record(number, seconds, outcome.expert_counts);
  if (request_.on_step) request_.on_step(metrics);
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
      {"train/grad_norm", m.grad_norm},
      {"train/learning_rate", m.learning_rate},
      {"speed/step_seconds", m.step_seconds},
      {"speed/tokens_per_second", m.tokens_per_second},
      {"speed/mfu", m.mfu},
      {"memory/peak_bytes", static_cast<double>(m.peak_bytes)},
      {"experts/load_imbalance", m.load_imbalance}};
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

// The whole state lies on this machine, and a copy of it is made once.
void Run::open_writer() {
  const int64_t bytes =
      3 * model::count_parameters(request_.model).total() *
      static_cast<int64_t>(c10::elementSize(runtime::scalar_type(request_.strategy.precision)));
  const int64_t available = available_memory_bytes();
  const bool fits = bytes + bytes / 4 < available;
  if (request_.async_save && !fits)
    say(fmt::format(
        "training waits for each save: to go on meanwhile needs {} more memory, {} is "
        "available",
        format_bytes(static_cast<double>(bytes)), format_bytes(static_cast<double>(available))));
  writer_.emplace(WriterOptions{.folder = request_.folder / "checkpoints",
                                .keep = request_.keep_checkpoints,
                                .copies = request_.async_save && fits,
                                .disk = request_.disk},
                  identity());
}

// Behind the barrier every rank hands in, or none does.
void Run::save(RankTrainer& trainer, comm::Transport& transport, const comm::Group& world,
               int64_t number) {
  const Rank rank = trainer.rank();
  if (rank == Rank(0) && !writer_) open_writer();
  barrier(transport, world, kBarrierKeys + static_cast<uint64_t>(number),
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

void Run::export_weights(RankTrainer& trainer) {
  std::vector<NamedTensor> mine;
  for (const nn::NamedPiece& piece : trainer.stage().named_pieces())
    mine.push_back({piece.name, piece.value.clone()});
  const std::lock_guard lock(mutex_);
  exported_.insert(exported_.end(), mine.begin(), mine.end());
}

RunResult Run::finish() {
  RunResult result;
  result.metrics = metrics_;
  result.prediction = std::move(prediction_);
  result.measurement = recorder_.measurement();
  result.prediction_with_load = predict(step_, request_.model, request_.strategy, request_.cluster,
                                        load_of(request_.model, recorder_.measured_counts()));
  result.comparison = compare(step_, request_.model, request_.strategy, request_.cluster,
                              result.prediction_with_load, result.measurement);
  result.same_order = recorder_.same_order(result.prediction.timeline);
  recorder_.write_files(request_.folder, result);
  if (request_.export_weights)
    train::export_weights(request_.folder / "weights", request_.config, std::move(exported_));
  return result;
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
  check();
  open_folder();
  prediction_ = predict(step_, request_.model, request_.strategy, request_.cluster);
  if (request_.on_start) request_.on_start();
  nn::install_counting_allocator();
  train_all_ranks();
  return finish();
}

}  // namespace

RunResult run_training(const RunRequest& request) { return Run(request).run(); }

}  // namespace piper::train
