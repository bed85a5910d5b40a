// piper moe: what each schedule of a mixture layer costs on a machine, and which one is cheapest.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <piper/base/json.h>
#include <piper/base/units.h>
#include <piper/cli/command.h>
#include <piper/cli/console.h>
#include <piper/cli/moe_layer.h>
#include <piper/cost/trainer/moe_schedules.h>
#include <piper/report/table.h>
#include <piper/strategy/runnable.h>

#include <algorithm>
#include <map>
#include <memory>

namespace piper::cli {
namespace {

using cost::MoePass;
using cost::MoeSchedulePrice;
using report::Align;
using strategy::Strategy;

struct MoeFlags {
  MoeLayerFlags layer;
  bool json = false;
};

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
    say("not trained: {}: {}\n", fmt::format("{}", fmt::join(names, ", ")), reason);
}

// The cheapest against plain, or plain against the next one.
std::string verdict(const std::vector<MoeSchedulePrice>& prices) {
  const size_t best = cost::cheapest(prices);
  if (best != 0) return cost::why_cheaper(prices[best], prices.front());
  const std::vector<MoeSchedulePrice> others(prices.begin() + 1, prices.end());
  return cost::why_cheaper(prices.front(), others[cost::cheapest(others)]);
}

int run_moe(const MoeFlags& flags) {
  const MoeLayer layer = read_moe_layer(flags.layer);
  const cost::MoeSetting& setting = layer.setting;
  const std::vector<MoeSchedulePrice> prices =
      cost::price_moe_schedules(layer.feed_forward, setting, layer.machine);
  std::vector<Row> rows;
  for (const MoeSchedulePrice& p : prices)
    rows.push_back({p, not_trained(p, layer.strategy, layer.model)});
  const std::string why = verdict(prices);
  if (flags.json) {
    Json json = to_json(layer);
    json["best"] = prices[cost::cheapest(prices)].name;
    json["why"] = why;
    json["schedules"] = Json::array();
    for (const Row& row : rows) json["schedules"].push_back(to_json(row));
    say_json(json);
    return 0;
  }
  say("{}; milliseconds and bytes of one rank, forward and backward together where not said\n{}",
      in_words(layer), Lines{to_text(rows)});
  say("{}\n", why);
  print_not_trained(rows);
  return 0;
}

}  // namespace

Run add_moe(Subcommand command) {
  auto flags = std::make_shared<MoeFlags>();
  add_moe_layer_flags(command, flags->layer);
  command.moved("--paper", "piper-studies statements parm (or monta, pipemoe, hybridep)");
  command.add_flag("--json", flags->json, "print the result as JSON");
  command.footer(
      "Tensor parallelism without sequence parallelism; the orders are those of "
      "piper/cost/trainer/moe_schedules.h. The gate and the sorting of rows, alike in all, are not "
      "counted.");
  return [flags] { return run_moe(*flags); };
}

}  // namespace piper::cli
