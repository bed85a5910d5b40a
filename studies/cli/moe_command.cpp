// piper-studies moe: how Parm and PipeMoE choose between schedules of a mixture layer on a machine,
// beside the choice by price, which `piper moe` prints in full.
#include <fmt/format.h>
#include <piper/base/json.h>
#include <piper/base/units.h>
#include <piper/cli/command.h>
#include <piper/cli/console.h>
#include <piper/cli/moe_layer.h>
#include <piper/cost/trainer/moe_schedules.h>
#include <piper/report/table.h>
#include <studies/parm_choice.h>
#include <studies/pipemoe_choice.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

namespace piper::studies {
namespace {

using cost::MoeSchedulePrice;
using report::Align;

struct MoeFlags {
  cli::MoeLayerFlags layer;
  bool json = false;
};

// The cheapest of Parm's three, by price.
std::string cheapest_of_parm(const std::vector<MoeSchedulePrice>& prices) {
  std::vector<MoeSchedulePrice> list;
  for (const MoeSchedulePrice& p : prices)
    if (p.name.starts_with("parm-")) list.push_back(p);
  return list[cost::cheapest(list)].name;
}

std::string name_of(paper::parm::Schedule schedule) {
  return schedule == paper::parm::Schedule::kS1 ? "parm-s1" : "parm-s2";
}

Json to_json(const ParmChoice& choice, const std::string& by_price) {
  Json json{{"corrected", name_of(choice.corrected)},
            {"as_printed", name_of(choice.printed)},
            {"by_price", by_price},
            {"baseline_forward_seconds", choice.baseline_seconds},
            {"s1_forward_seconds", choice.s1_seconds},
            {"s2_forward_seconds", choice.s2_seconds},
            {"fits", Json::array()}};
  for (const FittedCollective& c : choice.collectives)
    if (c.ranks > 1)
      json["fits"].push_back({{"collective", c.name},
                              {"ranks", c.ranks},
                              {"alpha_seconds", c.fit.startup_seconds},
                              {"beta_seconds_per_element", c.fit.seconds_per_element},
                              {"worst_error", c.worst_error}});
  return json;
}

void print(const ParmChoice& choice, const std::string& by_price) {
  report::Table table;
  table.columns = {{"T = alpha + beta x"},
                   {"ranks", Align::kRight},
                   {"alpha", Align::kRight},
                   {"beta, ps an element", Align::kRight},
                   {"farthest point", Align::kRight}};
  for (const FittedCollective& c : choice.collectives)
    if (c.ranks > 1)
      table.rows.push_back({c.name, std::to_string(c.ranks), format_seconds(c.fit.startup_seconds),
                            fmt::format("{:.3g}", 1e12 * c.fit.seconds_per_element),
                            format_percent(c.worst_error)});
  cli::say(
      "\nParm's Algorithm 1, by lines through this machine's collectives (communication of the "
      "forward):\n{}baseline {}, S1 {}, S2 {}: it chooses {}, as printed {}; by price, forward and "
      "backward with the experts: {}\n",
      cli::Lines{report::to_text(table)}, format_seconds(choice.baseline_seconds),
      format_seconds(choice.s1_seconds), format_seconds(choice.s2_seconds),
      name_of(choice.corrected), name_of(choice.printed), by_price);
}

Json to_json(const paper::pipemoe::Task& task) {
  return {{"alpha_seconds", task.startup_seconds}, {"beta_n_seconds", task.work_seconds}};
}

Json to_json(const PipemoeChoice& choice) {
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

void print(const PipemoeChoice& choice) {
  const auto chunks = [](int64_t n) { return fmt::format("{} chunk{}", n, n == 1 ? "" : "s"); };
  cli::say(
      "PipeMoE's model takes {} for the forward, and so for the backward, {} for their sum: "
      "chunked in them is {} and {} by price; in Piper's own {} it is {} ({:+.1f} % and {:+.1f} "
      "%)\n",
      chunks(choice.chunks.num_chunks), choice.chunks_of_both, format_seconds(choice.price.total()),
      format_seconds(choice.price_of_both.total()), chunks(choice.best.num_chunks),
      format_seconds(choice.best.total()), 100 * choice.regret(), 100 * choice.regret_of_both());
}

int run_moe(const MoeFlags& flags) {
  const cli::MoeLayer layer = cli::read_moe_layer(flags.layer);
  const std::vector<MoeSchedulePrice> prices =
      cost::price_moe_schedules(layer.feed_forward, layer.setting, layer.machine);
  const PipemoeChoice pipemoe = choose_as_pipemoe(cost::price_chunks(
      layer.feed_forward, layer.setting, layer.machine, strategy::MoeSchedule::kChunked));
  const bool is_of_parm = layer.setting.tp > 1;  // else S1 and S2 are one exchange
  if (flags.json) {
    Json json = to_json(layer);
    json["best"] = prices[cost::cheapest(prices)].name;
    json["pipemoe"] = to_json(pipemoe);
    if (is_of_parm)
      json["algorithm_1"] =
          to_json(choose_as_parm(layer.feed_forward, layer.setting, layer.machine),
                  cheapest_of_parm(prices));
    cli::say_json(json);
    return 0;
  }
  cli::say("{}\n", in_words(layer));
  print(pipemoe);
  if (is_of_parm)
    print(choose_as_parm(layer.feed_forward, layer.setting, layer.machine),
          cheapest_of_parm(prices));
  cli::say("the cheapest of all schedules by price: {} (see piper moe)\n",
           prices[cost::cheapest(prices)].name);
  return 0;
}

}  // namespace

cli::Run add_moe(cli::Subcommand command) {
  auto flags = std::make_shared<MoeFlags>();
  cli::add_moe_layer_flags(command, flags->layer);
  command.add_flag("--json", flags->json, "print the result as JSON");
  command.footer("With --tp 2 or more also by Parm's Algorithm 1.");
  return [flags] { return run_moe(*flags); };
}

}  // namespace piper::studies
