// What a run does before its first step: what the processes agree on, the folder, the checkpoint to
// go on from.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <piper/balance/copies.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/checkpoint/checkpoint_state.h>
#include <piper/checkpoint/hf_weights.h>
#include <piper/cost/estimator.h>
#include <piper/cost/expert_price.h>
#include <piper/cost/host_link.h>
#include <piper/cost/links.h>
#include <piper/cost/segment_time.h>
#include <piper/nn/experts_grouped.h>
#include <piper/nn/product.h>
#include <piper/nn/product_onednn.h>
#include <piper/profile/measure_products.h>
#include <piper/report/run_files.h>
#include <piper/strategy/runnable.h>
#include <piper/train/batches.h>
#include <piper/train/memory_check.h>
#include <piper/train/process_agreement.h>
#include <piper/train/run_parts.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <random>
#include <string_view>

namespace piper::train::parts {
namespace {

// In RUN itself, beside what damage left.
constexpr std::array<std::string_view, 10> kFilesOfARun = {
    report::kStrategyFile,        report::kMetricsFile,    report::kPredictedTraceFile,
    report::kMeasuredTraceFile,   report::kComparisonFile, report::kTrafficFile,
    report::kExpertLoadFile,      report::kRunFile,        report::kClusterFile,
    report::kProposedStrategyFile};

}  // namespace

Run::Run(const RunRequest& request)
    : request_(request),
      step_(checked_step(request.model, request.strategy)),
      shared_{request.model, request.strategy, step_, request.options, {}},
      own_world_(request.world ? 1 : request.strategy.mesh.world()),
      world_(request.world ? *request.world : own_world_),
      recorder_(step_, request.strategy, request.cluster),
      speed_(request.cluster, request.strategy.precision, request.strategy.mesh.world()) {
  shared_.batches = [this](int64_t step, int64_t dp, int64_t micro_batch) {
    Batch batch = training_batch(request_.corpus, request_.strategy, shared_.options.seed, step, dp,
                                 micro_batch);
    return executor::MicroBatch{std::move(batch.tokens_BS), std::move(batch.targets_T)};
  };
  shared_.stop_requested = [this] {
    return changes_ || (request_.stop_requested && request_.stop_requested());
  };
  if (request.validate_every > 0)
    shared_.evaluation = &evaluation_.emplace(checked_evaluation(request.model, request.strategy));
  shared_.placements = request.placements;
  shared_.devices = request.devices;
  shared_.topology = cost::topology_of_ranks(request.cluster, request.strategy.mesh.world());
  shared_.host_bytes_per_second = cost::host_bytes_per_second(request.cluster);
  shared_.host_folder = request.host_folder;
}

void Run::check_replanning(std::vector<std::string>& problems) const {
  const std::string missing = cost::unpriced(request_.cluster, request_.strategy.precision);
  if (!missing.empty())
    problems.push_back("--replan has nothing to compare with (" + missing + "); allowed here: off");
  else if (!cost::has_exact_costs(request_.cluster, cost::load_trainer("piper")))
    problems.push_back(fmt::format(
        "--replan compares by this Piper's own costs, which are known of a machine that `piper "
        "profile` measured, and {} is described; allowed here: off",
        request_.cluster.name));
}

void Run::check() const {
  const strategy::Strategy& s = request_.strategy;
  std::vector<std::string> problems = strategy::untrainable(request_.model, s);
  if (!request_.corpus.is_indexed() && request_.model.vocabulary < 256)
    problems.push_back(fmt::format("vocabulary of {} is {}; byte text needs at least 256",
                                   request_.model.name, request_.model.vocabulary));
  for (std::string& problem :
       train::problems(request_.rebalance, s, cost::expert_bytes(request_.model, s.precision)))
    problems.push_back(std::move(problem));
  if (request_.replan.is_on()) check_replanning(problems);
  if (!problems.empty()) throw InvalidInput(problems);
  if (!request_.devices.empty() && !is_alone())
    throw InvalidInput(
        "ranks on devices are threads of one process so far; allowed: --device cpu under a "
        "launcher, or one process");
  require_memory_of(request_.model, request_.strategy, world_.local_ranks(), request_.devices);
  // On the CPU tensors are in the same memory, which is known to hold them.
  const fs::path& folder = request_.host_folder;
  const auto beside_tensors = [&] {
    return needed_memory(request_.model, s, world_.local_ranks()).total();
  };
  require_host_memory(request_.model, s, world_.local_ranks(), folder,
                      !folder.empty() ? request_.disk.free_bytes(folder)
                                      : available_memory_bytes() -
                                            (request_.devices.empty() ? beside_tensors() : 0));
  data::check_window(request_.corpus, s.sequence);
  if (request_.validate_every > 0) data::check_window(request_.validation, s.sequence);
}

checkpoint::CheckpointIdentity Run::identity() const {
  return {request_.model.name, checkpoint::model_fingerprint(request_.model),
          request_.strategy.mesh, request_.strategy.layers_per_stage};
}

// What the processes must have in common; all else follows from it.
void Run::agree() const {
  if (is_alone()) return;
  const strategy::Strategy& s = request_.strategy;
  if (world_.size() != s.mesh.world())
    throw InvalidInput(fmt::format("the launcher started {} ranks and the strategy is for {} ({})",
                                   world_.size(), s.mesh.world(), checkpoint::describe(s.mesh)));
  const TrainOptions& o = request_.options;
  require_agreement(world_, "model", checkpoint::model_fingerprint(request_.model));
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
          "--validation-windows {} --rebalance {} --rebalance-every {} --rebalance-budget {} "
          "--expert-placement {} --replan {} --replan-bound {} resume {} weights {} export {}",
          request_.num_steps, request_.stop_after, o.seed, o.learning_rate.peak,
          o.learning_rate.minimum, o.learning_rate.warmup_steps, o.learning_rate.total_steps,
          o.adamw.weight_decay, o.clip_norm, o.bias_update, request_.model.router_z_coefficient,
          o.mtp_weight, request_.checkpoint_every, request_.check_replicas_every,
          request_.validate_every, request_.validation_windows,
          balance::to_text(request_.rebalance), request_.rebalance.every,
          request_.rebalance.budget_bytes, balance::to_json(request_.placements).dump(),
          traits(request_.replan.kind).name, request_.replan.bound, request_.resume,
          request_.initial_weights.string(), request_.export_weights));
}

