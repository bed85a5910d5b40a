// piper compare: two strategies on one machine, axis by axis and second by second.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/base/standard_input.h>
#include <piper/base/units.h>
#include <piper/cli/command.h>
#include <piper/cli/console.h>
#include <piper/cli/fits.h>
#include <piper/cli/prediction_table.h>
#include <piper/cli/read_model.h>
#include <piper/cli/strategy_flags.h>
#include <piper/model/count.h>
#include <piper/model/import.h>
#include <piper/plan/search.h>
#include <piper/report/table.h>

#include <cmath>
#include <filesystem>
#include <memory>

namespace piper::cli {
namespace {

using report::Align;

struct CompareFlags {
  std::string a, b, model, cluster, trainer, load;
  std::vector<std::string> ignore;
  bool json = false;
};

struct Side {
  Priced priced;
  cost::TrainerProfile trainer;
  cost::LoadDistribution load;
  plan::Prediction prediction;
};

// `first`: by whose trainer and load the second side is priced too; null for the first.
Side side_of(const CompareFlags& flags, const std::string& file, const Side* first) {
  StrategyFlags strategy;
  strategy.model = flags.model;
  strategy.ignore = flags.ignore;
  strategy.strategy = file;
  strategy.cluster = flags.cluster;
  Side side{.priced = priced_from_flags(strategy)};
  const Priced& p = side.priced;
  if (first == nullptr) {
    side.trainer = trainer_of(flags.trainer, p.strategy, p.cluster);
    side.load = load_of(flags.load, p.strategy);
  } else {
    side.trainer = first->trainer;
    side.load = first->load;
  }
  const std::unique_ptr<cost::Estimator> estimator =
      cost::make_estimator_of(p.strategy, p.model, p.cluster, side.trainer);
  side.prediction = plan::predict(*estimator, p.model, p.cluster, p.strategy,
                                  imbalance_of(side.load, p.strategy, p.model));
  return side;
}

double per_token(const Side& side, double seconds) {
  const strategy::Strategy& s = side.priced.strategy;
  return seconds / static_cast<double>(s.sequence * s.global_batch_sequences);
}

std::string change(double a, double b) {
  if (a == b) return "same";
  if (a == 0) return "new";
  return fmt::format("{:+.1f} %", (b - a) / a * 100);
}

std::string capacity(const strategy::Strategy& s) {
  if (!s.capacity.is_limited()) return "dropless";
  return fmt::format("{}, drops by {}{}", s.capacity.factor, strategy::name(s.capacity.drop),
                     s.capacity.pads ? ", padded" : "");
}

std::string mixture(const strategy::Strategy& s) {
  const char* name = strategy::name(s.moe_schedule);
  return s.moe_chunks > 1 ? fmt::format("{} x {}", name, s.moe_chunks) : name;
}

std::string recomputed(const strategy::Strategy& s) {
  if (s.recompute_per_stage.empty()) return strategy::name(s.recompute);
  std::vector<std::string> stages;
  for (const strategy::Recompute of : s.recompute_per_stage)
    stages.emplace_back(strategy::name(of));
  return fmt::format("{}", fmt::join(stages, " "));
}

std::vector<std::pair<std::string, std::pair<std::string, std::string>>> axes(const Side& a,
                                                                              const Side& b) {
  const strategy::Strategy &x = a.priced.strategy, &y = b.priced.strategy;
  const auto number = [](int64_t p, int64_t q) {
    return std::pair(std::to_string(p), std::to_string(q));
  };
  return {
      {"model", {a.priced.model.name, b.priced.model.name}},
      {"cluster", {a.priced.cluster.name, b.priced.cluster.name}},
      {"ranks", number(x.mesh.world(), y.mesh.world())},
      {"pp", number(x.mesh.pp, y.mesh.pp)},
      {"vpp", number(x.mesh.vpp, y.mesh.vpp)},
      {"tp", number(x.mesh.tp, y.mesh.tp)},
      {"cp", number(x.mesh.cp, y.mesh.cp)},
      {"keys and values", {strategy::name(x.context_exchange), strategy::name(y.context_exchange)}},
      {"etp", number(x.mesh.etp, y.mesh.etp)},
      {"ep", number(x.mesh.ep, y.mesh.ep)},
      {"dp", number(x.mesh.dp, y.mesh.dp)},
      {"exchange", {to_text(cost::all_to_all_of(x)), to_text(cost::all_to_all_of(y))}},
      {"micro-batch", number(x.micro_batch_sequences, y.micro_batch_sequences)},
      {"micro-batches", number(x.num_micro_batches, y.num_micro_batches)},
      {"global batch", number(x.global_batch_sequences, y.global_batch_sequences)},
      {"sequence", number(x.sequence, y.sequence)},
      {"schedule", {strategy::name(x.schedule), strategy::name(y.schedule)}},
      {"recompute", {recomputed(x), recomputed(y)}},
      {"zero", number(x.zero, y.zero)},
      {"mixture layers", {mixture(x), mixture(y)}},
      {"capacity factor", {capacity(x), capacity(y)}},
      {"copies of experts", number(x.redundant_experts, y.redundant_experts)},
      {"MTP modules", number(x.mtp_depth, y.mtp_depth)},
      {"expert compression", number(x.expert_compression, y.expert_compression)},
      {"reductions", {strategy::name(x.reduction), strategy::name(y.reduction)}},
      {"reductions start", {strategy::name(x.reduction_start), strategy::name(y.reduction_start)}},
      {"sequence parallel", number(x.sequence_parallel, y.sequence_parallel)},
      {"offload", {strategy::name(x.offload), strategy::name(y.offload)}},
      {"placement", {strategy::name(x.placement), strategy::name(y.placement)}},
      {"precision", {strategy::name(x.precision), strategy::name(y.precision)}},
      {"layers a stage",
       {fmt::format("{}", fmt::join(x.layers_per_stage, " ")),
        fmt::format("{}", fmt::join(y.layers_per_stage, " "))}}};
}

// By tokens, because the two need not have the same batch.
double speedup(const Side& a, const Side& b) {
  return per_token(a, a.prediction.step_seconds) / per_token(b, b.prediction.step_seconds);
}

// What moved the time of a token furthest, in the direction in which the whole moved.
std::string reason(const Side& a, const Side& b) {
  const bool faster = speedup(a, b) > 1;
  std::string name;
  double most = 0;
  const std::vector<Figure> before = time_figures(a.prediction), after = time_figures(b.prediction);
  for (size_t i = 1; i < before.size(); ++i) {  // behind the step itself
    const double moved = per_token(a, before[i].value) - per_token(b, after[i].value);
    if ((faster ? moved : -moved) > most) most = faster ? moved : -moved, name = before[i].name;
  }
  if (name.empty()) return "";
  return fmt::format("; most of it: {} {}", name.substr(2), faster ? "is shorter" : "is longer");
}

void print(const Side& a, const Side& b, const CompareFlags& flags) {
  report::Table different;
  different.columns = {{"differs"}, {flags.a}, {flags.b}};
  for (const auto& [name, values] : axes(a, b))
    if (values.first != values.second)
      different.rows.push_back({name, values.first, values.second});
  different.max_width = report::console_width();
  if (different.rows.empty())
    say("the two strategies are the same: {}\n", plan::describe(a.priced.strategy));
  else
    say("{}", Lines{report::to_text(different)});
  report::Table table;
  table.columns = {{"predicted"},
                   {"first", Align::kRight},
                   {"second", Align::kRight},
                   {"change", Align::kRight}};
  const auto add = [&](const std::vector<Figure>& before, const std::vector<Figure>& after) {
    for (size_t i = 0; i < before.size(); ++i) {
      const Figure &x = before[i], &y = after[i];
      if (x.value == 0 && y.value == 0) continue;
      table.rows.push_back(
          {x.name, x.format(x.value), x.format(y.value), change(x.value, y.value)});
    }
  };
  add(time_figures(a.prediction), time_figures(b.prediction));
  add({{"MFU", a.prediction.mfu, format_percent},
       {"tokens/s", a.prediction.tokens_per_second, format_count}},
      {{"MFU", b.prediction.mfu, format_percent},
       {"tokens/s", b.prediction.tokens_per_second, format_count}});
  add(memory_figures(a.prediction), memory_figures(b.prediction));
  say("\n{}", Lines{report::to_text(table)});
  const double s = speedup(a, b);
  if (std::abs(s - 1) < 5e-4)
    say("\na token takes the same time in both\n");
  else
    say("\nthe second is {:.2f} times {} a token{}\n", s > 1 ? s : 1 / s,
        s > 1 ? "faster" : "slower", reason(a, b));
  for (const auto& [side, name] : {std::pair{&a, flags.a}, {&b, flags.b}})
    if (const Fit fit = memory_fit(side->priced.cluster, side->prediction.estimate.peak_bytes,
                                   side->prediction.estimate.fullest_stage);
        !fit.fits())
      say("{} {}", name, Lines{to_text(fit)});
}

Json to_json(const Side& side) {
  strategy::Strategy strategy = side.priced.strategy;
  strategy.predicted = nullptr;
  return {{"model", side.priced.model.name},
          {"cluster", side.priced.cluster.name},
          {"strategy", strategy::to_json(strategy)},
          {"load", side.load.text},
          {"predicted", plan::to_json(side.prediction, side.priced.model, strategy, side.trainer)}};
}

// What makes the two plans answers to different questions; "" when they answer the same one.
std::string different_work(const Side& a, const Side& b) {
  std::vector<std::string> parts;
  for (const auto& [name, values] : axes(a, b))
    if (values.first != values.second && (name == "model" || name == "cluster" || name == "ranks" ||
                                          name == "global batch" || name == "sequence"))
      parts.push_back(fmt::format("{} {} and {}", name, values.first, values.second));
  return fmt::format("{}", fmt::join(parts, ", "));
}

// Where the second was planned for another trainer or load than both are priced by.
std::vector<std::string> planned_otherwise(const CompareFlags& flags, const Side& a,
                                           const Side& b) {
  std::vector<std::string> lines;
  const strategy::Strategy& s = b.priced.strategy;
  if (const auto own = trainer_of("", s);
      flags.trainer.empty() && own && own->name != a.trainer.name)
    lines.push_back(fmt::format("{} was planned for the trainer '{}'; --trainer prices both by it",
                                flags.b, own->name));
  if (const std::string own = load_of("", s).text; flags.load.empty() && own != a.load.text)
    lines.push_back(
        fmt::format("{} was planned for load {}; --load prices both by it", flags.b, own));
  return lines;
}

int run_compare(const CompareFlags& flags) {
  const Side a = side_of(flags, flags.a, nullptr), b = side_of(flags, flags.b, &a);
  if (const std::string different = different_work(a, b); !different.empty() && !flags.json)
    say("more than the strategy differs: {}; times compare by the token\n\n", different);
  if (!flags.json) {
    const std::string load = a.priced.model.num_moe_layers() > 0 ? ", load " + a.load.text : "";
    say("both priced as the trainer '{}' would run them{}\n", a.trainer.name, load);
    for (const std::string& line : planned_otherwise(flags, a, b)) say("{}\n", line);
    say("\n");
  }
  if (flags.json)
    say_json(Json{{"a", to_json(a)}, {"b", to_json(b)}, {"speedup", speedup(a, b)}});
  else
    print(a, b, flags);
  return 0;
}

}  // namespace

Run add_compare(Subcommand command) {
  auto flags = std::make_shared<CompareFlags>();
  command.add_option("first", flags->a, "strategy file").required().type_name("A.json");
  command.add_option("second", flags->b, "strategy file").required().type_name("B.json");
  command.add_option("--model", flags->model,
                     "built-in name, config.json, or a folder (default: what the files name)");
  add_ignore_flag(command, flags->ignore);
  command.add_option("--cluster", flags->cluster,
                     "built-in name or file; prices both (default: what each file names)");
  add_trainer_flag(command, flags->trainer,
                   " (of both; what the first file says, else as piper plan)");
  command
      .add_option("--load", flags->load,
                  "load of the experts, of both (what the first file says, else as piper plan)")
      .type_name("LOAD");
  command.add_flag("--json", flags->json, "print the result as JSON");
  return [flags] { return run_compare(*flags); };
}

}  // namespace piper::cli
