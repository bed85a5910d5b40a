// piper moe: what each schedule of a mixture layer costs on a machine, and which one is cheapest.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/base/units.h>
#include <piper/cli/command.h>
#include <piper/cli/read_model.h>
#include <piper/cli/statement_table.h>
#include <piper/cli/strategy_flags.h>
#include <piper/cluster/cluster.h>
#include <piper/cost/trainer/moe_schedules.h>
#include <piper/cost/trainer/parm_choice.h>
#include <piper/cost/trainer/pipemoe_choice.h>
#include <piper/cost/trainer/trainer_profile.h>
#include <piper/report/table.h>
#include <piper/strategy/runnable.h>

#include <algorithm>
#include <iostream>
#include <map>
#include <memory>
#include <optional>

namespace piper::cli {
namespace {

using cost::MoePass;
using cost::MoeSchedulePrice;
using report::Align;
using strategy::Strategy;

constexpr const char* kTrainer = "piper";  // whose grouped products are priced

struct Flags {
  std::string model, cluster, precision, paper;
  std::vector<std::string> ignore;
  int64_t tp = 1, etp = 1, ep = 8, sequence = 4096, micro_batch = 1;
  bool json = false;
};

// One layer on one stage of so many ranks: the strategy in which such a layer stands.
Strategy strategy_of(const Flags& flags, const model::Model& model) {
  Strategy s{.model = model.name, .cluster = flags.cluster};
  s.mesh = {.ep = flags.ep, .etp = flags.etp, .tp = flags.tp};
  const int64_t ranks = std::max(flags.tp, s.mesh.ranks_per_expert_set());
  s.mesh.dp = std::max<int64_t>(1, ranks / flags.tp);
  s.layers_per_stage = {model.num_layers()};
  s.precision = strategy::Precision::kBf16;
  if (!flags.precision.empty())
    s.precision = parse_word<strategy::Precision>("--precision", flags.precision);
  s.sequence = flags.sequence;
  s.micro_batch_sequences = flags.micro_batch;
  s.num_micro_batches = 1;
  s.global_batch_sequences = s.mesh.dp * flags.micro_batch;
  return s;
}

void require_sound(const Strategy& s, const model::Model& model, const cluster::Cluster& machine) {
  std::vector<std::string> problems;
  const auto& [tp, etp] = std::pair{s.mesh.tp, s.mesh.etp};
  if (tp % etp != 0 && etp % tp != 0)
    problems.push_back(
        fmt::format("--tp is {} and --etp {}; allowed: one that divides the other", tp, etp));
  else
    problems = strategy::texts_of(strategy::contradictions(s, model));
  if (s.mesh.world() > machine.num_devices())
    problems.push_back(fmt::format("{} ranks; allowed: at most the {} devices of {}",
                                   s.mesh.world(), machine.num_devices(), machine.name));
  if (!problems.empty()) throw InvalidInput(fmt::format("{}", fmt::join(problems, "\n")));
}

size_t first_mixture(const model::Model& model) {
  const auto found = std::ranges::find_if(
      model.layers, [](const model::Layer& l) { return l.feed_forward.is_moe(); });
  if (found == model.layers.end())
    throw InvalidInput(model.name + " is dense: it has no mixture layer");
  return static_cast<size_t>(found - model.layers.begin());
}

// Why this Piper does not train with it; "" where it does.
std::string not_trained(const MoeSchedulePrice& price, Strategy s, const model::Model& model) {
  const auto schedule = find_by_name<strategy::MoeSchedule>(price.name);
  if (!schedule) return "no value of 'moe_schedule'";
  s.moe_schedule = *schedule;
  if (price.num_chunks > 1) s.moe_chunks = price.num_chunks;
  std::vector<std::string> reasons = strategy::texts_of(strategy::contradictions(s, model));
  if (reasons.empty()) reasons = strategy::untrainable(model, s);
  return reasons.empty() ? "" : reasons.front();
}

struct Row {
  MoeSchedulePrice price;
  std::string not_trained;
};

Json to_json(const MoePass& p) {
  return {{"exchange_seconds", p.exchange},
          {"gather_seconds", p.gather},
          {"copy_seconds", p.copy},
          {"experts_seconds", p.experts},
          {"seconds", p.total}};
}

Json to_json(const Row& row) {
  const MoeSchedulePrice& p = row.price;
  Json json{{"schedule", p.name},
            {"num_chunks", p.num_chunks},
            {"forward", to_json(p.forward)},
            {"backward", to_json(p.backward)},
            {"seconds", p.total()},
            {"bytes_between_nodes", p.bytes_across},
            {"bytes_inside_node", p.bytes_inside},
            {"trained", row.not_trained.empty()}};
  if (!row.not_trained.empty()) json["not_trained"] = row.not_trained;
  return json;
}

std::string to_text(const std::vector<Row>& rows) {
  report::Table table;
  table.columns = {{"schedule"},
                   {"chunks", Align::kRight},
                   {"exchanges", Align::kRight},
                   {"gathers", Align::kRight},
                   {"copies", Align::kRight},
                   {"experts", Align::kRight},
                   {"overlapped", Align::kRight},
                   {"forward", Align::kRight},
                   {"backward", Align::kRight},
                   {"both", Align::kRight},
                   {"between nodes", Align::kRight},
                   {"inside", Align::kRight},
                   {"this Piper"}};
  const auto ms = [](double seconds) { return fmt::format("{:.3f}", 1e3 * seconds); };
  for (const Row& row : rows) {
    const MoeSchedulePrice& p = row.price;
    const auto both = [&](double MoePass::*part) { return ms(p.forward.*part + p.backward.*part); };
    table.rows.push_back(
        {p.name, p.num_chunks > 1 ? std::to_string(p.num_chunks) : "", both(&MoePass::exchange),
         both(&MoePass::gather), both(&MoePass::copy), both(&MoePass::experts),
         ms(p.forward.overlapped() + p.backward.overlapped()), ms(p.forward.total),
         ms(p.backward.total), ms(p.total()), format_bytes(p.bytes_across),
         format_bytes(p.bytes_inside), row.not_trained.empty() ? "trains it" : "prices it"});
  }
  return report::to_text(table);
}

void print_not_trained(const std::vector<Row>& rows) {
  std::map<std::string, std::vector<std::string>> schedules;  // by reason
  for (const Row& row : rows)
    if (!row.not_trained.empty()) schedules[row.not_trained].push_back(row.price.name);
  for (const auto& [reason, names] : schedules)
    fmt::print("not trained: {}: {}\n", fmt::join(names, ", "), reason);
}

// The cheapest against plain, or plain against the next one.
std::string verdict(const std::vector<MoeSchedulePrice>& prices) {
  const size_t best = cost::cheapest(prices);
  if (best != 0) return cost::why_cheaper(prices[best], prices.front());
  const std::vector<MoeSchedulePrice> others(prices.begin() + 1, prices.end());
  return cost::why_cheaper(prices.front(), others[cost::cheapest(others)]);
}

// The cheapest of Parm's three, by price.
std::string cheapest_of_parm(const std::vector<MoeSchedulePrice>& prices) {
  std::vector<MoeSchedulePrice> list;
  for (const MoeSchedulePrice& p : prices)
    if (p.name.starts_with("parm-")) list.push_back(p);
  return list[cost::cheapest(list)].name;
}

std::string name_of(cost::paper::parm::Schedule schedule) {
  return schedule == cost::paper::parm::Schedule::kS1 ? "parm-s1" : "parm-s2";
}

Json to_json(const cost::ParmChoice& choice, const std::string& by_price) {
  Json json{{"corrected", name_of(choice.corrected)},
            {"as_printed", name_of(choice.printed)},
            {"by_price", by_price},
            {"baseline_forward_seconds", choice.baseline_seconds},
            {"s1_forward_seconds", choice.s1_seconds},
            {"s2_forward_seconds", choice.s2_seconds},
            {"fits", Json::array()}};
  for (const cost::FittedCollective& c : choice.collectives)
    if (c.ranks > 1)
      json["fits"].push_back({{"collective", c.name},
                              {"ranks", c.ranks},
                              {"alpha_seconds", c.fit.startup_seconds},
                              {"beta_seconds_per_element", c.fit.seconds_per_element},
                              {"worst_error", c.worst_error}});
  return json;
}

void print(const cost::ParmChoice& choice, const std::string& by_price) {
  report::Table table;
  table.columns = {{"T = alpha + beta x"},
                   {"ranks", Align::kRight},
                   {"alpha", Align::kRight},
                   {"beta, ps an element", Align::kRight},
                   {"farthest point", Align::kRight}};
  for (const cost::FittedCollective& c : choice.collectives)
    if (c.ranks > 1)
      table.rows.push_back({c.name, std::to_string(c.ranks), format_seconds(c.fit.startup_seconds),
                            fmt::format("{:.3g}", 1e12 * c.fit.seconds_per_element),
                            format_percent(c.worst_error)});
  fmt::print(
      "\nParm's Algorithm 1, by lines through this machine's collectives (communication of the "
      "forward):\n{}baseline {}, S1 {}, S2 {}: it chooses {}, as printed {}; by price, forward and "
      "backward with the experts: {}\n",
      report::to_text(table), format_seconds(choice.baseline_seconds),
      format_seconds(choice.s1_seconds), format_seconds(choice.s2_seconds),
      name_of(choice.corrected), name_of(choice.printed), by_price);
}

Json to_json(const cost::paper::pipemoe::Task& task) {
  return {{"alpha_seconds", task.startup_seconds}, {"beta_n_seconds", task.work_seconds}};
}

Json to_json(const cost::PipemoeChoice& choice) {
  return {{"num_chunks", choice.chunks.num_chunks},
          {"case", name(case_of(choice.forward, choice.chunks.num_chunks))},
          {"seconds", choice.price.total()},
          {"num_chunks_by_both_passes", choice.chunks_of_both},
          {"seconds_by_both_passes", choice.price_of_both.total()},
          {"own_num_chunks", choice.best.num_chunks},
          {"own_seconds", choice.best.total()},
          {"all_to_all", to_json(choice.forward.all_to_all)},
          {"experts", to_json(choice.forward.experts)},
          {"forward_seconds_by_model", choice.chunks.seconds},
          {"worst_error_of_lines", std::max(choice.all_to_all_error, choice.experts_error)}};
}

void print(const cost::PipemoeChoice& choice) {
  const auto chunks = [](int64_t n) { return fmt::format("{} chunk{}", n, n == 1 ? "" : "s"); };
  fmt::print(
      "PipeMoE's model takes {} for the forward, and so for the backward, {} for their sum: "
      "chunked in them is {} and {} by price; in Piper's own {} it is {} ({:+.1f} % and {:+.1f} "
      "%)\n",
      chunks(choice.chunks.num_chunks), choice.chunks_of_both, format_seconds(choice.price.total()),
      format_seconds(choice.price_of_both.total()), chunks(choice.best.num_chunks),
      format_seconds(choice.best.total()), 100 * choice.regret(), 100 * choice.regret_of_both());
}

void print_paper(const Flags& flags) {
  if (flags.paper == "parm")
    print_statements(validate::parm_statements(), validate::parm_assumptions(), flags.json);
  else if (flags.paper == "pipemoe")
    print_statements(validate::pipemoe_statements(), validate::pipemoe_assumptions(), flags.json);
  else if (flags.paper == "hybridep")
    print_statements(validate::hybridep_statements(), validate::hybridep_assumptions(), flags.json);
  else
    print_statements(validate::monta_statements(), validate::monta_assumptions(), flags.json);
}

int run(const Flags& flags) {
  if (!flags.paper.empty()) {
    print_paper(flags);
    return 0;
  }
  if (flags.model.empty() || flags.cluster.empty())
    throw InvalidInput("--model and --cluster are required, or --paper");
  const model::Model model = read_model(flags.model, flags.ignore);
  const size_t layer = first_mixture(model);
  const cluster::Cluster machine = cluster::load_cluster(flags.cluster);
  const Strategy s = strategy_of(flags, model);
  require_sound(s, model, machine);
  const model::FeedForward& f = model.layers[layer].feed_forward;
  const cost::MoeSetting setting{
      .hidden = static_cast<double>(model.hidden),
      .tokens = static_cast<double>(flags.micro_batch * flags.sequence),
      .tp = flags.tp,
      .ep = flags.ep,
      .etp = flags.etp,
      .grouped_efficiency = cost::load_trainer(kTrainer).grouped_efficiency,
      .precision = s.precision};
  const std::vector<MoeSchedulePrice> prices = cost::price_moe_schedules(f, setting, machine);
  std::vector<Row> rows;
  for (const MoeSchedulePrice& p : prices) rows.push_back({p, not_trained(p, s, model)});
  const std::string why = verdict(prices);
  const cost::PipemoeChoice pipemoe = cost::choose_as_pipemoe(
      cost::price_chunks(f, setting, machine, strategy::MoeSchedule::kChunked));
  const bool is_of_parm = flags.tp > 1;  // else S1 and S2 are one exchange
  if (flags.json) {
    Json json{{"model", model.name},
              {"cluster", machine.name},
              {"layer", layer},
              {"tp", flags.tp},
              {"etp", flags.etp},
              {"ep", flags.ep},
              {"ranks", s.mesh.world()},
              {"tokens", setting.tokens},
              {"best", prices[cost::cheapest(prices)].name},
              {"why", why},
              {"schedules", Json::array()}};
    for (const Row& row : rows) json["schedules"].push_back(to_json(row));
    json["pipemoe"] = to_json(pipemoe);
    if (is_of_parm)
      json["algorithm_1"] =
          to_json(cost::choose_as_parm(f, setting, machine), cheapest_of_parm(prices));
    std::cout << json.dump(2) << "\n";
    return 0;
  }
  fmt::print(
      "{} on {}, layer {}: {} experts, {} chosen; tp {}, etp {}, ep {} on {} ranks; {} x {} tokens "
      "on every rank of a tp group; milliseconds and bytes of one rank, forward and backward "
      "together where not said\n{}",
      model.name, machine.name, layer, f.num_experts, f.top_k, flags.tp, flags.etp, flags.ep,
      s.mesh.world(), flags.micro_batch, flags.sequence, to_text(rows));
  fmt::print("{}\n", why);
  print_not_trained(rows);
  print(pipemoe);
  if (is_of_parm) print(cost::choose_as_parm(f, setting, machine), cheapest_of_parm(prices));
  return 0;
}

}  // namespace

Run add_moe(Subcommand command) {
  auto flags = std::make_shared<Flags>();
  command.add_option("--model", flags->model, "name of a built-in model, or path to a config.json");
  command.add_option("--ignore", flags->ignore, "key of the config to read as if it were absent")
      .one_each();
  command.add_option("--cluster", flags->cluster,
                     "name of a built-in cluster, or path to its JSON");
  command
      .add_option("--paper", flags->paper,
                  "instead: what the paper prints beside what is computed, misprints said")
      .check(one_of({"parm", "monta", "pipemoe", "hybridep"}));
  command.add_option("--tp", flags->tp, "ranks that hold the same tokens")
      .check(integer_in(1, strategy::kMaxDegree))
      .show_default();
  command.add_option("--etp", flags->etp, "ranks that share one expert's matrices")
      .check(integer_in(1, strategy::kMaxDegree))
      .show_default();
  command.add_option("--ep", flags->ep, "ranks that share the experts")
      .check(integer_in(1, 4096))
      .show_default();
  command.add_option("--sequence", flags->sequence, "tokens of a sequence; 128K is 131072")
      .takes_suffixes()
      .check(integer_in(1, int64_t{1} << 20))
      .show_default();
  command.add_option("--micro-batch", flags->micro_batch, "sequences of a micro-batch")
      .check(integer_in(1, strategy::kMaxCount))
      .show_default();
  command.add_option("--precision", flags->precision, "of products and rows (bf16)");
  command.add_flag("--json", flags->json, "print the result as JSON");
  command.footer(
      "Tensor parallelism without sequence parallelism; the orders are those of "
      "piper/cost/trainer/moe_schedules.h. The gate and the sorting of rows, alike in all, are not "
      "counted.");
  return [flags] { return run(*flags); };
}

}  // namespace piper::cli