// What --fresh removes: checkpoints, records and results, by their names. Exported weights are a
// result that somebody asked for, and stay.
void Run::remove_earlier_run() const {
  for (const std::string& note : checkpoint::remove_checkpoints(request_.folder / "checkpoints"))
    say(note);
  const auto remove_in = [](const fs::path& folder, const auto& wanted) {
    std::error_code error;
    if (fs::is_symlink(folder, error)) return;
    std::vector<fs::path> files;
    for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
         entry.increment(error))
      if (!entry->is_directory() && wanted(entry->path().filename().string()))
        files.push_back(entry->path());
    for (const fs::path& file : files)
      if (!fs::remove(file, error) && error)
        throw IoError(file.string() + ": cannot be removed: " + error.message());
  };
  remove_in(request_.folder, [](const std::string& name) {
    return name.starts_with("metrics.jsonl.damaged") ||
           std::ranges::count(kFilesOfARun, std::string_view(name)) > 0;
  });
  remove_in(request_.folder / "tensorboard", [](const std::string& name) {
    return is_event_file(name) ||
           (name.starts_with("events.") && name.find(".damaged") != std::string::npos);
  });
}

// Process 0's part. Returns the checkpoint to resume from, behind its manifest's hash; "" = none.
std::string Run::prepare_folder() {
  const fs::path checkpoints = request_.folder / "checkpoints";
  files::make_folders(request_.folder);
  lock_.emplace(request_.folder);
  if (!lock_->warning().empty()) say(lock_->warning());
  if (request_.fresh) remove_earlier_run();
  for (const std::string& leftover : checkpoint::sweep_leftovers(checkpoints))
    say("removed unfinished save " + leftover);
  std::string resumed;
  if (auto found = find_checkpoint(checkpoints)) {
    resumed = files::sha256_of_file(found->path / "manifest.json") + found->path.string();
    resume_from(std::move(*found));
  }
  metrics_writer_.emplace(request_.folder / "metrics.jsonl", first_step_ - 1);
  events_.emplace(request_.folder / "tensorboard", first_step_);
  for (const auto* notes : {&metrics_writer_->notes(), &events_->notes()})
    for (const std::string& note : *notes) say(note);
  write_json_file(request_.folder / "strategy.json", strategy::to_json(request_.strategy));
  return resumed;
}

