// piper plan: the strategies with the highest predicted MFU that fit, why the best is best, and why not the others.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <piper/base/error.h>
#include <piper/base/units.h>
#include <piper/cli/command.h>
#include <piper/cli/load_flags.h>
#include <piper/cli/plan_questions.h>
#include <piper/cli/strategy_flags.h>
#include <piper/cli/validators.h>
#include <piper/cli/whole_plan.h>
#include <piper/cost/outside.h>
#include <piper/model/count.h>
#include <piper/model/import.h>
#include <piper/plan/plan.h>
#include <piper/report/table.h>

#include <chrono>
#include <iostream>
#include <memory>

namespace piper::cli {
namespace {

using report::Align;

constexpr size_t kMostMemoryRows = 6;

struct Flags {
  std::string model, cluster, out, schedule, recompute, precision;
  int64_t devices = 0, sequence = 0, global_batch = 0, top = 10;
  plan::FixedAxes fixed;
  std::vector<std::string> what_if;
  LoadFlags load;
  std::string statistic;
  bool paper = false, min_devices = false, json = false;
  // Over every axis:
  bool runnable = false, explain = false;
  plan::WholeFixed whole;
  std::string stack = "piper", offload, placement;
  double imbalance = 1;
};

std::string bytes(int64_t count) { return format_bytes(static_cast<double>(count)); }

cost::Statistic parse_statistic(const std::string& text) {
  for (const auto statistic :
       {cost::Statistic::kMean, cost::Statistic::kP95, cost::Statistic::kWorst})
    if (text == cost::name(statistic)) return statistic;
  throw InvalidInput(fmt::format("--for is '{}'; allowed: mean, p95, worst", text));
}

plan::Request request_of(const Flags& flags) {
  plan::Request request;
  request.model = model::load_model(flags.model);
  request.cluster = cluster::load_cluster(flags.cluster);
  request.num_devices = flags.devices;
  request.sequence = flags.sequence;
  request.global_batch_sequences = flags.global_batch;
  request.fixed = flags.fixed;
  if (!flags.schedule.empty()) request.fixed.schedule = parse_schedule(flags.schedule);
  if (!flags.recompute.empty()) request.fixed.recompute = parse_recompute(flags.recompute);
  if (!flags.precision.empty()) request.precision = parse_precision(flags.precision);
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

std::string mesh_text(const strategy::Mesh& mesh) {
  return fmt::format("pp {} x ep {} x dp {}", mesh.pp, mesh.ep, mesh.dp);
}

bool is_even(const strategy::Strategy& s, int64_t layers) {
  return s.layers_per_stage == strategy::even_split(layers, s.mesh.pp);
}

// One sentence: against the best of another mesh.
std::string why_best(const plan::Plan& plan) {
  const plan::Planned& best = plan.strategies.front();
  for (const plan::Planned& other : plan.strategies)
    if (!(other.strategy.mesh == best.strategy.mesh))
      return fmt::format("{} beats {}: {} against {} ({} there: {})", mesh_text(best.strategy.mesh),
                         mesh_text(other.strategy.mesh),
                         format_seconds(best.prediction.step_seconds),
                         format_seconds(other.prediction.step_seconds),
                         format_percent(other.prediction.mfu), plan::limits(other.prediction));
  return fmt::format("{} is the only mesh that fits", mesh_text(best.strategy.mesh));
}

std::string mfu_note(const plan::Prediction& p) {
  return fmt::format(
      "MFU = {}; peak {}. Against the peak that GEMMs reach ({}, eq. 12) the best has {}",
      cost::kMfuFormula, format_flops_per_second(p.peak_flops_per_second),
      format_flops_per_second(p.effective.effective_peak_flops_per_second),
      format_percent(p.effective.mfu()));
}

std::vector<std::string> notes_of(const plan::Plan& plan) {
  std::vector<std::string> notes;
  if (plan.strategies.empty()) return notes;
  const plan::Prediction& best = plan.strategies.front().prediction;
  notes.push_back("why: " + why_best(plan));
  notes.push_back("what limits it: " + plan::limits(best));
  notes.push_back(mfu_note(best));
  return notes;
}

// Of the strategies that are shown, all together.
std::vector<cluster::Outside> outside_of(const plan::Request& request, const plan::Plan& plan,
                                         int64_t top) {
  std::vector<strategy::Strategy> shown;
  for (const plan::Planned& planned : plan.strategies)
    if (std::ssize(shown) < top) shown.push_back(planned.strategy);
  if (shown.empty() && plan.nearest) shown.push_back(plan.nearest->strategy);
  return cost::outside_measured(request.model, request.cluster, shown);
}

Json planned_json(const plan::Planned& planned) { return strategy::to_json(planned.strategy); }

Json plan_json(const plan::Request& request, const plan::Plan& plan, int64_t top, double seconds) {
  Json json{{"model", request.model.name},
            {"cluster", request.cluster.name},
            {"num_devices", plan.num_devices},
            {"sequence", plan.sequence},
            {"global_batch_sequences", plan.global_batch_sequences},
            {"precision", strategy::name(plan.precision)},
            {"memory_limit_bytes", plan.memory_limit_bytes},
            {"num_considered", plan.num_considered},
            {"num_simulated", plan.num_simulated},
            {"num_repriced", plan.num_repriced},
            {"plan_seconds", seconds}};
  json["defaults"] = Json::object();
  for (const plan::Default& d : plan.defaults)
    json["defaults"][d.name] = {{"value", d.value}, {"why", d.why}};
  json["notes"] = notes_of(plan);
  json["outside_measured"] = cluster::to_json(outside_of(request, plan, top));
  json["strategies"] = Json::array();
  for (const plan::Planned& planned : plan.strategies)
    if (std::ssize(json["strategies"]) < top) json["strategies"].push_back(planned_json(planned));
  if (plan.nearest) json["nearest"] = planned_json(*plan.nearest);
  json["rejected"] = Json::array();
  for (const plan::Rejected& r : plan.rejected)
    json["rejected"].push_back({{"family", r.family},
                                {"constraint", r.constraint},
                                {"equation", r.equation},
                                {"smallest_change", r.smallest_change},
                                {"num_strategies", r.num_strategies}});
  return json;
}

void print_header(const plan::Request& request, const plan::Plan& plan, double seconds) {
  fmt::print("{} ({} parameters) on {} devices of {} ({})\n", request.model.name,
             format_count(static_cast<double>(model::count_parameters(request.model).total())),
             plan.num_devices, request.cluster.name, request.cluster.device);
  fmt::print(
      "{} sequences of {} tokens a step, {}; {} of {} usable a device; {} strategies priced in "
      "{}{}\n",
      plan.global_batch_sequences, plan.sequence, strategy::name(plan.precision),
      bytes(plan.memory_limit_bytes), bytes(request.cluster.memory_bytes), plan.num_considered,
      format_seconds(seconds),
      plan.num_simulated > 0 ? fmt::format(", the best {} simulated", plan.num_simulated) : "");
  if (request.load)
    fmt::print(
        "ranked by the {} of {} samples of load {}: the best {} by a balanced load priced again\n",
        cost::name(request.load_statistic), request.num_load_samples, request.load->text,
        plan.num_repriced);
  for (const plan::Default& d : plan.defaults)
    fmt::print("default: {} {} ({})\n", d.name, d.value, d.why);
}

void print_strategies(const std::vector<plan::Planned>& strategies, int64_t layers, int64_t top) {
  report::Table table;
  table.columns = {{"", Align::kRight},
                   {"pp", Align::kRight},
                   {"ep", Align::kRight},
                   {"dp", Align::kRight},
                   {"micro-batch", Align::kRight},
                   {"count", Align::kRight},
                   {"schedule"},
                   {"recompute"},
                   {"layers"},
                   {"MFU", Align::kRight},
                   {"step", Align::kRight},
                   {"tokens/s", Align::kRight},
                   {"memory", Align::kRight},
                   {"idle", Align::kRight}};
  const bool loaded = !strategies.empty() && strategies.front().under_load.has_value();
  if (loaded)
    for (const char* what : {"mean", "p95", "worst", "memory p95"})
      table.columns.push_back({what, Align::kRight});
  for (size_t i = 0; i < strategies.size() && static_cast<int64_t>(i) < top; ++i) {
    const strategy::Strategy& s = strategies[i].strategy;
    const plan::Prediction& p = strategies[i].prediction;
    table.rows.push_back(
        {std::to_string(i + 1), std::to_string(s.mesh.pp), std::to_string(s.mesh.ep),
         std::to_string(s.mesh.dp), std::to_string(s.micro_batch_sequences),
         std::to_string(s.num_micro_batches), strategy::name(s.schedule),
         strategy::name(s.recompute), is_even(s, layers) ? "even" : "balanced",
         format_percent(p.mfu), format_seconds(p.step_seconds), format_count(p.tokens_per_second),
         bytes(p.peak_bytes), format_percent(p.estimate.time.idle / p.step_seconds)});
    if (!loaded) continue;
    const plan::UnderLoad& load = *strategies[i].under_load;
    for (const double seconds : {load.seconds.mean, load.seconds.p95, load.seconds.worst})
      table.rows.back().push_back(format_seconds(seconds));
    table.rows.back().push_back(format_bytes(load.peak_bytes.p95));
  }
  table.max_width = report::console_width();
  fmt::print("\n{}", report::to_text(table));
}

// Named groups in full; of the families that memory kills those that lack least, which come first.
void print_rejected(const std::vector<plan::Rejected>& rejected) {
  if (rejected.empty()) return;
  report::Table table;
  table.columns = {
      {"not there"}, {"because"}, {"constraint"}, {"smallest change that would admit it"}};
  size_t num_left_out = 0, num_memory = 0;
  for (const plan::Rejected& r : rejected) {
    if (r.num_strategies > 0 && ++num_memory > kMostMemoryRows) {
      ++num_left_out;
      continue;
    }
    table.rows.push_back({r.family, r.constraint, r.equation, r.smallest_change});
  }
  fmt::print("\n{}", report::to_text(table));
  if (num_left_out > 0)
    fmt::print("and {} more that lack more memory (all of them: --json)\n", num_left_out);
}

void print_plan(const plan::Request& request, const plan::Plan& plan, int64_t top, double seconds) {
  print_header(request, plan, seconds);
  if (plan.strategies.empty()) {
    fmt::print("\nnothing fits{}\n",
               plan.nearest ? fmt::format("; the nearest (--global-batch {}):",
                                          plan.nearest->strategy.global_batch_sequences)
                            : "");
    if (plan.nearest) print_strategies({*plan.nearest}, request.model.num_layers(), 1);
  } else {
    print_strategies(plan.strategies, request.model.num_layers(), top);
    fmt::print("\n");
    for (const std::string& note : notes_of(plan)) fmt::print("{}\n", note);
  }
  const std::vector<cluster::Outside> outside = outside_of(request, plan, top);
  if (!outside.empty())
    fmt::print("outside of what was measured (the nearest edge holds): {}\n",
               cluster::to_text(outside));
  print_rejected(plan.rejected);
}

// Which search answers: every axis on GPU clusters, unless the question is about what this Piper runs.
bool asks_every_axis(const Flags& flags, const cluster::Cluster& cluster) {
  const bool runnable = flags.runnable || flags.paper || flags.min_devices ||
                        !flags.what_if.empty() || !flags.load.load.empty() ||
                        flags.fixed.num_micro_batches.has_value();
  return !runnable && cluster.kind == "gpu";
}

template <class Enum, size_t n>
std::optional<Enum> choose(const char* flag, const std::string& text,
                           const std::array<Enum, n>& values) {
  if (text.empty()) return std::nullopt;
  std::vector<std::string> names;
  for (const Enum value : values) {
    names.emplace_back(strategy::name(value));
    if (text == names.back()) return value;
  }
  throw InvalidInput(fmt::format("{} is '{}'; allowed: {}", flag, text, fmt::join(names, ", ")));
}

int answer_every_axis(const Flags& flags, const plan::Request& request) {
  WholeQuestion q{.request = request,
                  .fixed = flags.whole,
                  .stack = flags.stack,
                  .imbalance = flags.imbalance,
                  .top = flags.top,
                  .explain = flags.explain,
                  .json = flags.json,
                  .out = flags.out};
  q.fixed.pp = flags.fixed.pp;
  q.fixed.ep = flags.fixed.ep;
  q.fixed.dp = flags.fixed.dp;
  q.fixed.micro_batch_sequences = flags.fixed.micro_batch_sequences;
  q.fixed.schedule = request.fixed.schedule;
  q.fixed.recompute = request.fixed.recompute;
  q.fixed.offload = choose("--offload", flags.offload, strategy::kOffloads);
  q.fixed.placement = choose("--placement", flags.placement, strategy::kPlacements);
  return answer_whole(q);
}

int run(const Flags& flags) {
  const plan::Request request = request_of(flags);
  if (asks_every_axis(flags, request.cluster)) return answer_every_axis(flags, request);
  if (flags.min_devices && !flags.what_if.empty())
    throw InvalidInput("--min-devices and --what-if are two questions; ask one at a time");
  if (flags.min_devices && flags.devices > 0)
    throw InvalidInput("--min-devices looks for the number itself; leave out --devices");
  if ((flags.min_devices || !flags.what_if.empty()) && request.load)
    throw InvalidInput("--load ranks one plan; leave out --min-devices and --what-if");
  if ((flags.min_devices || !flags.what_if.empty()) && !flags.out.empty())
    throw InvalidInput(
        "--out writes the plan for one machine; leave out --min-devices and --what-if");
  if (flags.min_devices) return answer_min_devices(request, flags.json);
  if (!flags.what_if.empty()) return answer_what_if(request, flags.what_if, flags.json);
  const auto start = std::chrono::steady_clock::now();
  const plan::Plan plan = plan::make_plan(request);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (flags.json)
    std::cout << plan_json(request, plan, flags.top, seconds).dump(2) << "\n";
  else
    print_plan(request, plan, flags.top, seconds);
  if (plan.strategies.empty()) return 1;
  if (!flags.out.empty()) {
    write_json_file(flags.out, planned_json(plan.strategies.front()));
    if (!flags.json) fmt::print("\nwritten: {}\n", flags.out);
  }
  return 0;
}

}  // namespace

Run add_plan(CLI::App& command) {
  auto flags = std::make_shared<Flags>();
  const CLI::Range count(int64_t{1}, int64_t{1} << 24);
  command
      .add_option("--model", flags->model, "built-in name, config.json, or a folder holding one")
      ->required();
  command
      .add_option("--cluster", flags->cluster,
                  "built-in name or file (what `piper profile --out` wrote)")
      ->required();
  command.add_option("--devices", flags->devices, "how many to use (default: all)")->check(count);
  command.add_option("--sequence", flags->sequence, "tokens of a sequence")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 32));
  command.add_option("--global-batch", flags->global_batch, "sequences of a step")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 32));
  command.add_option("--pp", flags->fixed.pp, "fix the pipeline stages");
  command.add_option("--ep", flags->fixed.ep, "fix the ranks that share a layer's experts");
  command.add_option("--dp", flags->fixed.dp, "fix the ranks of a stage");
  command.add_option("--micro-batch", flags->fixed.micro_batch_sequences,
                     "fix the sequences of a rank at a time");
  command.add_option("--num-micro-batches", flags->fixed.num_micro_batches, "fix their number");
  command.add_option("--schedule", flags->schedule,
                     "fix: gpipe, 1f1b, interleaved, zb-h1, zb-v or dualpipev");
  command.add_option("--vpp", flags->whole.vpp, "fix the chunks of layers a rank holds");
  command.add_option("--tp", flags->whole.tp, "fix the ranks that share a layer's matrices");
  command.add_option("--cp", flags->whole.cp, "fix the ranks that share a sequence");
  command.add_option("--etp", flags->whole.etp, "fix the ranks that share an expert's matrices");
  command.add_option("--zero", flags->whole.zero, "fix the ZeRO stage, 0 to 3")
      ->check(CLI::Range(0, 3));
  command.add_option("--offload", flags->offload,
                     "fix: none, optimizer, activations or optimizer+activations");
  command.add_option("--placement", flags->placement, "fix: tp-cp-ep-dp-pp or tp-cp-ep-pp-dp");
  command
      .add_option("--stack", flags->stack,
                  "the software that would run it: a name of configs/stacks or a file")
      ->capture_default_str();
  command
      .add_option("--imbalance", flags->imbalance,
                  "rows of the busiest expert rank over the mean, on every axis' search")
      ->check(number_in(1.0, 1000.0))
      ->capture_default_str();
  command.add_flag("--runnable", flags->runnable,
                   "only what this Piper trains with: pp, ep, dp, 1f1b and gpipe, with the "
                   "runtime's exact costs (always so on CPU clusters, and for --paper, --what-if, "
                   "--min-devices, --load)");
  command.add_flag("--explain", flags->explain,
                   "the best of each family, why it lost, what would revive it; the front of speed "
                   "and memory");
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
      ->type_name("CHANGE");
  add_load_flags(command, flags->load);
  command
      .add_option("--for", flags->statistic,
                  "rank by the mean, p95 or worst of the samples of --load (p95)")
      ->type_name("STATISTIC");
  command.add_flag("--min-devices", flags->min_devices,
                   "the fewest devices that train this model, and memory and MFU against their "
                   "number");
  command.add_option("--top", flags->top, "strategies shown")
      ->check(CLI::Range(int64_t{1}, int64_t{64}))
      ->capture_default_str();
  command.add_option("--out", flags->out, "write the best strategy to this file")
      ->check(writable_file());
  command.add_flag("--json", flags->json, "print the result as JSON");
  return [flags] { return run(*flags); };
}

}  // namespace piper::cli
