// Measured curves as charts: rates over what they depend on, links as samples beside their fits,
// all points in tables.
#include <fmt/format.h>
#include <piper/base/units.h>
#include <piper/cluster/findings.h>
#include <piper/report/axis.h>
#include <piper/report/html.h>
#include <piper/report/line_chart.h>
#include <piper/report/sections.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

namespace piper::report {
namespace {

using cluster::Curve;
using cluster::CurvePoint;

constexpr std::array kClasses = {"series-a", "series-b", "series-c", "series-d"};
constexpr int kFitPoints = 64;
constexpr size_t kMaxTableRows = 400;  // of one curve's table

std::string rate_text(const std::string& unit, double rate) {
  if (unit == "flops") return format_flops_per_second(rate);
  if (unit == "bytes") return format_bytes_per_second(rate);
  return format_count(rate) + " " + unit + "/s";
}

LineChart rate_chart(const std::string& title, const std::string& x_label,
                     const std::string& unit) {
  LineChart chart{.description = title, .x_label = x_label, .y_label = title};
  chart.log_x = true;
  chart.from_zero = true;
  chart.format_y = [unit](double rate) { return rate_text(unit, rate); };
  return chart;
}

// GEMM rates over the rows, for weights from the smallest to the largest.
std::string gemm_chart(const std::string& precision, const cluster::Grid& gemm) {
  if (gemm.empty() || gemm.points.size() != 3 || gemm.points[0].size() < 2) return "";
  const std::vector<double>&m = gemm.points[0], &n = gemm.points[1], &k = gemm.points[2];
  LineChart chart = rate_chart(fmt::format("Matrix products over the rows, {}", precision),
                               "rows (tokens of one product)", "flops");
  const std::vector<size_t> outs = evenly_chosen(n.size(), kClasses.size());
  const std::vector<size_t> ins = evenly_chosen(k.size(), kClasses.size());
  for (size_t i = 0; i < std::max(outs.size(), ins.size()); ++i) {
    const size_t out = outs[std::min(i, outs.size() - 1)], in = ins[std::min(i, ins.size() - 1)];
    Series series{.name = fmt::format("{:.0f} × {:.0f} (out × in)", n[out], k[in]),
                  .css_class = kClasses[i]};
    for (size_t row = 0; row < m.size(); ++row)
      series.points.emplace_back(m[row], gemm.rate[(row * n.size() + out) * k.size() + in]);
    chart.series.push_back(std::move(series));
  }
  return line_chart(chart);
}

// Rates of a curve over one axis, a series for every combination of the others that `accepts`; at
// most four, chosen evenly.
template <class Accepts, class Name>
std::string rates_over(const Curve& curve, const std::string& axis, const std::string& title,
                       const Accepts& accepts, const Name& name_of) {
  const size_t x = axis_of(curve, axis);
  std::map<std::string, Series> all;
  std::vector<std::string> order;
  for (const CurvePoint& point : curve.points) {
    if (!accepts(point)) continue;
    const std::string name = name_of(point);
    if (!all.contains(name)) order.push_back(name);
    all[name].points.emplace_back(point.at[x], point.rate());
  }
  LineChart chart = rate_chart(title, axis, curve.unit);
  for (const size_t i : evenly_chosen(order.size(), kClasses.size())) {
    Series series = all[order[i]];
    std::ranges::sort(series.points);
    series.name = order[i];
    series.css_class = kClasses[chart.series.size()];
    chart.series.push_back(std::move(series));
  }
  return line_chart(chart);
}

bool has_axes(const Curve& curve, const std::vector<std::string>& axes) {
  return std::ranges::all_of(
      axes, [&](const std::string& axis) { return std::ranges::count(curve.axes, axis) > 0; });
}

std::string shape_charts(const Curve& curve) {
  const auto at = [&](const CurvePoint& p, const char* axis) { return p.at[axis_of(curve, axis)]; };
  if (has_axes(curve, {"batch", "sequence", "heads", "head_dim", "kv_heads"}))
    return rates_over(
        curve, "head_dim", fmt::format("Attention over the head size, {}", curve.name),
        [&](const CurvePoint& p) { return at(p, "heads") == at(p, "kv_heads"); },
        [&](const CurvePoint& p) {
          return fmt::format("{:.0f} × {:.0f} tokens", at(p, "batch"), at(p, "sequence"));
        });
  if (has_axes(curve, {"rows", "hidden", "ffn", "experts", "skew"})) {
    double most = 0;
    for (const CurvePoint& p : curve.points) most = std::max(most, at(p, "experts"));
    return rates_over(
        curve, "rows", fmt::format("{:.0f} experts over their rows, {}", most, curve.name),
        [&](const CurvePoint& p) { return at(p, "experts") == most; },
        [&](const CurvePoint& p) {
          return fmt::format("{:.0f} × {:.0f}, {}", at(p, "hidden"), at(p, "ffn"),
                             at(p, "skew") > 0 ? "skewed" : "balanced");
        });
  }
  return "";
}

std::string join_chart(const std::vector<Curve>& curves) {
  const auto join = cluster::join_of(curves);
  if (!join || join->points.size() < 2) return "";
  LineChart chart{.description = "attention and experts over the micro-batch",
                  .x_label = "sequences of a micro-batch",
                  .y_label = "Attention and experts, of the best rate of each"};
  chart.from_zero = true;
  chart.log_x = true;
  chart.format_y = [](double part) { return format_percent(part); };
  Series attention{.name = "attention", .css_class = kClasses[0]};
  Series experts{.name = "experts", .css_class = kClasses[1]};
  for (const cluster::JoinedPoint& p : join->points) {
    attention.points.emplace_back(p.sequences, p.attention_part);
    experts.points.emplace_back(p.sequences, p.experts_part);
  }
  chart.series = {attention, experts};
  return line_chart(chart) +
         paragraph(join->smallest
                       ? fmt::format("Both reach 90 % of their best at a micro-batch of {}.",
                                     join->well_text())
                       : "No micro-batch that was measured brings both to 90 % of their best.");
}

// Samples as dots beside T(n) = alpha + beta n.
std::string link_chart(const Curve& curve) {
  LineChart chart{.description = curve.name,
                  .x_label = "bytes that leave a rank",
                  .y_label = "Link: " + curve.name};
  chart.log_x = chart.log_y = true;
  chart.height = 200;
  chart.format_x = [](double bytes) {  // decimal, as the ticks are
    const std::string per_second = format_bytes_per_second(bytes);
    return per_second.substr(0, per_second.size() - 2);
  };
  chart.format_y = [](double seconds) { return format_seconds(seconds); };
  Series samples{.name = "measured", .css_class = kClasses[1], .dots = true};
  for (const CurvePoint& point : curve.points)
    samples.points.emplace_back(point.amount, point.timing.seconds);
  std::ranges::sort(samples.points);
  Series line{.name = "α + β n", .css_class = kClasses[0]};
  const double low = samples.points.front().first, high = samples.points.back().first;
  for (int i = 0; i <= kFitPoints && low > 0; ++i) {
    const double bytes = low * std::pow(high / low, static_cast<double>(i) / kFitPoints);
    line.points.emplace_back(bytes, curve.fit->line.seconds(bytes));
  }
  chart.series = {line, samples};
  return line_chart(chart) +
         paragraph(fmt::format("α {}, 1/β {}, R² {:.3f}; residuals: median {}, worst {}.",
                               format_seconds(curve.fit->line.latency_seconds),
                               format_bytes_per_second(curve.fit->line.bytes_per_second),
                               curve.fit->r_squared, format_percent(curve.fit->median_residual),
                               format_percent(curve.fit->worst_residual)));
}

std::string points_table(const Curve& curve) {
  HtmlTable table;
  for (const std::string& axis : curve.axes) table.columns.push_back({axis, Align::kRight});
  for (const char* column : {"rate", "median", "95 % interval", "samples", "outliers", "worst"})
    table.columns.push_back({column, Align::kRight});
  if (curve.fit) table.columns.push_back({"residual", Align::kRight});
  for (size_t i = 0; i < std::min(curve.points.size(), kMaxTableRows); ++i) {
    const CurvePoint& p = curve.points[i];
    HtmlTable::Row row;
    for (const double at : p.at) row.cells.push_back({fmt::format("{:.6g}", at)});
    row.cells.push_back({rate_text(curve.unit, p.rate())});
    row.cells.push_back({format_seconds(p.timing.seconds)});
    row.cells.push_back({fmt::format("{} – {}", format_seconds(p.timing.low_seconds),
                                     format_seconds(p.timing.high_seconds))});
    row.cells.push_back({std::to_string(p.timing.num_samples)});
    row.cells.push_back({std::to_string(p.timing.num_outliers)});
    row.cells.push_back({format_seconds(p.timing.worst_seconds)});
    if (curve.fit) row.cells.push_back({format_percent(curve.fit->residuals[i])});
    table.rows.push_back(std::move(row));
  }
  return fmt::format("<details><summary>{}: {} points</summary>\n{}</details>\n",
                     escape(curve.name), curve.points.size(), to_html(table));
}

}  // namespace

std::string curve_charts(const cluster::Cluster& machine) {
  std::string out;
  for (const auto& [precision, compute] : machine.compute)
    out += gemm_chart(precision, compute.gemm);
  for (const Curve& curve : machine.curves) out += shape_charts(curve);
  out += join_chart(machine.curves);
  std::string tables;
  for (const Curve& curve : machine.curves) {
    if (curve.points.empty()) continue;
    if (curve.fit) out += link_chart(curve);
    tables += points_table(curve);
  }
  if (!tables.empty()) out += "<h3>All measured points</h3>\n" + tables;
  return out;
}

}  // namespace piper::report