std::optional<checkpoint::FoundCheckpoint> Run::find_checkpoint(const fs::path& checkpoints) const {
  if (!request_.resume) {
    std::vector<std::string> names = checkpoint::checkpoint_names(checkpoints);
    if (names.empty()) names = checkpoint::damaged_names(checkpoints);
    if (names.empty()) return std::nullopt;
    throw InvalidInput(fmt::format(
        "{} holds checkpoints of an earlier run ({}); pass --resume to go on from the newest that "
        "is sound, --fresh to delete them, or name another --run folder",
        checkpoints.string(), fmt::join(names, ", ")));
  }
  checkpoint::Search search = checkpoint::find_newest_complete(checkpoints);
  if (!search.newest) return checkpoint::require_newest_complete(checkpoints);
  for (const checkpoint::Inspection& damaged : search.damaged)
    if (const std::string note = checkpoint::set_aside(damaged); !note.empty()) say(note);
  return std::move(*search.newest);
}

// What process 0 verified and resumes from, as this process reads it.
checkpoint::FoundCheckpoint Run::same_checkpoint(const std::string& resumed) const {
  constexpr size_t kHashDigits = 64;
  const fs::path path = resumed.substr(kHashDigits);
  checkpoint::FoundCheckpoint found{path, checkpoint::read_manifest(path)};
  if (files::sha256_of_file(path / "manifest.json") != resumed.substr(0, kHashDigits))
    throw IoError(fmt::format("{}: process {} on {} reads another manifest.json than process 0",
                              path.string(), world_.process(),
                              hosts_[static_cast<size_t>(world_.process())]));
  return found;
}

// What the run began with, as a choice's text; empty where it chose nothing.
template <class Choice>
std::string Run::resumed_choice(const char* key) const {
  const Json& extra = resumed_->checkpoint().manifest.state.extra;
  const auto found = extra.find(key);
  if (found == extra.end()) return "";
  try {
    return Choice::parse(found->is_string() ? found->get<std::string>() : "").text();
  } catch (const InvalidInput& problem) {
    throw InvalidInput(fmt::format("{}: {}", resumed_->checkpoint().path.string(), problem.what()));
  }
}

// Experts on devices are one product for all, in bf16, unless another was measured to be faster.
void Run::choose_grouped_products() {
  if (request_.devices.empty() || request_.devices.front().is_cpu() ||
      request_.strategy.precision != strategy::Precision::kBf16)
    return nn::choose_grouped_products({});
  grouped_products_ = on_first_process(world_, "products of experts", [this]() -> std::string {
    if (resumed_) return resumed_choice<nn::GroupedChoice>(kGroupedProducts);
    return profile::grouped_choice_of(request_.cluster).text();
  });
  if (grouped_products_.empty()) return nn::choose_grouped_products({});
  const auto choice = nn::GroupedChoice::parse(grouped_products_);
  nn::choose_grouped_products(choice);
  say(
      fmt::format("experts in bf16: one product for all at {} of {} measured sizes, one by one at "
                  "the rest ({})",
                  choice.num_grouped(), choice.num_points(),
                  resumed_ ? "as the run began" : "as the cluster file measured"));
}

