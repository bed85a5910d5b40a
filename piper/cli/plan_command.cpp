// piper plan: the strategies with the highest predicted MFU that fit, why the best is best, and why
// not the others.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/cli/command.h>
#include <piper/cli/load_flags.h>
#include <piper/cli/plan_questions.h>
#include <piper/cli/read_model.h>
#include <piper/cli/runnable_plan.h>
#include <piper/cli/strategy_flags.h>
#include <piper/cli/subcommand.h>
#include <piper/cli/whole_plan.h>
#include <piper/model/import.h>
#include <piper/plan/plan.h>
#include <piper/strategy/runnable.h>

#include <chrono>
#include <iostream>
#include <memory>

namespace piper::cli {
namespace {

struct Flags {
  std::string model, cluster, out, schedule, recompute, precision;
  std::vector<std::string> ignore;
  int64_t devices = 0, sequence = 0, global_batch = 0, top = 10, threads = 0;
  plan::FixedAxes fixed;
  std::vector<std::string> what_if;
  LoadFlags load;
  std::string statistic;
  bool paper = false, min_devices = false, json = false;
  // Over every axis:
  bool runnable = false, explain = false;
  plan::WholeFixed whole;
  std::string stack = "piper", offload, placement, all_to_all, reduction;
  std::optional<int64_t> all_to_all_chunk_bytes;
  std::optional<double> capacity_factor;
  std::string drop;
  double imbalance = 1;
  NodesQuestion nodes;
};

cost::Statistic parse_statistic(const std::string& text) {
  for (const auto statistic :
       {cost::Statistic::kMean, cost::Statistic::kP95, cost::Statistic::kWorst})
    if (text == cost::name(statistic)) return statistic;
  throw InvalidInput(fmt::format("--for is '{}'; allowed: mean, p95, worst", text));
}

cost::FixedForm fixed_exchange(const Flags& flags) {
  cost::FixedForm fixed{
      .algorithm = parse_word_if_given<strategy::AllToAll>("--all-to-all", flags.all_to_all),
      .chunk_bytes = flags.all_to_all_chunk_bytes};
  if (fixed.chunk_bytes && fixed.algorithm != strategy::AllToAll::kHalo &&
      fixed.algorithm != strategy::AllToAll::kHaloSwitch &&
      fixed.algorithm != strategy::AllToAll::kHaloDedup)
    throw InvalidInput(
        "--all-to-all-chunk cuts the messages of halo, halo-switch and halo-dedup; give "
        "--all-to-all "
        "halo, halo-switch or halo-dedup too");
  return fixed;
}

strategy::Capacity capacity_of(const Flags& flags) {
  if (!flags.drop.empty() && !flags.capacity_factor)
    throw InvalidInput(
        "--drop says which copies go beyond --capacity-factor; give both or neither");
  strategy::Capacity capacity{.factor = flags.capacity_factor.value_or(0)};
  if (!flags.drop.empty()) capacity.drop = parse_word<strategy::Drop>("--drop", flags.drop);
  return capacity;
}

plan::Request request_of(const Flags& flags) {
  plan::Request request;
  request.model = read_model(flags.model, flags.ignore);
  request.cluster = cluster::load_cluster(flags.cluster);
  request.num_devices = flags.devices;
  request.sequence = flags.sequence;
  request.global_batch_sequences = flags.global_batch;
  request.fixed = flags.fixed;
  request.fixed.schedule =
      parse_word_if_given<strategy::PipelineSchedule>("--schedule", flags.schedule);
  if (!flags.recompute.empty()) request.fixed.recompute = parse_recompute(flags.recompute);
  if (!flags.precision.empty())
    request.precision = parse_word<strategy::Precision>("--precision", flags.precision);
  request.fixed.exchange = fixed_exchange(flags);
  request.fixed.capacity = capacity_of(flags);
  request.fixed.reduction =
      parse_word_if_given<strategy::Reduction>("--reduction", flags.reduction);
  request.paper_form = flags.paper;
  request.load = load_of(flags.load);
  request.num_load_samples = flags.load.num_samples;
  request.load_seed = flags.load.seed;
  if (!flags.statistic.empty()) {
    if (!request.load) throw InvalidInput("--for says by what of --load to rank; give --load too");
    request.load_statistic = parse_statistic(flags.statistic);
  }
  return request;
}

// Which search answers: every axis on GPU clusters, unless the question is about what this Piper
// runs.
bool asks_every_axis(const Flags& flags, const cluster::Cluster& cluster) {
  const bool runnable = flags.runnable || flags.paper;
  return !runnable && cluster.kind == "gpu";
}

// What makes it a question about what this Piper trains, in the user's words.
std::string why_runnable(const Flags& flags, const cluster::Cluster& cluster) {
  if (flags.runnable) return "--runnable";
  if (flags.paper) return "--paper";
  return fmt::format("--cluster {} (kind {})", cluster.name, cluster.kind);
}

// What the user fixed and the search of what this Piper trains would leave out or never end with.
void refuse_what_is_not_trained(const Flags& flags, const plan::Request& request) {
  const std::string question = why_runnable(flags, request.cluster);
  std::vector<std::string> problems;
  const auto refuse = [&](const char* flag, const std::string& value, const std::string& trains) {
    problems.push_back(
        fmt::format("{} is {}: {} searches what this Piper trains ({}); leave out one of the two",
                    flag, value, question, trains));
  };
  strategy::Strategy plain;
  const auto schedule = request.fixed.schedule.value_or(plain.schedule);
  if (!strategy::runs(schedule)) refuse("--schedule", strategy::name(schedule), "gpipe and 1f1b");
  const auto precision = request.precision.value_or(plain.precision);
  if (!strategy::runs(precision))
    refuse("--precision", strategy::name(precision), "fp32, bf16 and fp64");
  const auto degree = [&](const char* flag, const std::optional<int64_t>& value, int64_t trained) {
    if (value.value_or(trained) != trained)
      refuse(flag, std::to_string(*value), fmt::format("{} {}", flag + 2, trained));
  };
  degree("--tp", flags.whole.tp, 1);
  degree("--cp", flags.whole.cp, 1);
  degree("--etp", flags.whole.etp, 1);
  degree("--vpp", flags.whole.vpp, 1);
  degree("--zero", flags.whole.zero, 0);
  const auto word = [&](const char* flag, const std::string& value, const std::string& trained) {
    if (!value.empty() && value != trained)
      refuse(flag, value, fmt::format("{} {}", flag + 2, trained));
  };
  word("--offload", flags.offload, strategy::name(plain.offload));
  word("--placement", flags.placement, strategy::name(plain.placement));
  word("--stack", flags.stack, "piper");
  if (flags.imbalance != 1)
    refuse("--imbalance", fmt::format("{}", flags.imbalance), "loads come by --load");
  if (!problems.empty()) throw InvalidInput(problems);
}

int answer_every_axis(const Flags& flags, const plan::Request& request,
                      std::optional<cluster::Allocation> allocation) {
  WholeQuestion q{.request = request,
                  .fixed = flags.whole,
                  .stack = flags.stack,
                  .imbalance = flags.imbalance,
                  .top = flags.top,
                  .num_threads = flags.threads,
                  .explain = flags.explain,
                  .json = flags.json,
                  .what_if = flags.what_if,
                  .min_devices = flags.min_devices,
                  .out = flags.out,
                  .nodes = flags.nodes,
                  .allocation = std::move(allocation)};
  if (!flags.reduction.empty())
    throw InvalidInput("--reduction is chosen for what this Piper trains; add --runnable");
  if (request.load) {
    if (flags.imbalance > 1)
      throw InvalidInput("--load draws the imbalance; leave out --imbalance");
    q.load = {*request.load, request.load_statistic, request.num_load_samples, request.load_seed};
  }
  q.fixed.pp = flags.fixed.pp;
  q.fixed.ep = flags.fixed.ep;
  q.fixed.dp = flags.fixed.dp;
  q.fixed.micro_batch_sequences = flags.fixed.micro_batch_sequences;
  q.fixed.num_micro_batches = flags.fixed.num_micro_batches;
  q.fixed.schedule = request.fixed.schedule;
  q.fixed.recompute = request.fixed.recompute;
  q.fixed.exchange = request.fixed.exchange;
  q.fixed.capacity = request.fixed.capacity;
  q.fixed.offload = parse_word_if_given<strategy::Offload>("--offload", flags.offload);
  q.fixed.placement = parse_word_if_given<strategy::Placement>("--placement", flags.placement);
  return answer_whole(q);
}

// Plans for as many ranks as the nodes take, on a machine that they are the devices of.
std::optional<cluster::Allocation> onto_nodes(const Flags& flags, plan::Request& request) {
  check(flags.nodes);
  if (!flags.nodes.is_asked()) return std::nullopt;
  if (flags.min_devices || !flags.what_if.empty())
    throw InvalidInput("--nodes places one plan; leave out --min-devices and --what-if");
  cluster::Allocation allocation = allocation_of(flags.nodes.allocation, request.cluster);
  const int64_t slots = allocation.num_slots();
  if (request.num_devices > slots)
    throw InvalidInput(
        fmt::format("--devices is {}, the {} nodes take {}; allowed: at most that many",
                    request.num_devices, allocation.nodes.size(), slots));
  if (request.num_devices == 0) request.num_devices = slots;
  request.cluster = allocation.machine;
  return allocation;
}

// The best of what this Piper trains, on the nodes.
std::optional<PlacedPlan> placed_on(std::optional<cluster::Allocation> allocation,
                                    const plan::Request& request, plan::Plan& plan) {
  if (!allocation || plan.strategies.empty()) return std::nullopt;
  return rank_on_nodes(std::move(*allocation), request.model, plan.strategies,
                       [](const plan::Planned& p) {
                         return Placeable{p.strategy, p.prediction.step_seconds,
                                          plan::exposed_of(p.prediction.estimate.time)};
                       });
}

int run(const Flags& flags) {
  plan::Request request = request_of(flags);
  std::optional<cluster::Allocation> allocation = onto_nodes(flags, request);
  if (flags.min_devices && !flags.what_if.empty())
    throw InvalidInput("--min-devices and --what-if are two questions; ask one at a time");
  if (flags.min_devices && flags.devices > 0)
    throw InvalidInput("--min-devices looks for the number itself; leave out --devices");
  if ((flags.min_devices || !flags.what_if.empty()) && request.load)
    throw InvalidInput("--load ranks one plan; leave out --min-devices and --what-if");
  if ((flags.min_devices || !flags.what_if.empty()) && !flags.out.empty())
    throw InvalidInput(
        "--out writes the plan for one machine; leave out --min-devices and --what-if");
  if (asks_every_axis(flags, request.cluster))
    return answer_every_axis(flags, request, std::move(allocation));
  refuse_what_is_not_trained(flags, request);
  if (flags.min_devices) return answer_min_devices(request, flags.json);
  if (!flags.what_if.empty()) return answer_what_if(request, flags.what_if, flags.json);
  const auto start = std::chrono::steady_clock::now();
  plan::Plan plan = plan::make_plan(request);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const std::optional<PlacedPlan> placed = placed_on(std::move(allocation), request, plan);
  if (flags.json) {
    Json json = to_json(request, plan, flags.top, seconds);
    if (placed) json["placement"] = to_json(*placed, request.model);
    std::cout << json.dump(2) << "\n";
  } else {
    print_plan(request, plan, flags.top, flags.explain, seconds);
    if (placed) print_on_nodes(*placed, request.model, flags.nodes);
  }
  if (plan.strategies.empty()) return 1;
  if (placed) write_launch_files(*placed, request.model, flags.nodes);
  if (!flags.out.empty()) {
    Json best = strategy::to_json(plan.strategies.front().strategy);
    note_parameters(best, request.model);
    write_json_file(flags.out, best);
    if (!flags.json) fmt::print("\nwritten: {}\n", flags.out);
  }
  return 0;
}

}  // namespace

Run add_plan(Subcommand command) {
  auto flags = std::make_shared<Flags>();
  const Check count = integer_in(1, int64_t{1} << 24);
  command.add_option("--model", flags->model, "built-in name, config.json, or a folder holding one")
      .required();
  add_ignore_flag(command, flags->ignore);
  command
      .add_option("--cluster", flags->cluster,
                  "built-in name or file (what `piper profile --out` wrote)")
      .required();
  command.add_option("--devices", flags->devices, "how many to use (default: all)").check(count);
  command.add_option("--sequence", flags->sequence, "tokens of a sequence")
      .check(integer_in(1, int64_t{1} << 32));
  command.add_option("--global-batch", flags->global_batch, "sequences of a step")
      .check(integer_in(1, int64_t{1} << 32));
  command.add_option("--pp", flags->fixed.pp, "fix the pipeline stages");
  command.add_option("--ep", flags->fixed.ep, "fix the ranks that share a layer's experts");
  command.add_option("--dp", flags->fixed.dp, "fix the ranks of a stage");
  command.add_option("--micro-batch", flags->fixed.micro_batch_sequences,
                     "fix the sequences of a rank at a time");
  command.add_option("--num-micro-batches", flags->fixed.num_micro_batches,
                     "fix their number on a rank");
  command.add_option("--schedule", flags->schedule,
                     "fix: gpipe, 1f1b, interleaved, zb-h1, zb-v or dualpipev");
  command.add_option("--vpp", flags->whole.vpp, "fix the chunks of layers a rank holds");
  command.add_option("--tp", flags->whole.tp, "fix the ranks that share a layer's matrices");
  command.add_option("--cp", flags->whole.cp, "fix the ranks that share a sequence");
  command.add_option("--etp", flags->whole.etp, "fix the ranks that share an expert's matrices");
  command.add_option("--zero", flags->whole.zero, "fix the ZeRO stage, 0 to 3")
      .check(integer_in(0, 3));
  command.add_option("--offload", flags->offload,
                     "fix: none, optimizer, activations or optimizer+activations");
  command.add_option("--all-to-all", flags->all_to_all,
                     "fix how rows travel to their experts: flat, node-aware, naive, pairwise, "
                     "windowed, bruck, 2d, leader, halo-printed, halo-switch, halo, three-level "
                     "or halo-dedup");
  command
      .add_option("--all-to-all-chunk", flags->all_to_all_chunk_bytes,
                  "fix the bytes of a message of halo, halo-switch and halo-dedup at most")
      .check(integer_in(1, int64_t{1} << 40));
  command.add_option(
      "--reduction", flags->reduction,
      "fix how gradients are summed, of what this Piper runs: direct or hierarchical");
  command
      .add_option(
          "--capacity-factor", flags->capacity_factor,
          "let an expert take so many rows of a sequence, in even shares, and drop the others "
          "(dropless); the load of a busy expert ends there")
      .check(number_in(strategy::kLeastCapacityFactor, strategy::kLargestCapacityFactor));
  command.add_option("--drop", flags->drop,
                     "what goes beyond the capacity: by probability or position (probability)");
  command.add_option("--placement", flags->placement, "fix: tp-cp-ep-dp-pp or tp-cp-ep-pp-dp");
  command
      .add_option("--stack", flags->stack,
                  "the software that would run it: a name of configs/stacks or a file")
      .show_default();
  command
      .add_option("--imbalance", flags->imbalance,
                  "rows of the busiest expert rank over the mean, on every axis' search")
      .check(number_in(1.0, 1000.0))
      .show_default();
  command.add_flag(
      "--runnable", flags->runnable,
      "only what this Piper trains with: pp, ep, dp, 1f1b and gpipe, with the "
      "runtime's exact costs (always so on CPU clusters, and for --paper, --num-micro-batches)");
  command.add_flag("--explain", flags->explain,
                   "the best of each family, why it lost, what would revive it; the front of speed "
                   "and memory; what other exchanges of tokens would cost");
  command.add_option("--recompute", flags->recompute,
                     "fix: none, attention, experts, attention+experts or full");
  command.add_option("--precision", flags->precision, "fp32, bf16, fp64, fp8, mxfp8 or nvfp4");
  command.add_flag(
      "--paper", flags->paper,
      "Piper's own space: PP x EP = devices, PP | L, EP inside the fast domain (eq. 7-10)");
  command
      .add_option("--what-if", flags->what_if,
                  "the plan on a changed machine beside the plan on this one: memory=x2 or =96GB, "
                  "memory_bandwidth=x2, compute=x2, nics=x2, bandwidth=x2 (bandwidth.LEVEL), "
                  "latency=x0.5 (latency.LEVEL), device=CLUSTER; may be repeated")
      .type_name("CHANGE");
  add_load_flags(command, flags->load);
  add_allocation_flags(command, flags->nodes.allocation);
  add_launch_file_flags(command, flags->nodes.files);
  command
      .add_option("--for", flags->statistic,
                  "rank by the mean, p95 or worst of the samples of --load (p95)")
      .type_name("STATISTIC");
  command.add_flag("--min-devices", flags->min_devices,
                   "the fewest devices that train this model, and memory and MFU against their "
                   "number");
  command.add_option("--top", flags->top, "strategies shown")
      .check(integer_in(1, 64))
      .show_default();
  add_threads_flag(command, flags->threads);
  command.add_option("--out", flags->out, "write the best strategy to this file")
      .check(writable_file());
  command.add_flag("--json", flags->json, "print the result as JSON");
  return [flags] { return run(*flags); };
}

}  // namespace piper::cli
