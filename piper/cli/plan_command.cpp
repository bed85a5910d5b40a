// piper plan: the strategies with the highest predicted MFU that fit, why the best is best, and why
// not the others.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <piper/base/error.h>
#include <piper/cli/command.h>
#include <piper/cli/enum_help.h>
#include <piper/cli/load_flags.h>
#include <piper/cli/plan_questions.h>
#include <piper/cli/read_model.h>
#include <piper/cli/strategy_flags.h>
#include <piper/cli/subcommand.h>
#include <piper/cost/segment_time.h>
#include <piper/strategy/residual_code.h>

#include <algorithm>
#include <memory>

namespace piper::cli {
namespace {

struct PlanFlags {
  std::string model, cluster, out, schedule, recompute, precision;
  std::vector<std::string> ignore;
  int64_t devices = 0, sequence = 0, global_batch = 0, top = 0, threads = 0;
  double memory_margin = plan::kMemoryMargin;
  plan::FixedAxes fixed;
  std::vector<std::string> what_if;
  LoadFlags load;
  std::string rebalance = "off";
  int64_t rebalance_every = 50;
  std::string statistic;
  bool min_devices = false, json = false, explain = false;
  std::string trainer, offload, placement, all_to_all, reduction, reduction_start, context_exchange,
      moe_schedule;
  std::optional<int64_t> all_to_all_chunk_bytes;
  std::optional<double> capacity_factor;
  std::string drop;
  bool pad_to_capacity = false;
  std::optional<double> imbalance;
  NodesQuestion nodes;
  RunCostFlags run_cost;
};

cost::Statistic parse_statistic(const std::string& text) {
  for (const auto statistic :
       {cost::Statistic::kMean, cost::Statistic::kP95, cost::Statistic::kWorst})
    if (text == cost::name(statistic)) return statistic;
  throw InvalidInput(fmt::format("--for is '{}'; allowed: mean, p95, worst", text));
}

cost::FixedAllToAll fixed_exchange(const PlanFlags& flags) {
  cost::FixedAllToAll fixed{
      .algorithm = parse_word_if_given<strategy::AllToAll>("--all-to-all", flags.all_to_all),
      .chunk_bytes = flags.all_to_all_chunk_bytes};
  if (fixed.chunk_bytes && !(fixed.algorithm && traits(*fixed.algorithm).is_cut))
    throw InvalidInput(
        fmt::format("--all-to-all-chunk cuts the messages of {}; give --all-to-all {} too",
                    cut_exchanges(), one_of_names<strategy::AllToAll>(kIsCut)));
  return fixed;
}

strategy::Capacity capacity_of(const PlanFlags& flags) {
  if (!flags.drop.empty() && !flags.capacity_factor)
    throw InvalidInput(
        "--drop says which copies go beyond --capacity-factor; give both or neither");
  strategy::Capacity capacity{.factor = flags.capacity_factor.value_or(0)};
  if (!flags.drop.empty()) capacity.drop = parse_word<strategy::Drop>("--drop", flags.drop);
  capacity.pads = flags.pad_to_capacity;
  if (capacity.pads && !capacity.is_limited())
    throw InvalidInput("--pad-to-capacity needs a capacity; give --capacity-factor too");
  return capacity;
}

std::optional<cost::LoadSamples> samples_of(const PlanFlags& flags) {
  if (flags.imbalance && !flags.load.load.empty())
    throw InvalidInput("--load draws the imbalance; leave out --imbalance");
  std::optional<cost::LoadDistribution> load = load_of(flags.load);
  if (!load && !flags.statistic.empty())
    throw InvalidInput("--for says by what of --load to rank; give --load too");
  if (flags.imbalance) load = cost::parse_load(fmt::format("hot-rank:{}", *flags.imbalance));
  if (traits(balance::parse_rebalance(flags.rebalance, "--rebalance").kind).copies)
    throw InvalidInput(fmt::format(
        "--rebalance is {}: plan tries no strategy with slots for copies of experts; allowed: off, "
        "threshold:X, price, random:F; piper sim takes {} for a strategy with --redundant-experts",
        flags.rebalance, flags.rebalance));
  const balance::RebalancePolicy rebalance =
      rebalance_of_samples(flags.rebalance, flags.rebalance_every, flags.load);
  if (!load) return std::nullopt;
  cost::LoadSamples samples{.load = *load,
                            .num_samples = flags.load.num_samples,
                            .seed = flags.load.seed,
                            .rebalance = rebalance};
  if (!flags.statistic.empty()) samples.statistic = parse_statistic(flags.statistic);
  return samples;
}

plan::FixedAxes fixed_axes(const PlanFlags& flags) {
  plan::FixedAxes fixed = flags.fixed;
  fixed.schedule = parse_word_if_given<strategy::PipelineSchedule>("--schedule", flags.schedule);
  if (!flags.recompute.empty()) fixed.recompute = parse_recompute(flags.recompute);
  fixed.offload = parse_word_if_given<strategy::Offload>("--offload", flags.offload);
  fixed.placement = parse_word_if_given<strategy::Placement>("--placement", flags.placement);
  fixed.exchange = fixed_exchange(flags);
  fixed.capacity = capacity_of(flags);
  fixed.reduction = parse_word_if_given<strategy::Reduction>("--reduction", flags.reduction);
  fixed.reduction_start =
      parse_word_if_given<strategy::ReductionStart>("--reduction-start", flags.reduction_start);
  fixed.context_exchange =
      parse_word_if_given<strategy::ContextExchange>("--context-exchange", flags.context_exchange);
  fixed.moe_schedule =
      parse_word_if_given<strategy::MoeSchedule>("--moe-schedule", flags.moe_schedule);
  fixed.runnable |= fixed.paper_form;
  return fixed;
}

PlanQuestion question_of(const PlanFlags& flags) {
  plan::Question asked{
      .model = read_model(flags.model, flags.ignore),
      .cluster = cluster::load_cluster(flags.cluster),
      .num_devices = flags.devices,
      .sequence = flags.sequence,
      .global_batch_sequences = flags.global_batch,
      .precision = parse_word_if_given<strategy::Precision>("--precision", flags.precision),
      .fixed = fixed_axes(flags),
      .memory_margin = flags.memory_margin,
      .load = samples_of(flags),
      .num_kept = std::max<int64_t>(flags.top, plan::kMostSimulated),
      .num_threads = flags.threads};
  if (asked.fixed.reduction && !asked.fixed.runnable && !cost::is_measured(asked.cluster))
    throw InvalidInput("--reduction is chosen for what this Piper trains; add --runnable");
  // Who asks for what this Piper trains has named it.
  const bool is_piper = flags.trainer.empty() && asked.fixed.runnable;
  cost::TrainerProfile trainer = trainer_of(is_piper ? "piper" : flags.trainer, asked.cluster);
  return {.asked = std::move(asked),
          .trainer = std::move(trainer),
          .trainer_is_default = flags.trainer.empty(),
          .top = flags.top > 0 ? flags.top : 10,
          .lists_ranking = flags.top > 0,
          .explain = flags.explain,
          .json = flags.json,
          .what_if = flags.what_if,
          .min_devices = flags.min_devices,
          .out = flags.out,
          .run_cost = run_cost_of(flags.run_cost),
          .nodes = flags.nodes,
          .allocation = std::nullopt};
}

// Plans for as many ranks as the nodes take, on a machine that they are the devices of.
void take_nodes(PlanQuestion& q) {
  check(q.nodes);
  if (!q.nodes.is_asked()) return;
  if (q.min_devices || !q.what_if.empty())
    throw InvalidInput("--nodes places one plan; leave out --min-devices and --what-if");
  q.allocation = allocation_of(q.nodes.allocation, q.asked.cluster);
  const int64_t slots = q.allocation->num_slots();
  if (q.asked.num_devices > slots)
    throw InvalidInput(
        fmt::format("--devices is {}, the {} nodes take {}; allowed: at most that many",
                    q.asked.num_devices, q.allocation->nodes.size(), slots));
  if (q.asked.num_devices == 0) q.asked.num_devices = slots;
  q.asked.cluster = q.allocation->machine;
}

void refuse_two_questions(const PlanQuestion& q) {
  const bool asks_else = q.min_devices || !q.what_if.empty();
  if (q.min_devices && !q.what_if.empty())
    throw InvalidInput("--min-devices and --what-if are two questions; ask one at a time");
  if (q.min_devices && q.asked.num_devices > 0)
    throw InvalidInput("--min-devices looks for the number itself; leave out --devices");
  if (asks_else && !q.out.empty())
    throw InvalidInput(
        "--out writes the plan for one machine; leave out --min-devices and --what-if");
}

int run_plan(const PlanFlags& flags) {
  PlanQuestion question = question_of(flags);
  take_nodes(question);
  refuse_two_questions(question);
  if (!question.what_if.empty()) return answer_what_if(question);
  if (question.min_devices) return answer_min_devices(question);
  return answer_plan(question);
}

}  // namespace

Run add_plan(Subcommand command) {
  auto flags = std::make_shared<PlanFlags>();
  const Check count = integer_in(1, int64_t{1} << 24);
  command.add_option("--model", flags->model, "built-in name, config.json, or a folder holding one")
      .required();
  add_ignore_flag(command, flags->ignore);
  command
      .add_option("--cluster", flags->cluster,
                  "built-in name or file (what `piper profile --out` wrote)")
      .required();
  command.add_option("--devices", flags->devices, "how many to use (default: all)").check(count);
  command.add_option("--sequence", flags->sequence, "tokens of a sequence; 128K is 131072")
      .takes_suffixes()
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
  command.add_option(
      "--schedule", flags->schedule,
      fmt::format("fix: {}", fmt::join(names_of<strategy::PipelineSchedule>(), ", ")));
  command.add_option("--vpp", flags->fixed.vpp, "fix the chunks of layers a rank holds");
  command.add_option("--tp", flags->fixed.tp, "fix the ranks that share a layer's matrices");
  command.add_option("--cp", flags->fixed.cp, "fix the ranks that share a sequence");
  command.add_option("--etp", flags->fixed.etp, "fix the ranks that share an expert's matrices");
  command.add_option("--zero", flags->fixed.zero, "fix the ZeRO stage, 0 to 3")
      .check(integer_in(0, 3));
  command
      .add_option("--expert-compression", flags->fixed.expert_compression,
                  "of experts' updated weights the ranks that hold them alike are sent one part in "
                  "so many, wherever they are sent once a step (1: all)")
      .check(integer_in(1, strategy::kMostExpertCompression));
  command.add_option("--offload", flags->offload, "fix: " + one_of_names<strategy::Offload>());
  command.add_option("--all-to-all", flags->all_to_all,
                     "fix how rows travel to their experts: " + one_of_names<strategy::AllToAll>());
  command
      .add_option("--all-to-all-chunk", flags->all_to_all_chunk_bytes,
                  fmt::format("fix the bytes of a message of {} at most", cut_exchanges()))
      .check(integer_in(1, int64_t{1} << 40));
  command.add_option("--reduction", flags->reduction,
                     "fix how gradients are summed, of what this Piper runs: " +
                         one_of_names<strategy::Reduction>());
  command.add_option(
      "--reduction-start", flags->reduction_start,
      fmt::format(
          "fix when gradients are summed: {}; the first alone where the machine is not profiled",
          one_of_names<strategy::ReductionStart>()));
  command.add_option("--context-exchange", flags->context_exchange,
                     fmt::format("fix how ranks that share a sequence exchange keys and values: "
                                 "{}; the first alone where the machine is not profiled",
                                 one_of_names<strategy::ContextExchange>()));
  command.add_option("--moe-schedule", flags->moe_schedule,
                     "fix the order of a mixture layer on a profiled machine: " +
                         one_of_names<strategy::MoeSchedule>(kRuns));
  command
      .add_option("--moe-chunks", flags->fixed.moe_chunks,
                  "fix the chunks, " + what_moe_chunks_are())
      .check(integer_in(1, strategy::kMaxMoeChunks));
  command
      .add_option(
          "--capacity-factor", flags->capacity_factor,
          "let an expert take so many rows of a sequence, in even shares, and drop the others "
          "(dropless); the load of a busy expert ends there")
      .check(number_in(strategy::kLeastCapacityFactor, strategy::kLargestCapacityFactor));
  command.add_option("--drop", flags->drop,
                     fmt::format("what goes beyond the capacity: by {} (probability)",
                                 one_of_names<strategy::Drop>()));
  command.add_flag(
      "--pad-to-capacity", flags->pad_to_capacity,
      "send every expert its whole capacity, the rest of it in rows that weigh nothing");
  command.add_option("--placement", flags->placement,
                     "fix: " + one_of_names<strategy::Placement>());
  add_trainer_flag(command, flags->trainer,
                   " (megatron on a GPU that is described, asked for on AMD's; this Piper on a "
                   "machine that it has measured)");
  command
      .add_option("--imbalance", flags->imbalance,
                  "rows of the busiest expert rank over the mean; as --load hot-rank:F")
      .check(number_in(1.0, 1000.0));
  command.add_flag("--runnable", flags->fixed.runnable,
                   "only what this Piper trains (always so on measured machines, and for --paper)");
  command.add_flag("--explain", flags->explain,
                   "the best of each family, why it lost, what would revive it; the front of speed "
                   "and memory; what other exchanges of tokens would cost");
  command.add_option("--recompute", flags->recompute,
                     "fix: " + one_of_names<strategy::Recompute>());
  command.add_option("--precision", flags->precision, one_of_names<strategy::Precision>());
  command.add_flag(
      "--paper", flags->fixed.paper_form,
      "Piper's own space: PP x EP = devices, PP <= L, EP inside the fast domain (eq. 7-10)");
  command
      .add_option("--what-if", flags->what_if,
                  "the plan on a changed machine beside the plan on this one: memory=x2 or =96GB, "
                  "memory_bandwidth=x2, compute=x2, nics=x2, bandwidth=x2 (bandwidth.LEVEL), "
                  "latency=x0.5 (latency.LEVEL), device=CLUSTER; may be repeated")
      .type_name("CHANGE");
  add_load_flags(command, flags->load);
  add_rebalance_flags(command, flags->rebalance, flags->rebalance_every,
                      "with --load, whose samples are then the steps of one run: ", false);
  add_allocation_flags(command, flags->nodes.allocation);
  add_launch_file_flags(command, flags->nodes.files);
  command
      .add_option("--for", flags->statistic,
                  "rank by the mean, p95 or worst of the samples of --load (mean)")
      .type_name("STATISTIC");
  command.add_flag("--min-devices", flags->min_devices,
                   "the fewest devices that train this model, and memory and MFU against their "
                   "number");
  command
      .add_option("--top", flags->top,
                  "list the first so many of the ranking, neighbours and all, in place of the best "
                  "of each kind (as JSON: 10)")
      .check(integer_in(1, 64));
  command
      .add_option("--memory-margin", flags->memory_margin,
                  "share of a device's memory that the plan leaves free")
      .check(number_in(0.0, 0.9))
      .show_default();
  add_threads_flag(command, flags->threads);
  add_run_cost_flags(command, flags->run_cost);
  command.add_output("--out", flags->out, "write the best strategy to this file");
  command.add_flag("--json", flags->json, "print the result as JSON");
  return [flags] { return run_plan(*flags); };
}

}  // namespace piper::cli