// All ranks compute as process 0's cluster file says, and a resumed run as it began.
void Run::choose_products() {
  choose_grouped_products();
  product_libraries_ = on_first_process(world_, "libraries of products", [this]() -> std::string {
    if (resumed_) return resumed_choice<nn::ProductChoice>(kProductLibraries);
    const auto choice = profile::product_choice_of(request_.cluster.curves);
    return choice ? choice->text() : std::string();
  });
  if (product_libraries_.empty()) {
    nn::choose_products(std::nullopt);
    return;
  }
  const auto choice = nn::ProductChoice::parse(product_libraries_);
  if (!nn::choose_products(choice)) {  // PIPER_PRODUCTS decides, so the checkpoint says nothing
    product_libraries_.clear();
    return;
  }
  say(fmt::format("matrix products: oneDNN for {} of {} classes, libtorch for the rest ({})",
                  choice.num_onednn(), nn::product_classes().size(),
                  resumed_ ? "as the run began" : "as the cluster file measured"));
  const std::vector<std::string> present =
      on_all_processes(world_, "oneDNN", [] { return std::string(nn::has_onednn() ? "yes" : ""); });
  if (choice.num_onednn() > 0 && std::ranges::count(present, "") > 0)
    say(
        fmt::format("{} of {} processes have no oneDNN: libtorch does all products there, and the "
                    "last bits differ from those of a run that has it",
                    std::ranges::count(present, ""), present.size()));
}

// The processes of one host divide its CPUs, when all may run on the same ones.
void Run::share_cores() {
  const std::vector<int> allowed = executor::allowed_cpus();
  const std::vector<std::string> sets =
      on_all_processes(world_, "CPUs", [&] { return fmt::format("{}", fmt::join(allowed, ",")); });
  int64_t here = 0, before = 0, alike = 0;
  for (int64_t p = 0; p < world_.num_processes(); ++p) {
    const auto i = static_cast<size_t>(p), mine = static_cast<size_t>(world_.process());
    if (hosts_[i] != hosts_[mine]) continue;
    ++here;
    before += p < world_.process() ? 1 : 0;
    alike += sets[i] == sets[mine] ? 1 : 0;
  }
  const int64_t limit = request_.cluster.cores_per_node;
  const std::vector<int> cpus =
      limit == std::ssize(allowed) && alike == here
          ? executor::own_cpus(allowed, before, here, std::ssize(world_.local_ranks()))
          : std::vector<int>{};
  if (cpus.empty())
    cores_.emplace(limit);
  else
    cores_.emplace(cpus);
}

void Run::open_folder() {
  // Now, and not while the other ranks wait for the first checkpoint: it reads the whole corpus.
  if (request_.checkpoint_every > 0) request_.corpus.fingerprint();
  const std::string resumed =
      on_first_process(world_, "folder of the run", [this] { return prepare_folder(); });
  token_ = on_first_process(world_, "token of the run", [] {
    return fmt::format("{}-{:08x}", ::getpid(), std::random_device()());
  });
  hosts_ = on_all_processes(world_, "host", [] {
    char name[256] = {};
    ::gethostname(name, sizeof(name) - 1);
    return std::string(name);
  });
  share_cores();
  on_all_processes(world_, "start", [&] {
    if (!is_first() && !resumed.empty()) resume_from(same_checkpoint(resumed));
    if (!request_.initial_weights.empty()) {
      weights_.emplace(request_.initial_weights);
      checkpoint::check_weights(*weights_, request_.model);
    }
    return std::string();
  });
  choose_products();
}

