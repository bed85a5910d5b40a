// piper train: trains a model by a strategy on this machine and shows predicted beside measured.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/base/units.h>
#include <piper/cli/byte_count.h>
#include <piper/cli/command.h>
#include <piper/cli/console.h>
#include <piper/cli/load_corpus.h>
#include <piper/cli/load_flags.h>
#include <piper/cli/meet_processes.h>
#include <piper/cli/read_model.h>
#include <piper/cli/stop_signals.h>
#include <piper/cli/strategy_flags.h>
#include <piper/cli/subcommand.h>
#include <piper/cli/train_text.h>
#include <piper/comm/world.h>
#include <piper/cost/expert_price.h>
#include <piper/files/output.h>
#include <piper/model/count.h>
#include <piper/model/import.h>
#include <piper/nn/experts_grouped.h>
#include <piper/nn/fused_attention.h>
#include <piper/nn/product.h>
#include <piper/nn/tensor_ops.h>
#include <piper/profile/bench_device.h>
#include <piper/profile/profile.h>
#include <piper/report/progress.h>
#include <piper/report/run_files.h>
#include <piper/report/table.h>
#include <piper/strategy/runnable.h>
#include <piper/train/memory_check.h>
#include <piper/train/process_agreement.h>
#include <piper/train/rebalancer.h>
#include <piper/train/run.h>
#include <piper/train/run_folder.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>

