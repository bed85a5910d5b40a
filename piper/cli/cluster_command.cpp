// piper cluster: what a machine is and how fast, and where each figure comes from.
#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/base/units.h>
#include <piper/cli/command.h>
#include <piper/cli/console.h>
#include <piper/cluster/cluster.h>
#include <piper/cluster/facts.h>
#include <piper/report/table.h>

#include <algorithm>
#include <memory>

namespace piper::cli {
namespace {

using report::Align;

struct ClusterFlags {
  std::string name;
  bool list = false;
  bool sources = false;
  bool json = false;
};

std::string dash_if(bool absent, const std::string& text) { return absent ? "-" : text; }

void print_device(const cluster::Cluster& c) {
  say("{}: {}\n\n", c.name, c.description);
  report::Table table;
  table.columns = {{""}, {"", Align::kLeft}};
  table.rows = {{"device", c.device},
                {"devices", fmt::format("{}", c.num_devices())},
                {"memory of a device", format_bytes(static_cast<double>(c.memory_bytes))},
                {"memory bandwidth", format_bytes_per_second(c.memory_bytes_per_second)},
                {"cost of starting a task",
                 dash_if(c.fixed_task_seconds == 0, format_seconds(c.fixed_task_seconds))}};
  if (c.cores_per_node > 0)
    table.rows.push_back({"cores shared by a node's ranks", fmt::format("{}", c.cores_per_node)});
  say("{}\n", Lines{report::to_text(table)});
}

void print_levels(const cluster::Cluster& c) {
  report::Table table;
  table.columns = {{"level"},
                   {"members", Align::kRight},
                   {"devices", Align::kRight},
                   {"bandwidth a device", Align::kRight},
                   {"latency", Align::kRight},
                   {"NICs of a member", Align::kRight}};
  for (size_t i = 0; i < c.levels.size(); ++i) {
    const cluster::Level& level = c.levels[i];
    const std::string nics =
        fmt::format("{} x {}", level.num_nics, format_bytes_per_second(level.nic_bytes_per_second));
    table.rows.push_back(
        {level.name,
         fmt::format("{} {}", level.num_members, i == 0 ? "devices" : "x " + c.levels[i - 1].name),
         fmt::format("{}", c.devices_of_level(i)),
         format_bytes_per_second(level.link.bytes_per_second),
         format_seconds(level.link.latency_seconds), dash_if(level.num_nics == 0, nics)});
  }
  say("{}\n", Lines{report::to_text(table)});
}

void print_precisions(const cluster::Cluster& c) {
  report::Table table;
  table.columns = {{"precision"},
                   {"dense peak", Align::kRight},
                   {"large GEMMs", Align::kRight},
                   {"measured curves"}};
  for (const auto& [precision, compute] : c.compute) {
    std::string curves;
    for (const auto& [name, grid] : {std::pair{"GEMM", &compute.gemm},
                                     {"attention", &compute.attention},
                                     {"attention backward", &compute.attention_backward}})
      if (!grid->empty()) curves += (curves.empty() ? "" : ", ") + std::string(name);
    table.rows.push_back({precision, format_flops_per_second(compute.peak_flops_per_second),
                          dash_if(compute.gemm_efficiency == 0,
                                  fmt::format("{:.1f} %", 100 * compute.gemm_efficiency)),
                          dash_if(curves.empty(), curves)});
  }
  say("{}\n", Lines{report::to_text(table)});
}

// What a GEMM of `rows` tokens reaches, as a share of the peak: skinny ones are far below it.
void print_gemm(const std::string& precision, const cluster::Compute& compute) {
  const std::vector<std::pair<double, double>> shapes = {
      {512, 2048}, {2048, 2048}, {4096, 4096}, {16384, 4096}};
  report::Table table;
  table.columns = {{"rows", Align::kRight}};
  for (const auto& [out, in] : shapes)
    table.columns.push_back({fmt::format("{} x {}", out, in), Align::kRight});
  for (const double rows : {64.0, 256.0, 1024.0, 4096.0, 16384.0}) {
    std::vector<std::string> row = {fmt::format("{}", rows)};
    for (const auto& [out, in] : shapes) {
      bool outside = false;
      const double rate = compute.gemm.at({rows, out, in}, &outside);
      row.push_back(fmt::format("{:.1f} %{}", 100 * rate / compute.peak_flops_per_second,
                                outside ? " *" : ""));
    }
    table.rows.push_back(row);
  }
  say("GEMM in {}, share of the peak by rows (tokens) and out x in (* outside the curve: its "
      "edge)\n"
      "{}\n",
      precision, Lines{report::to_text(table)});
}

void print_attention(const std::string& precision, const cluster::Compute& compute) {
  const auto share = [&](const cluster::Grid& grid, double sequence) {
    if (grid.empty()) return std::string("-");
    return fmt::format("{:.1f} %", 100 * grid.at({sequence, 128}) / compute.peak_flops_per_second);
  };
  report::Table table;
  table.columns = {
      {"sequence", Align::kRight}, {"forward", Align::kRight}, {"backward", Align::kRight}};
  for (const double sequence : {1024.0, 4096.0, 16384.0})
    table.rows.push_back({fmt::format("{}", sequence), share(compute.attention, sequence),
                          share(compute.attention_backward, sequence)});
  say("Causal attention in {}, share of the peak, head size 128\n{}\n", precision,
      Lines{report::to_text(table)});
}

void print_sources(const cluster::Cluster& c) {
  for (const std::string& fact : cluster::stated_facts(c)) {
    const cluster::Source* source = cluster::source_of(c, fact);
    say("{}\n    {}\n", fact, source == nullptr ? "not given" : source->source);
  }
}

// `asked`: the name or file that was given.
void print_cluster(const cluster::Cluster& c, const std::string& asked, bool sources) {
  print_device(c);
  print_levels(c);
  print_precisions(c);
  for (const auto& [precision, compute] : c.compute) {
    if (!compute.gemm.empty()) print_gemm(precision, compute);
    if (!compute.attention.empty()) print_attention(precision, compute);
  }
  if (sources) {
    print_sources(c);
    return;
  }
  const auto facts = cluster::stated_facts(c);
  const auto assumed = std::count_if(facts.begin(), facts.end(), [&](const std::string& fact) {
    const cluster::Source* source = cluster::source_of(c, fact);
    return source != nullptr && cluster::is_assumption(*source);
  });
  say("{} figures, {} of them assumptions: piper cluster {} --sources\n", facts.size(), assumed,
      asked);
}

int print_list(bool json) {
  if (json) {
    say_json(Json{{"clusters", cluster::builtin_clusters()}});
    return 0;
  }
  report::Table table;
  table.columns = {{"cluster"}, {"devices", Align::kRight}, {"description"}};
  table.max_width = report::console_width();
  for (const std::string& name : cluster::builtin_clusters()) {
    const cluster::Cluster c = cluster::load_cluster(name);
    table.rows.push_back({name, fmt::format("{}", c.num_devices()), c.description});
  }
  say("{}", Lines{report::to_text(table)});
  return 0;
}

int run_cluster(const ClusterFlags& flags) {
  if (flags.list) return print_list(flags.json);
  if (flags.name.empty())
    throw InvalidInput("a cluster is missing: give a built-in name or a file, or --list");
  const cluster::Cluster c = cluster::load_cluster(flags.name);
  if (flags.json)  // the description itself: edited, it can be given back as a file
    say_json(cluster::to_json(c));
  else
    print_cluster(c, flags.name, flags.sources);
  return 0;
}

}  // namespace

Run add_cluster(Subcommand command) {
  auto flags = std::make_shared<ClusterFlags>();
  command.add_option("cluster", flags->name, "A built-in name or a JSON file");
  command.add_flag("--list", flags->list, "The built-in clusters");
  command.add_flag("--sources", flags->sources, "Where each figure comes from");
  command.add_flag("--json", flags->json, "JSON on standard output");
  return [flags] { return run_cluster(*flags); };
}

}  // namespace piper::cli