namespace {

// The same model with another number of trained modules: how many, when the fingerprint is that
// one's.
std::optional<int64_t> other_mtp_depth(const model::Model& model, const std::string& fingerprint) {
  model::Model alone = model;
  alone.layers.resize(static_cast<size_t>(model.num_layers()));
  alone.mtp_depth = 0;
  for (int64_t depth = 0; depth <= model::kMaxMtpDepth; ++depth)
    if (checkpoint::model_fingerprint(model::with_mtp(alone, depth)) == fingerprint) return depth;
  return std::nullopt;
}

}  // namespace

void Run::resume_from(checkpoint::FoundCheckpoint found) {
  const checkpoint::CheckpointIdentity run = identity();
  const std::string& fingerprint = found.manifest.identity.fingerprint;
  if (fingerprint != run.fingerprint)
    if (const auto depth = other_mtp_depth(request_.model, fingerprint))
      throw InvalidInput(
          fmt::format("{}: was trained with --mtp-depth {}, this run has {}; allowed: the same",
                      found.path.string(), *depth, request_.model.mtp_depth));
  if (const auto problems = checkpoint::differences(found.manifest, run, found.path);
      !problems.empty())
    throw InvalidInput(problems);
  const checkpoint::TrainState state = found.manifest.state;
  if (!request_.corpus.has_fingerprint(state.text_fingerprint))
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
  skipped_in_a_row_ = state.skipped_in_a_row;
  shared_.options.seed = state.seed;
  say(fmt::format("resuming after step {} from {}", state.step, found.path.string()));
  if (const std::string change = checkpoint::resharding(found.manifest.identity, run);
      !change.empty())
    say(change);
  if (first_step_ > last_step())
    throw InvalidInput(fmt::format(
        "the run is to end after step {} (--steps, --stop-after), and the checkpoint has {} steps "
        "already; allowed: more than that",
        last_step(), state.step));
  resumed_.emplace(std::move(found));
  resumed_->require_exactly(request_.model);
  place_as_saved();
}

// The placements of the checkpoint, where they suit; the tensors are found by their names anyway.
void Run::place_as_saved() {
  const checkpoint::FoundCheckpoint& found = resumed_->checkpoint();
  const Json& extra = found.manifest.state.extra;
  shared_.placements.clear();
  const auto saved = extra.find(kExpertPlacement);
  if (saved == extra.end()) return;
  const std::string source = (found.path / "manifest.json").string();
  balance::Placements placements =
      balance::placements_from_json(*saved, num_experts_by_layer(request_.model), source);
  for (auto& [layer, placement] : placements) {
    if (placement.num_ranks() != request_.strategy.mesh.ep) {
      say(
          fmt::format("experts were placed on {} ranks of an expert group, {} now: they begin in "
                      "the order of their numbers",
                      placement.num_ranks(), request_.strategy.mesh.ep));
      return;
    }
    if (suits(placement, request_.strategy)) continue;
    if (!placement.homes().has_homes_first())
      throw InvalidInput(fmt::format(
          "{}: layer {} is placed as {}; allowed: the homes of experts equally many on a rank",
          source, layer, balance::to_text(placement)));
    // More or fewer copies than before: which ones, a decision says when loads have been seen.
    const balance::Loads none(static_cast<size_t>(placement.num_experts()));
    placement = balance::share_hot(placement.homes(), none,
                                   request_.strategy.redundant_experts / placement.num_ranks());
  }
  shared_.placements = std::move(placements);
}

void Run::load(RankTrainer& trainer) {
  if (resumed_) {
    resumed_->read(checkpoint::state_tensors(trainer.stage(), trainer.optimizer()),
                   fmt::format("rank {} on {}", trainer.rank().value,
                               hosts_[static_cast<size_t>(world_.process())]));
  } else if (weights_) {
    checkpoint::load_weights(*weights_, trainer.stage().named_pieces(),
                             request_.model.tied_embeddings);
    trainer.keep_weights();
    trainer.optimizer().take_parameters();
  }
  trainer.keep_weights();
}

}  // namespace piper::train::parts
