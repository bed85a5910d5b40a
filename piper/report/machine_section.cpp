// The machine as it was measured: rates of matrix products by shape, links, memory.
#include <fmt/format.h>
#include <piper/base/units.h>
#include <piper/report/axis.h>
#include <piper/report/html.h>
#include <piper/report/sections.h>

#include <algorithm>
#include <tuple>

namespace piper::report {
namespace {

// Points of each axis that are shown.
constexpr size_t kMaxWeights = 5, kMaxRows = 8;

std::string shade_of(double rate, double fastest) {
  const int shade = fastest > 0 ? std::clamp(static_cast<int>(rate / fastest * 5), 0, 4) : 0;
  return fmt::format("rate-{}", shade);
}

// One row a weight (n, k), one column an m. The grid's rates are row-major over (m, n, k).
std::string gemm_table(const cluster::Grid& gemm) {
  if (gemm.empty() || gemm.points.size() != 3) return "";
  const auto& [m, n, k] = std::tie(gemm.points[0], gemm.points[1], gemm.points[2]);
  const std::vector<size_t> shown_m = evenly_chosen(m.size(), kMaxRows);
  HtmlTable table{.columns = {{"out × in", Align::kRight}}};
  for (const size_t i : shown_m) {
    table.columns.push_back({fmt::format("{:.0f} rows", m[i]), Align::kRight});
  }
  const double fastest = *std::max_element(gemm.rate.begin(), gemm.rate.end());
  for (const size_t out : evenly_chosen(n.size(), kMaxWeights)) {
    for (const size_t in : evenly_chosen(k.size(), kMaxWeights)) {
      HtmlTable::Row row{.cells = {{fmt::format("{:.0f} × {:.0f}", n[out], k[in]), "strong"}}};
      for (const size_t i : shown_m) {
        const double rate = gemm.rate[(i * n.size() + out) * k.size() + in];
        row.cells.push_back({format_flops_per_second(rate), shade_of(rate, fastest)});
      }
      table.rows.push_back(std::move(row));
    }
  }
  return to_html(table);
}

std::string compute_tables(const cluster::Cluster& machine) {
  std::string out;
  for (const auto& [precision, compute] : machine.compute) {
    out += fmt::format("<h3>Matrix products, {} <small>peak {} a device</small></h3>\n",
                       escape(precision),
                       escape(format_flops_per_second(compute.peak_flops_per_second)));
    const std::string table = gemm_table(compute.gemm);
    out += !table.empty()
               ? table
               : absent(fmt::format("No rates by shape are known; {} of the peak is assumed.",
                                    format_percent(compute.gemm_efficiency)));
  }
  return out;
}

std::string link_table(const cluster::Cluster& machine) {
  HtmlTable table{.columns = {{"level"},
                              {"members", Align::kRight},
                              {"latency (α)", Align::kRight},
                              {"bandwidth a device (1/β)", Align::kRight},
                              {"NICs", Align::kRight}}};
  for (const cluster::Level& level : machine.levels) {
    table.rows.push_back(
        {.cells = {{level.name, "strong"},
                   {fmt::format("{}", level.num_members)},
                   {format_seconds(level.link.latency_seconds)},
                   {format_bytes_per_second(level.link.bytes_per_second)},
                   {level.num_nics > 0 ? fmt::format("{}", level.num_nics) : "–"}}});
  }
  return "<h3>Links, T(n) = α + β n</h3>\n" + to_html(table);
}

std::string constants_table(const cluster::Cluster& machine) {
  HtmlTable table{.columns = {{"measured or stated"}, {"value", Align::kRight}}};
  const auto add = [&](const std::string& name, const std::string& value) {
    table.rows.push_back({.cells = {{name}, {value}}});
  };
  add("memory of a device", format_bytes(static_cast<double>(machine.memory_bytes)));
  add("memory bandwidth of a device", format_bytes_per_second(machine.memory_bytes_per_second));
  add("start of a task", format_seconds(machine.fixed_task_seconds));
  if (machine.cores_per_node > 0) {
    add("cores that the ranks of a node share", fmt::format("{}", machine.cores_per_node));
  }
  for (const auto& [name, value] : machine.numbers) add(name, fmt::format("{:.6g}", value));
  return "<h3>Constants</h3>\n" + to_html(table);
}

}  // namespace

std::string machine_section(const cluster::Cluster* machine) {
  if (machine == nullptr) return absent("The machine was not profiled.");
  std::string about = machine->name;
  if (!machine->device.empty()) about += " · " + machine->device;
  if (!machine->description.empty()) about += " · " + machine->description;
  return paragraph(about) + compute_tables(*machine) + link_table(*machine) +
         constants_table(*machine) + curve_charts(*machine);
}

}  // namespace piper::report