namespace piper::cli {
namespace {

namespace fs = std::filesystem;

struct TrainFlags {
  StrategyFlags strategy;
  std::vector<std::string> data;
  std::string run_folder = "runs/latest", weights, host_folder, device = "cpu";
  int64_t steps = 100, stop_after = 0, warmup = -1, checkpoint_every = 0, keep = 2;
  int64_t check_replicas_every = 0, validate_every = 0, validation_windows = 64;
  double validation = 0;
  uint64_t seed = 0;
  double learning_rate = 1e-3, minimum_learning_rate = -1, weight_decay = 0.1, clip_norm = 1.0,
         bias_update = 1e-3, z_loss = -1, mtp_weight = 0.3, timeout_seconds = 120,
         heartbeat_seconds = 0;
  bool listen_everywhere = false;
  double deviation_bound = 0.25, memory_limit_mib = 0;
  bool async_save = true, speed_check = false;
  std::string rebalance = "off", rebalance_budget, expert_placement;
  int64_t rebalance_every = 50;
  std::string replan = "off";
  double replan_bound = plan::ReplanPolicy{}.bound;
  bool resume = false, fresh = false, deterministic = false, export_weights = false, json = false;
};

// The profile that a prediction needs, when the user named no cluster.
cluster::Cluster profile_here(int64_t num_ranks, strategy::Precision precision,
                              const train::RankDevices& devices) {
  profile::ProfileOptions options{
      .num_ranks = num_ranks, .budget_seconds = 5, .precisions = {precision}};
  if (!devices.is_cpu()) {
    for (const train::RankDevices::Use& use : devices.uses()) options.devices.push_back(use.device);
    if (std::ssize(options.devices) != num_ranks)
      throw InvalidInput(
          "ranks that share a device, or are of several processes, are not profiled together so "
          "far; give --cluster, such as the file of `piper profile`");
    options.device = {options.devices.front()};
  }
  report::Progress bar({.label = "profile (no --cluster given)", .total = 100, .unit = "%"});
  options.progress = [&](const std::string& what, double part) {
    bar.set(static_cast<int64_t>(part * 100), what);
  };
  cluster::Cluster here = profile::profile_host(options).cluster;
  bar.set(100, "");
  return here;
}

// Reads --data, checks every token of it, and takes the validation part off.
void set_corpus(const TrainFlags& flags, train::RunRequest& request) {
  data::Corpus corpus = load_corpus(flags.data, request.model.vocabulary);
  data::check_window(corpus, request.strategy.sequence);
  request.validate_every = flags.validate_every;
  request.validation_windows = flags.validation_windows;
  if (flags.validation == 0) {
    if (flags.validate_every > 0)
      throw InvalidInput(
          "--validate-every needs tokens to validate on; give --validation, such as 0.05");
    request.corpus = std::move(corpus);
    return;
  }
  data::CorpusSplit split = data::split_corpus(corpus, flags.validation);
  data::check_window(split.train, request.strategy.sequence);
  data::check_window(split.validation, request.strategy.sequence);
  request.corpus = std::move(split.train);
  request.validation = std::move(split.validation);
}

void write_head(const train::RunRequest& request) {
  report::Header header;
  header.model = request.model.name;
  header.cluster =
      request.cluster.description.empty() ? request.cluster.name : request.cluster.description;
  header.facts = {
      {"parameters",
       fmt::format(
           "{}, {} active",
           format_count(static_cast<double>(model::count_parameters(request.model).total())),
           format_count(static_cast<double>(model::active_parameters(request.model))))},
      {"text", describe(request.corpus)},
      {"steps", fmt::format("{} of {} sequences of {} tokens", request.num_steps,
                            request.strategy.global_batch_sequences, request.strategy.sequence)}};
  files::write_json_file(request.folder / report::kRunFile, report::to_json(header));
  files::write_json_file(request.folder / report::kClusterFile, cluster::to_json(request.cluster));
}

// Weights that come with their config.json say what model they are of.
std::string model_name(const TrainFlags& flags) {
  const bool is_in_folder =
      !flags.weights.empty() &&
      std::filesystem::exists(std::filesystem::path(flags.weights) / "config.json");
  return flags.strategy.model.empty() && is_in_folder ? flags.weights : model_of(flags.strategy);
}

// What must be known to meet the other processes.
train::RunRequest model_and_strategy(const TrainFlags& flags) {
  train::RunRequest request;
  const std::string model = model_name(flags);
  request.model = read_model(model, flags.strategy.ignore);
  request.config = model::load_config(model, flags.strategy.ignore);
  if (flags.z_loss > 0 && request.model.num_moe_layers() == 0)
    throw InvalidInput(fmt::format("--z-loss is {}, but {} is dense (no router); allowed: 0",
                                   flags.z_loss, request.model.name));
  if (flags.z_loss >= 0) request.model.router_z_coefficient = flags.z_loss;
  request.strategy = strategy_from_flags(flags.strategy, request.model);
  require_runnable(request.strategy, request.model, "train");
  request.model = model::with_mtp(std::move(request.model), request.strategy.mtp_depth);
  if (const auto problems = strategy::untrainable(request.model, request.strategy);
      !problems.empty())
    throw InvalidInput(problems);
  return request;
}

// Measured on process 0's host alone, its peers idle, so that all plan with the same figures.
cluster::Cluster cluster_for(const TrainFlags& flags, const train::RunRequest& request) {
  const std::string text = train::on_first_process(*request.world, "profile", [&] {
    if (!flags.resume && !flags.fresh) train::refuse_earlier_run(flags.run_folder);
    return cluster::to_json(flags.strategy.cluster.empty()
                                ? profile_here(request.strategy.mesh.world(),
                                               request.strategy.precision, request.devices)
                                : cluster_of(flags.strategy, request.strategy))
        .dump();
  });
  return cluster::parse_cluster(parse_json(text, "profile"), "profile");
}

void complete(const TrainFlags& flags, train::RunRequest& request) {
  train::on_all_processes(*request.world, "memory", [&] {  // before seconds are spent on a profile
    train::require_memory_of(request.model, request.strategy, request.world->local_ranks(),
                             request.devices);
    return std::string();
  });
  train::on_all_processes(*request.world, "data", [&] {
    set_corpus(flags, request);
    return std::string();
  });
  request.cluster = cluster_for(flags, request);
  request.load = load_of("", request.strategy);
  request.folder = flags.run_folder;
  request.num_steps = flags.steps;
  request.stop_after = flags.stop_after;
  request.options.seed = flags.seed;
  request.options.adamw.weight_decay = flags.weight_decay;
  request.options.clip_norm = flags.clip_norm;
  request.options.bias_update = flags.bias_update;
  request.options.mtp_weight = flags.mtp_weight;
  request.options.timeout_seconds = flags.timeout_seconds;
  request.options.learning_rate = {
      .peak = flags.learning_rate,
      .minimum =
          flags.minimum_learning_rate >= 0 ? flags.minimum_learning_rate : flags.learning_rate / 10,
      .warmup_steps = flags.warmup >= 0 ? flags.warmup : std::min<int64_t>(flags.steps / 10, 100),
      .total_steps = flags.steps};
  if (const auto problems = optim::problems(request.options.learning_rate); !problems.empty())
    throw InvalidInput(problems);
  request.checkpoint_every = flags.checkpoint_every;
  request.keep_checkpoints = flags.keep;
  request.check_replicas_every = flags.check_replicas_every;
  request.async_save = flags.async_save;
  request.fresh = flags.fresh;
  request.resume = flags.resume;
  request.initial_weights = flags.weights;
  request.export_weights = flags.export_weights;
  request.deviation_bound = flags.deviation_bound;
  request.host_folder = flags.host_folder;
  request.memory_limit_bytes = static_cast<int64_t>(flags.memory_limit_mib * (1 << 20));
  // A run whose console is gone is not watched any more: it is saved where it is.
  request.stop_requested = [] { return stop_requested() || is_output_lost(); };
  request.speed_check = flags.speed_check;
}

// Before the processes meet: what is wrong with these flags is said once, and at once.
void set_policies(const TrainFlags& flags, train::RunRequest& request) {
  std::vector<std::string> problems;
  request.rebalance = balance::parse_rebalance(flags.rebalance, "--rebalance");
  request.rebalance.every = flags.rebalance_every;
  if (!flags.rebalance_budget.empty())
    request.rebalance.budget_bytes =
        read_bytes("--rebalance-budget", flags.rebalance_budget, 1, int64_t{1} << 50, &problems);
  for (std::string& problem :
       train::problems(request.rebalance, request.strategy,
                       cost::expert_bytes(request.model, request.strategy.precision)))
    problems.push_back(std::move(problem));
  request.replan = {.kind = parse_word<plan::Replan>("--replan", flags.replan),
                    .bound = flags.replan_bound};
  if (!problems.empty()) throw InvalidInput(problems);
  if (!flags.expert_placement.empty())
    request.placements =
        train::read_placements(flags.expert_placement, request.model, request.strategy);
}

std::string what_is_saved(const train::RunResult& result) {
  if (!result.stopped) return "; the run is complete in its folder";
  return fmt::format("; stopped after saving step {}; go on with --resume",
                     result.metrics.back().step);
}

// What computes on devices, a line each; nothing on the CPU.
std::vector<std::string> device_kernels(const train::RunRequest& request) {
  if (request.devices.is_cpu()) return {};
  const at::Tensor there = at::empty({0}, request.devices.uses().front().device);
  std::vector<std::string> lines{nn::has_cuda_kernels(there)
                                     ? "element-wise work: Piper's kernels"
                                     : "element-wise work: libtorch's kernels"};
  for (const auto& found :
       {nn::fused_attention_found(), nn::grouped_products_found(), nn::main_products_found()})
    lines.insert(lines.end(), found.begin(), found.end());
  return lines;
}

int run_train(const TrainFlags& flags) {
  if (flags.resume && flags.fresh)
    throw InvalidInput("--resume and --fresh contradict each other; give one of them");
  const std::vector<at::Device> devices = profile::parse_devices(flags.device);
  train::RunRequest request = model_and_strategy(flags);
  if (flags.deterministic) profile::compute_deterministically();
  set_policies(flags, request);
  const std::unique_ptr<comm::World> world = meet_processes(
      request.strategy.mesh.world(),
      {.heartbeat_seconds = flags.heartbeat_seconds, .listen_everywhere = flags.listen_everywhere});
  request.world = world.get();
  request.devices = train::place_on_devices(*world, devices);
  complete(flags, request);
  std::optional<report::Progress> bar;
  std::vector<std::string> said;  // before the start
  if (!flags.json)
    request.say = [&](const std::string& line) { bar ? bar->print(line) : said.push_back(line); };
  if (const std::string note = nn::first_call_note(); !note.empty()) said.push_back(note);
  request.on_start = [&] {
    if (!flags.json) announce(request, said);
    bar.emplace(report::ProgressOptions{.label = "train", .total = flags.steps, .unit = "steps"});
  };
  request.on_begin = [&] { write_head(request); };
  request.keep_metrics = flags.json;
  request.on_step = [&](const report::StepMetrics& metrics) {
    if (!flags.json)
      for (const std::string& line : report::console_lines(metrics)) bar->print(line);
    bar->set(metrics.step, fmt::format("loss {:.3f}", metrics["loss"].value()));
  };
  catch_stop_signals();
  const train::RunResult result = train::run_training(request);
  if (world->process() > 0) return result.stopped ? kExitStopped : 0;
  bar->finish();
  if (!check_output(what_is_saved(result))) return result.stopped ? kExitStopped : 0;
  if (flags.json) {
    Json json = result_json(result);
    if (!request.devices.is_cpu()) json["kernels"] = device_kernels(request);
    say_json(json);
    return result.stopped ? kExitStopped : 0;
  }
  print_comparison(result);
  print_deviations(result.comparison, flags.deviation_bound);
  for (const std::string& line : device_kernels(request)) say("{}\n", line);
  if (!result.metrics.empty()) {
    // Absent in records of an earlier start where it was not finite.
    const auto loss = [](const report::StepMetrics& step) {
      return step["loss"].value_or(std::numeric_limits<double>::quiet_NaN());
    };
    say("\nloss {:.4f} -> {:.4f}; the run is in {}; see it with: piper report {}\n",
        loss(result.metrics.front()), loss(result.metrics.back()), request.folder.string(),
        request.folder.string());
  }
  if (!result.stopped) return 0;
  say("stopped as asked, after saving step {}; go on with --resume\n", result.metrics.back().step);
  return kExitStopped;
}

}  // namespace

Run add_train(Subcommand command) {
  auto flags = std::make_shared<TrainFlags>();
  add_strategy_flags(command, flags->strategy);
  command
      .add_option("--data", flags->data,
                  "text file or folder, read as bytes, or the prefix of an indexed dataset "
                  "(PREFIX.idx, PREFIX.bin); may be repeated (default: the project's own files)")
      .type_name("PATH");
  command
      .add_option("--validation", flags->validation,
                  "fraction at the end of the data that is never trained on; 0 = none")
      .check(number_in(0.0, 1.0))
      .show_default();
  command
      .add_option(
          "--validate-every", flags->validate_every,
          "steps between two evaluations of the validation part, also after the last; 0 = never")
      .check(integer_in(0, int64_t{1} << 30))
      .show_default();
  command
      .add_option("--validation-windows", flags->validation_windows,
                  "how many windows of --sequence tokens an evaluation looks at, at most; 0 = all")
      .check(integer_in(0, int64_t{1} << 30))
      .show_default();
  command
      .add_option("--device", flags->device,
                  "what computes: cpu, cuda, cuda:N, or cuda:N,M, which ranks take in turn")
      .show_default();
  command.add_flag("--deterministic", flags->deterministic,
                   "on a GPU: only kernels that give the same bits again, which may be slower (a "
                   "CPU's always do)");
  command.add_option("--run", flags->run_folder, "folder that the run leaves behind")
      .show_default();
  command.add_option("--steps", flags->steps, "training steps in all")
      .check(integer_in(1, int64_t{1} << 30))
      .show_default();
  command
      .add_option("--stop-after", flags->stop_after,
                  "stop after this step of --steps (a job's time limit); resume later")
      .check(integer_in(1, int64_t{1} << 30));
  command.add_option("--seed", flags->seed, "of initial weights and data")
      .check(not_negative())
      .show_default();
  command.add_option("--learning-rate", flags->learning_rate, "peak")
      .check(number_in(0.0, 10.0))
      .show_default();
  command
      .add_option("--minimum-learning-rate", flags->minimum_learning_rate,
                  "at the end (default: a tenth of the peak)")
      .check(number_in(0.0, 10.0));
  command.add_option("--warmup-steps", flags->warmup, "default: a tenth of the steps, at most 100")
      .check(integer_in(0, int64_t{1} << 30));
  command.add_option("--weight-decay", flags->weight_decay)
      .check(number_in(0.0, 10.0))
      .show_default();
  command
      .add_option("--bias-update", flags->bias_update,
                  "step of the bias that balances experts (models that have one); 0 = fixed")
      .check(number_in(0.0, 10.0))
      .show_default();
  command
      .add_option("--z-loss", flags->z_loss,
                  "coefficient of the routers' z-loss, such as 0.001 (default: what the model's "
                  "config says, else 0)")
      .check(number_in(0.0, 1e6));
  command
      .add_option("--mtp-weight", flags->mtp_weight,
                  "of the losses of multi-token prediction, over their number (with --mtp-depth)")
      .check(number_in(0.0, 100.0))
      .show_default();
  command.add_option("--clip-norm", flags->clip_norm, "of the whole gradient; 0 = none")
      .check(number_in(0.0, 1e9))
      .show_default();
  command
      .add_option(
          "--weights", flags->weights,
          "start from this Hugging Face folder; without --model, of the model of its config.json")
      .check(existing_folder());
  command
      .add_option("--host-folder", flags->host_folder,
                  "where what --offload leaves with the host is kept in files without names (the "
                  "host's memory)")
      .check(existing_folder());
  command
      .add_option("--memory-limit-mib", flags->memory_limit_mib,
                  "most that the tensors of one rank may take, as if its device had no more; "
                  "0 = what the machine has")
      .check(number_in(0.0, 1e9))
      .show_default();
  command
      .add_option("--deviation-bound", flags->deviation_bound,
                  "say when a step's time or a component leaves the prediction by more than this "
                  "share of the step; 0 = never")
      .check(number_in(0.0, 1000.0))
      .show_default();
  add_rebalance_flags(command, flags->rebalance, flags->rebalance_every, "");
  command
      .add_option("--rebalance-budget", flags->rebalance_budget,
                  "bytes that one decision may move in an expert group, such as 64M (default: no "
                  "limit)")
      .type_name("BYTES");
  command
      .add_option("--expert-placement", flags->expert_placement,
                  "file that says which ranks hold which experts when the run begins: {\"LAYER\": "
                  "[[expert, ...] by rank], ...} (default: in the order of their numbers)")
      .check(existing_file());
  command
      .add_option(
          "--replan", flags->replan,
          "whether the run watches for a strategy that is faster on the machine and under the "
          "load that its steps show: off, ask (it is said, and left in "
          "RUN/proposed_strategy.json), auto (and the run goes on with it in place)")
      .show_default();
  command
      .add_option("--replan-bound", flags->replan_bound,
                  "by what part of its own step another strategy has to be faster")
      .check(number_in(0.01, 100.0))
      .show_default();
  command.add_flag("--speed-check", flags->speed_check,
                   "measure before the first step and after every one whether this machine is as "
                   "fast as in its profile, and let the prediction count it (some tenths of a "
                   "second each)");
  command.add_flag("--export", flags->export_weights,
                   "write the final weights as a Hugging Face folder, RUN/weights");
  command.add_option("--checkpoint-every", flags->checkpoint_every, "steps; 0 = never")
      .check(integer_in(0, int64_t{1} << 30))
      .show_default();
  command.add_option("--keep-checkpoints", flags->keep, "the newest so many stay")
      .check(integer_in(1, int64_t{1} << 20))
      .show_default();
  command
      .add_option("--check-replicas-every", flags->check_replicas_every,
                  "steps between two looks at whether all copies of the weights are still the same "
                  "bits; 0 = before every save only")
      .check(integer_in(0, int64_t{1} << 30))
      .show_default();
  command.add_flag("--async-save,!--no-async-save", flags->async_save,
                   "train on while a checkpoint is written from a copy in memory (default: on)");
  command.add_flag(
      "--resume", flags->resume,
      "go on from the newest undamaged checkpoint of --run, on this or any other mesh");
  command.add_flag(
      "--fresh", flags->fresh,
      "start anew; what an earlier run left in --run (not exported weights) is deleted after the "
      "first step");
  command
      .add_option("--timeout-seconds", flags->timeout_seconds, "of any one wait for another rank")
      .check(number_in(0.1, 86400.0))
      .show_default();
  command
      .add_option("--heartbeat-seconds", flags->heartbeat_seconds,
                  "a process that gives no sign of life for so long is taken for hung (default: "
                  "PIPER_HEARTBEAT_SECONDS, else 10)")
      .check(number_in(1.0, 86400.0));
  command.add_flag(
      "--listen-everywhere", flags->listen_everywhere,
      "on several hosts: listen on all interfaces while the processes meet, instead of "
      "on one address (PIPER_LISTEN_EVERYWHERE=1 for other commands)");
  command.add_force();
  command.add_flag("--json", flags->json, "print the result as JSON");
  command.footer(
      "Alone: every rank is a thread. Under `piper launch -n N`, mpirun, srun or torchrun "
      "--no-python:\na share of the ranks each. SIGTERM, Ctrl-C, SIGUSR1, SIGXCPU, a hangup, or a "
      "console that cannot be written:\nthe step is finished and saved, exit code 3; a second "
      "signal stops now.");
  return [flags] { return run_train(*flags); };
}

}  // namespace piper::cli
