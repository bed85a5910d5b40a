#include <fmt/format.h>
#include <fmt/ranges.h>
#include <piper/base/json.h>
#include <piper/base/units.h>
#include <piper/cli/place_report.h>
#include <piper/cluster/hostlist.h>
#include <piper/files/output.h>
#include <piper/placement/placed_exchange.h>
#include <piper/plan/search.h>
#include <piper/report/table.h>
#include <piper/strategy/rank_layout.h>

#include <map>
#include <numeric>

namespace piper::cli {
namespace {

// An exchange that is slower by so much is not bought with less busy links.
constexpr double kSlower = 0.01;

using report::Align;

constexpr size_t kMostRows = 64;  // nodes of the map in text; JSON has all

// "0-3,8"
std::string ranges(const std::vector<int64_t>& numbers) {
  std::string text;
  for (size_t i = 0; i < numbers.size();) {
    size_t end = i;
    while (end + 1 < numbers.size() && numbers[end + 1] == numbers[end] + 1) ++end;
    text += fmt::format("{}{}", text.empty() ? "" : ",", numbers[i]);
    if (end > i) text += fmt::format("-{}", numbers[end]);
    i = end + 1;
  }
  return text;
}

struct RankPlace {
  int64_t stage = 0, expert_group = 0;
};

// Expert groups (ep x etp ranks) are numbered stage by stage.
RankPlace place_of(const strategy::Strategy& s, int64_t rank) {
  const strategy::RankLayout layout(s);
  const strategy::Coordinates at = layout.coordinates(Rank(rank));
  return {at.pp, at.pp * layout.size(strategy::Axis::kExpertData) + at.edp};
}

std::vector<std::vector<int64_t>> ranks_of_nodes(const PlaceReport& r) {
  std::vector<std::vector<int64_t>> ranks(r.allocation.nodes.size());
  for (size_t rank = 0; rank < r.placing.ranks.size(); ++rank)
    ranks[static_cast<size_t>(r.slots.node[static_cast<size_t>(r.placing.ranks[rank])])].push_back(
        static_cast<int64_t>(rank));
  return ranks;
}

// Outermost first.
std::string path_of(const cluster::AllocatedNode& node) {
  std::vector<std::string> path(node.groups.rbegin(), node.groups.rend());
  return fmt::format("{}", fmt::join(path, " / "));
}

// "stage 0: group 1 (8-15)"
std::string roles(const strategy::Strategy& s, const std::vector<int64_t>& ranks) {
  std::map<int64_t, std::map<int64_t, std::vector<int64_t>>> by_stage;
  for (const int64_t rank : ranks) {
    const RankPlace place = place_of(s, rank);
    by_stage[place.stage][place.expert_group].push_back(rank);
  }
  std::string text;
  for (const auto& [stage, groups] : by_stage) {
    text += fmt::format("{}stage {}:", text.empty() ? "" : "; ", stage);
    for (const auto& [group, members] : groups)
      text += fmt::format("{} group {} ({})", &group == &groups.begin()->first ? "" : ",", group,
                          ranges(members));
  }
  return text;
}

std::string map_text(const PlaceReport& r) {
  report::Table table;
  table.columns = {{"node"}, {"in"}, {"ranks"}, {"pipeline stage: expert group (ranks)"}};
  const auto ranks = ranks_of_nodes(r);
  for (size_t n = 0; n < ranks.size() && n < kMostRows; ++n)
    table.rows.push_back({r.allocation.nodes[n].name, path_of(r.allocation.nodes[n]),
                          ranges(ranks[n]), roles(r.strategy, ranks[n])});
  table.max_width = report::console_width();
  std::string text = report::to_text(table);
  if (ranks.size() > kMostRows)
    text += fmt::format("... and {} more nodes (--json has all)\n", ranks.size() - kMostRows);
  return text;
}

std::string level_name(const PlaceReport& r, size_t level) {
  return level == 0 ? "inside nodes"
                    : "across " + r.allocation.machine.levels[level - 1].name + "s";
}

std::string bytes_text(const PlaceReport& r) {
  report::Table table;
  table.columns = {{"bytes of a step"},
                   {"given", Align::kRight},
                   {"placed", Align::kRight},
                   {"of the placed: most of"}};
  for (size_t level = 0; level < r.chosen.bytes.by_level.size(); ++level) {
    const auto& by_axis = r.chosen.bytes.by_level[level];
    std::vector<std::string> parts;
    for (size_t axis = 0; axis < strategy::kNumAxes; ++axis)
      if (by_axis[axis] > 0.005 * r.chosen.bytes.total(level))
        parts.push_back(fmt::format("{} {}", strategy::name(strategy::kAxes[axis]),
                                    format_bytes(by_axis[axis])));
    table.rows.push_back({level_name(r, level), format_bytes(r.given.bytes.total(level)),
                          format_bytes(r.chosen.bytes.total(level)),
                          fmt::format("{}", fmt::join(parts, ", "))});
  }
  return report::to_text(table);
}

std::string price_text(const PlaceReport& r) {
  const placement::Placing& p = r.placing;
  report::Table table;
  table.columns = {{"order of ranks"}, {"links busy", Align::kRight}, {"/ placed", Align::kRight}};
  const auto row = [&](const std::string& name, double seconds) {
    table.rows.push_back({name, format_seconds(seconds),
                          p.seconds > 0 ? fmt::format("{:.3f}", seconds / p.seconds) : "-"});
  };
  row("as given", p.given_seconds);
  row(fmt::format("nodes in random order (median of {})", placement::kRandomOrders),
      p.random_seconds);
  row(p.is_best ? "placed (no placement is better)" : "placed", p.seconds);
  if (!p.is_best) row("no placement is below", p.least_seconds);
  std::string text = report::to_text(table);
  text += fmt::format("\na step, by what its waiting takes longer there: {} as given, {} placed\n",
                      format_seconds(r.given_step), format_seconds(r.chosen_step));
  if (r.chosen_exchange)
    text += fmt::format(
        "\none exchange of a mixture layer, all expert groups at once, {} a pair, {}, simulated: "
        "{} "
        "as "
        "given, {} placed ({:.2f}x)\n",
        format_bytes(r.pair_bytes), strategy::name(r.strategy.all_to_all),
        format_seconds(*r.given_exchange), format_seconds(*r.chosen_exchange),
        *r.given_exchange / *r.chosen_exchange);
  if (r.refused_exchange)
    text += fmt::format(
        "the order as given was kept: another keeps links less busy in all, but its exchange takes "
        "{}\n",
        format_seconds(*r.refused_exchange));
  return text;
}

std::string choice_text(const PlaceReport& r) {
  const placement::NodeChoice& c = r.choice->choice;
  const auto& levels = r.allocation.machine.levels;
  std::vector<std::string> units;
  for (size_t i = 0; i + 1 < c.num_units.size(); ++i)
    units.push_back(fmt::format("{} {}{} (the first in order: {})", c.num_units[i],
                                levels[i + 1].name, c.num_units[i] == 1 ? "" : "s",
                                c.first_units[i]));
  std::string text =
      fmt::format("ask for {} of the {} free nodes: --nodelist={}", r.allocation.nodes.size(),
                  r.num_free, cluster::compress_hostlist(r.hosts()));
  if (!c.num_units.empty()) text += fmt::format(" --switches={}", c.num_units[0]);
  text += fmt::format(
      "\n{}{}links busy {} a step, on the first in order {}{}\n", fmt::join(units, ", "),
      units.empty() ? "" : "; ", format_seconds(c.seconds), format_seconds(c.first_seconds),
      c.first_seconds == INFINITY ? " (too few slots)"
                                  : fmt::format(" ({:.2f}x)", c.first_seconds / c.seconds));
  text += fmt::format("step expected {}", format_seconds(r.choice->step_seconds));
  if (r.choice->first_seconds < INFINITY)
    text += fmt::format(", on the first in order {}", format_seconds(r.choice->first_seconds));
  if (r.choice->by_bytes_seconds > r.choice->step_seconds)
    text += fmt::format(", on those whose links are least busy {}",
                        format_seconds(r.choice->by_bytes_seconds));
  text += "\n";
  if (c.is_best) text += "no other nodes are better: all ways to take them were priced\n";
  return text + "\n";
}

Json bytes_json(const PlaceReport& r, const placement::PlacedBytes& bytes) {
  Json levels = Json::array();
  for (size_t level = 0; level < bytes.by_level.size(); ++level) {
    Json by_axis = Json::object();
    for (size_t axis = 0; axis < strategy::kNumAxes; ++axis)
      if (bytes.by_level[level][axis] > 0)
        by_axis[strategy::name(strategy::kAxes[axis])] = bytes.by_level[level][axis];
    levels.push_back({{"level", level_name(r, level)},
                      {"bytes", bytes.total(level)},
                      {"bytes_by_axis", by_axis}});
  }
  return levels;
}

}  // namespace

std::vector<std::string> PlaceReport::hosts() const {
  std::vector<std::string> names;
  for (const cluster::AllocatedNode& node : allocation.nodes) names.push_back(node.name);
  return names;
}

std::vector<exporting::RankHost> PlaceReport::rank_hosts() const {
  std::vector<exporting::RankHost> hosts;
  for (const int32_t slot : placing.ranks) {
    const cluster::AllocatedNode& node =
        allocation.nodes[static_cast<size_t>(slots.node[static_cast<size_t>(slot)])];
    hosts.push_back({node.name, slots.device[static_cast<size_t>(slot)] - node.first_device});
  }
  return hosts;
}

void fill_in(PlaceReport& r, const model::Model& model,
             std::span<const placement::RankGroup> groups, placement::PlacedStep placed) {
  r.slots = placement::slots_of(r.allocation);
  r.placing = std::move(placed.placing);
  r.given_step = placed.given_seconds;
  r.chosen_step = placed.seconds;
  placement::RankSlots given(r.placing.ranks.size());
  std::iota(given.begin(), given.end(), 0);
  r.given = placement::price_placement(r.slots, groups, given);
  r.chosen = placement::price_placement(r.slots, groups, r.placing.ranks);
  r.pair_bytes = placement::exchange_pair_bytes(model, r.strategy);
  const auto simulated = [&](const placement::RankSlots& ranks) {
    return placement::placed_exchange_seconds(r.allocation, r.slots, groups, ranks, r.pair_bytes,
                                              r.strategy);
  };
  r.given_exchange = simulated(given);
  r.chosen_exchange = simulated(r.placing.ranks);
  if (!r.given_exchange || *r.chosen_exchange <= (1 + kSlower) * *r.given_exchange) return;
  r.refused_exchange = r.chosen_exchange;
  r.chosen_exchange = r.given_exchange;
  r.chosen_step = r.given_step;
  r.placing.ranks = given;
  r.placing.least_seconds = r.placing.is_best ? r.placing.seconds : r.placing.least_seconds;
  r.placing.seconds = r.placing.given_seconds;
  r.placing.is_best = false;
  r.chosen = r.given;
}

void write_launch_files(const PlaceReport& r, const LaunchFileFlags& f) {
  const std::vector<exporting::RankHost> hosts = r.rank_hosts();
  if (!f.rankfile.empty())
    files::write_text_file(f.rankfile, exporting::open_mpi_rankfile(hosts, f.cores_per_rank));
  if (!f.hostfile.empty()) files::write_text_file(f.hostfile, exporting::slurm_hostfile(hosts));
}

std::string launch_text(const PlaceReport& r, const LaunchFileFlags& f) {
  std::string text;
  const size_t num_ranks = r.placing.ranks.size();
  if (!f.rankfile.empty())
    text += fmt::format("\nmpirun -n {} --rankfile {} ...\n", num_ranks, f.rankfile);
  if (!f.hostfile.empty())
    text += fmt::format("\nSLURM_HOSTFILE={} srun -n {} --distribution=arbitrary ...\n", f.hostfile,
                        num_ranks);
  return text;
}

std::string to_text(const PlaceReport& r) {
  std::string text = r.choice ? choice_text(r) : "";
  return text + fmt::format("{}: {} ranks on {} node{} of {}\n\n{}\n{}\n{}",
                            plan::describe(r.strategy), r.placing.ranks.size(),
                            r.allocation.nodes.size(), r.allocation.nodes.size() == 1 ? "" : "s",
                            r.allocation.machine.name, map_text(r), bytes_text(r), price_text(r));
}

Json to_json(const PlaceReport& r) {
  const std::vector<exporting::RankHost> hosts = r.rank_hosts();
  Json ranks = Json::array(), nodes = Json::array();
  for (size_t rank = 0; rank < hosts.size(); ++rank) {
    const RankPlace place = place_of(r.strategy, static_cast<int64_t>(rank));
    ranks.push_back({{"rank", rank},
                     {"node", hosts[rank].host},
                     {"slot", hosts[rank].slot},
                     {"stage", place.stage},
                     {"expert_group", place.expert_group}});
  }
  const auto of_nodes = ranks_of_nodes(r);
  for (size_t n = 0; n < of_nodes.size(); ++n)
    nodes.push_back({{"node", r.allocation.nodes[n].name},
                     {"groups", r.allocation.nodes[n].groups},
                     {"slots", r.allocation.nodes[n].num_slots},
                     {"ranks", of_nodes[n]}});
  const placement::Placing& p = r.placing;
  Json json = {
      {"cluster", r.allocation.machine.name},
      {"nodelist", cluster::compress_hostlist(r.hosts())},
      {"links_busy_seconds",
       {{"given", p.given_seconds},
        {"random_median", p.random_seconds},
        {"placed", p.seconds},
        {"lower_bound", p.is_best ? p.seconds : p.least_seconds},
        {"is_best", p.is_best}}},
      {"step_seconds", {{"given", r.given_step}, {"placed", r.chosen_step}}},
      {"bytes",
       {{"given", bytes_json(r, r.given.bytes)}, {"placed", bytes_json(r, r.chosen.bytes)}}},
      {"nodes", nodes},
      {"ranks", ranks}};
  if (r.chosen_exchange)
    json["exchange"] = {{"algorithm", strategy::name(r.strategy.all_to_all)},
                        {"bytes_per_pair", r.pair_bytes},
                        {"given_seconds", *r.given_exchange},
                        {"placed_seconds", *r.chosen_exchange}};
  if (r.refused_exchange) json["exchange"]["refused_seconds"] = *r.refused_exchange;
  if (r.choice)
    json["choice"] = {
        {"free_nodes", r.num_free},
        {"switches", r.choice->choice.num_units.empty() ? 1 : r.choice->choice.num_units[0]},
        {"units", r.choice->choice.num_units},
        {"units_of_first", r.choice->choice.first_units},
        {"links_busy_seconds", r.choice->choice.seconds},
        {"links_busy_seconds_of_first", r.choice->choice.first_seconds},
        {"step_seconds", r.choice->step_seconds},
        {"step_seconds_of_first", r.choice->first_seconds},
        {"step_seconds_by_links", r.choice->by_bytes_seconds},
        {"is_best", r.choice->choice.is_best}};
  return json;
}

}  // namespace piper::cli
