// piper bench collectives: all-to-alls simulated in virtual time on a described cluster. Curves
// over nodes and sizes for every algorithm, the bandwidth over ranks (Piper, Fig. 5) against eq. 6,
// and how much of HALO's phase I is hidden.
#include <bench/benches.h>
#include <bench/collective_curves.h>
#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/base/units.h>
#include <piper/cli/console.h>
#include <piper/report/table.h>

#include <memory>

namespace piper::cli {
namespace {

using report::Align;

struct CollectivesFlags {
  std::string cluster = "frontier";
  CurveQuestion question;
  std::vector<std::string> parts{"curves", "ranks", "phases"};
  bool json = false;
};

std::string times(double ratio) { return fmt::format("{:.2f}", ratio); }

Json to_json(const CurvePoint& point) {
  Json seconds = Json::object(), limits = Json::object();
  for (const CurvePoint::Time& time : point.times) {
    seconds[time.algorithm] = time.seconds;
    limits[time.algorithm] = time.limited_by;
  }
  return {{"placement", point.placement},  {"nodes", point.nodes},
          {"bytes_per_pair", point.bytes}, {"seconds", seconds},
          {"limited_by", limits},          {"limit_seconds", point.limit_seconds}};
}

void print_curves(const std::vector<CurvePoint>& points) {
  report::Table table;
  table.columns = {{"placement"}, {"nodes", Align::kRight}, {"bytes a pair", Align::kRight}};
  if (points.empty()) return;
  for (const CurvePoint::Time& time : points.front().times)
    table.columns.push_back({time.algorithm, Align::kRight});
  for (const char* header : {"limit", "naive/HALO", "pairwise/HALO", "flat/HALO"})
    table.columns.push_back({header, Align::kRight});
  table.columns.push_back({"flat waits for"});
  table.columns.push_back({"HALO waits for"});
  for (const CurvePoint& p : points) {
    std::vector<std::string> row{p.placement, std::to_string(p.nodes),
                                 format_bytes(static_cast<double>(p.bytes))};
    for (const CurvePoint::Time& time : p.times) row.push_back(format_seconds(time.seconds));
    const double halo = p.best_halo().seconds;
    row.push_back(format_seconds(p.limit_seconds));
    for (const char* opponent : {"naive", "pairwise", "node-aware"})
      row.push_back(times(p.of(opponent).seconds / halo));
    row.push_back(p.of("node-aware").limited_by);
    row.push_back(p.best_halo().limited_by);
    table.rows.push_back(row);
  }
  say("{}\n", Lines{report::to_text(table)});
  for (const Crossover& c : crossovers(points))
    say("{}, {} a pair, against {}: {}\n", c.placement, format_bytes(static_cast<double>(c.bytes)),
        c.opponent,
        c.nodes == 0 ? "HALO is never more than 10 % faster"
                     : fmt::format("HALO is more than 10 % faster from {} nodes", c.nodes));
}

void print_ranks(const std::vector<RankPoint>& points) {
  report::Table table;
  table.columns = {{"ranks", Align::kRight},         {"nodes", Align::kRight},
                   {"bytes a rank", Align::kRight},  {"time", Align::kRight},
                   {"bus bandwidth", Align::kRight}, {"eq. 6", Align::kRight},
                   {"time / eq. 6", Align::kRight},  {"time / across", Align::kRight}};
  for (const RankPoint& p : points)
    table.rows.push_back({std::to_string(p.ranks), std::to_string(p.nodes),
                          format_bytes(static_cast<double>(p.bytes_a_rank)),
                          format_seconds(p.seconds), format_bytes_per_second(p.bus_bandwidth),
                          p.eq6_seconds > 0 ? format_seconds(p.eq6_seconds) : "-",
                          p.eq6_seconds > 0 ? times(p.seconds / p.eq6_seconds) : "-",
                          p.across_seconds > 0 ? times(p.seconds / p.across_seconds) : "-"});
  say("\nbandwidth over ranks (Fig. 5), flat in node-aware order; eq. 6: all that leaves a device "
      "through its "
      "share of a NIC; across: what leaves the node\n{}",
      Lines{report::to_text(table)});
}

void print_phases(const std::vector<PhasePoint>& points) {
  report::Table table;
  table.columns = {{"nodes", Align::kRight},         {"bytes a pair", Align::kRight},
                   {"phase I alone", Align::kRight}, {"II and III alone", Align::kRight},
                   {"under II", Align::kRight},      {"hidden", Align::kRight},
                   {"under III", Align::kRight},     {"hidden", Align::kRight}};
  for (const PhasePoint& p : points)
    table.rows.push_back({std::to_string(p.nodes), format_bytes(static_cast<double>(p.bytes)),
                          format_seconds(p.one_seconds), format_seconds(p.two_three_seconds),
                          format_seconds(p.under_two_seconds), format_percent(p.hidden_under_two()),
                          format_seconds(p.under_three_seconds),
                          format_percent(p.hidden_under_three())});
  say("\nphase I of HALO as printed, hidden under phase II and under III\n{}",
      Lines{report::to_text(table)});
}

Json to_json(const RankPoint& p) {
  return {{"ranks", p.ranks},
          {"nodes", p.nodes},
          {"bytes_a_rank", p.bytes_a_rank},
          {"seconds", p.seconds},
          {"bus_bytes_per_second", p.bus_bandwidth},
          {"eq6_seconds", p.eq6_seconds},
          {"across_seconds", p.across_seconds}};
}

Json to_json(const PhasePoint& p) {
  return {{"nodes", p.nodes},
          {"bytes_per_pair", p.bytes},
          {"phase_one_seconds", p.one_seconds},
          {"phases_two_three_seconds", p.two_three_seconds},
          {"under_two_seconds", p.under_two_seconds},
          {"under_three_seconds", p.under_three_seconds},
          {"hidden_under_two", p.hidden_under_two()},
          {"hidden_under_three", p.hidden_under_three()}};
}

template <class Point>
Json list_of(const std::vector<Point>& points) {
  Json list = Json::array();
  for (const Point& point : points) list.push_back(to_json(point));
  return list;
}

int run_collectives(const CollectivesFlags& flags) {
  const cluster::Cluster cluster = cluster::load_cluster(flags.cluster);
  const auto wanted = [&](const char* part) {
    return std::ranges::find(flags.parts, part) != flags.parts.end();
  };
  std::vector<CurvePoint> curves;
  std::vector<RankPoint> ranks;
  std::vector<PhasePoint> phases;
  if (wanted("curves")) curves = simulate_curves(cluster, flags.question);
  if (wanted("ranks")) ranks = simulate_ranks(cluster, flags.question);
  if (wanted("phases")) phases = simulate_phases(cluster, flags.question);
  if (flags.json) {
    Json found = Json::array();
    for (const Crossover& c : crossovers(curves))
      found.push_back({{"placement", c.placement},
                       {"bytes_per_pair", c.bytes},
                       {"opponent", c.opponent},
                       {"nodes", c.nodes == 0 ? Json() : Json(c.nodes)}});
    say_json(Json{{"cluster", cluster.name},
                  {"curves", list_of(curves)},
                  {"crossovers", found},
                  {"ranks", list_of(ranks)},
                  {"phase_one", list_of(phases)}});
    return 0;
  }
  print_curves(curves);
  if (!ranks.empty()) print_ranks(ranks);
  if (!phases.empty()) print_phases(phases);
  return 0;
}

}  // namespace

Run add_bench_collectives(Subcommand command) {
  auto flags = std::make_shared<CollectivesFlags>();
  CurveQuestion& q = flags->question;
  command.add_option("--cluster", flags->cluster, "built-in cluster or file");
  command.add_option("--nodes", q.nodes, "nodes of the curves")
      .delimiter(',')
      .check(integer_in(2, 4096));
  command.add_option("--bytes", q.bytes, "bytes a pair").delimiter(',').check(positive_number());
  command.add_option("--parts", flags->parts, "curves, ranks, phases")
      .delimiter(',')
      .check(one_of({"curves", "ranks", "phases"}));
  command
      .add_option("--placements", q.placements,
                  "packed, scattered (over units of the last level but one), minimal (scattered, "
                  "and a link for each pair of them), drawn (nodes at random)")
      .delimiter(',')
      .check(one_of({"packed", "scattered", "minimal", "drawn"}));
  command.add_option("--units", q.units, "units that are scattered over").check(positive_number());
  command
      .add_option("--pair-bytes-per-second", q.pair_bytes_per_second,
                  "of a link between two units (minimal)")
      .check(positive_number());
  command
      .add_option("--message-seconds", q.message_seconds,
                  "start-up of a message; default: the cluster's")
      .check(number_in(0, 3600));
  command.add_flag("--turns", q.by_turns,
                   "messages to several peers take turns at their sender's NIC");
  command.add_flag("--json", flags->json, "print the result as JSON");
  return [flags] { return run_collectives(*flags); };
}

}  // namespace piper::cli
