#include <fmt/format.h>
#include <fmt/ranges.h>
#include <piper/base/units.h>
#include <piper/cli/console.h>
#include <piper/cli/profile_text.h>
#include <piper/cluster/findings.h>
#include <piper/profile/measure_products.h>
#include <piper/report/table.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

namespace piper::cli {
namespace {

using report::Align;

std::string rate_text(const cluster::Curve& curve, double rate) {
  if (curve.unit == "flops") return format_flops_per_second(rate);
  if (curve.unit == "bytes") return format_bytes_per_second(rate);
  return format_count(rate) + " " + curve.unit + "/s";
}

std::string place_text(const cluster::Curve& curve, const cluster::CurvePoint& point) {
  std::string text;
  for (size_t axis = 0; axis < curve.axes.size(); ++axis)
    text += fmt::format("{}{} {:.6g}", text.empty() ? "" : ", ", curve.axes[axis], point.at[axis]);
  return text;
}

std::string width_text(const cluster::Timing& timing) {
  const double width = timing.half_width();
  return std::isinf(width) ? "unknown" : fmt::format("± {:.1f} %", width * 100);
}

bool is_wide(const cluster::Timing& timing, double tight) {
  return !(timing.half_width() <= tight);
}

std::string times_median(const cluster::Timing& timing) {
  return fmt::format("{:.1f}x", timing.worst_seconds / timing.seconds);
}

}  // namespace

void print_rates(const cluster::Cluster& machine) {
  for (const auto& [precision, compute] : machine.compute) {
    report::Table table;
    table.columns = {{"rows"},
                     {"256 x 256", Align::kRight},
                     {"512 x 512", Align::kRight},
                     {"1024 x 2048", Align::kRight}};
    for (const double rows : {8.0, 32.0, 128.0, 512.0, 2048.0})
      table.rows.push_back({fmt::format("{:.0f}", rows),
                            format_flops_per_second(compute.gemm.at({rows, 256, 256})),
                            format_flops_per_second(compute.gemm.at({rows, 512, 512})),
                            format_flops_per_second(compute.gemm.at({rows, 1024, 2048}))});
    say("GEMM in {}, one rank while all are busy (best seen: {})\n{}\n", precision,
        format_flops_per_second(compute.peak_flops_per_second), Lines{report::to_text(table)});
  }
}

void print_products(const cluster::Cluster& machine) {
  const std::vector<profile::ProductComparison> compared =
      profile::compared_products(machine.curves);
  if (compared.empty()) return;
  const std::vector<nn::ProductClass>& classes = nn::product_classes();
  report::Table table{.columns = {{"product"}, {"rows", Align::kRight}}};
  std::map<std::pair<nn::ProductForm, int64_t>, std::vector<std::string>> rows;
  for (size_t i = 0; i < compared.size(); ++i) {
    const nn::ProductClass& of = classes[i];
    std::vector<std::string>& row = rows[{of.form, of.rows}];
    if (row.empty()) row = {nn::name(of.form), std::to_string(of.rows)};
    if (table.columns.size() < row.size() + 1)
      table.columns.push_back({fmt::format("width {}", of.width), Align::kRight});
    const char* library = compared[i].chosen == nn::ProductLibrary::kOnednn ? "oneDNN" : "libtorch";
    row.push_back(fmt::format("{:.2f} {}{:8}", compared[i].onednn_over_libtorch,
                              compared[i].is_sure ? " " : "~", library));
  }
  for (auto& [key, row] : rows) table.rows.push_back(std::move(row));
  say("fp32 products: oneDNN's rate over libtorch's, and who is used (~: too close to tell, as "
      "without a profile)\n{}\n",
      Lines{report::to_text(table)});
}

void print_curves(const cluster::Cluster& machine, double tight) {
  report::Table table;
  table.columns = {{"curve"},
                   {"points", Align::kRight},
                   {"best", Align::kRight},
                   {"at"},
                   {"outliers", Align::kRight},
                   {"worst", Align::kRight},
                   {"less sure", Align::kRight}};
  for (const cluster::Curve& curve : machine.curves) {
    if (curve.fit || curve.points.empty()) continue;
    const auto best = std::ranges::max_element(curve.points, {}, &cluster::CurvePoint::rate);
    int64_t outliers = 0, wide = 0;
    double worst = 1;
    for (const cluster::CurvePoint& point : curve.points) {
      outliers += point.timing.num_outliers;
      wide += is_wide(point.timing, tight);
      worst = std::max(worst, point.timing.worst_seconds / point.timing.seconds);
    }
    table.rows.push_back({curve.name, std::to_string(curve.points.size()),
                          rate_text(curve, best->rate()), place_text(curve, *best),
                          std::to_string(outliers), fmt::format("{:.1f}x", worst),
                          wide == 0 ? "" : std::to_string(wide)});
  }
  table.max_width = report::console_width();
  say("{}\n", Lines{report::to_text(table)});
}

void print_links(const cluster::Cluster& machine) {
  report::Table links;
  links.columns = {
      {"communication"},      {"alpha", Align::kRight},           {"1/beta", Align::kRight},
      {"R^2", Align::kRight}, {"median residual", Align::kRight}, {"worst", Align::kRight}};
  for (const cluster::Curve& curve : machine.curves)
    if (curve.fit)
      links.rows.push_back({curve.name, format_seconds(curve.fit->line.latency_seconds),
                            format_bytes_per_second(curve.fit->line.bytes_per_second),
                            fmt::format("{:.3f}", curve.fit->r_squared),
                            format_percent(curve.fit->median_residual),
                            format_percent(curve.fit->worst_residual)});
  if (!links.rows.empty()) say("{}", Lines{report::to_text(links)});
  constexpr double kBadResidual = 0.3;  // half of the points are further from the line
  for (const cluster::Curve& curve : machine.curves)
    if (curve.fit && curve.fit->median_residual > kBadResidual)
      say("no line fits {}: half of its points are more than {} off, and so may predictions be; "
          "profile again when the machine is quiet, or with a larger --budget-seconds\n",
          curve.name, format_percent(kBadResidual));
}

void print_head_sizes(const cluster::Cluster& machine) {
  const std::vector<cluster::HeadSize> ranked = cluster::head_sizes_of(machine.curves);
  if (ranked.empty()) return;
  std::vector<std::string> others;
  for (size_t i = 1; i < ranked.size(); ++i)
    others.push_back(
        fmt::format("{:.0f}: {}", ranked[i].head_dim, format_percent(ranked[i].relative_rate)));
  say("\nbest head size for attention: {:.0f} ({} of the best at {} shapes; {})\n",
      ranked.front().head_dim, format_percent(ranked.front().relative_rate),
      ranked.front().num_shapes, fmt::join(others, ", "));
}

void print_join(const cluster::Cluster& machine, const std::string& model, int64_t sequence,
                int64_t ep) {
  const auto join = cluster::join_of(machine.curves);
  if (!join) return;
  report::Table table;
  table.columns = {{"micro-batch", Align::kRight}, {"attention", Align::kRight},
                   {"of its best", Align::kRight}, {"experts", Align::kRight},
                   {"of its best", Align::kRight}, {"both well"}};
  for (const cluster::JoinedPoint& p : join->points)
    table.rows.push_back({fmt::format("{:.0f}", p.sequences),
                          format_flops_per_second(p.attention_rate),
                          format_percent(p.attention_part), format_flops_per_second(p.experts_rate),
                          format_percent(p.experts_part), p.both_well ? "yes" : ""});
  say("\n{}, sequences of {} tokens, experts of a layer over {} rank{}: forward of a rank\n{}",
      model, sequence, ep, ep == 1 ? "" : "s", Lines{report::to_text(table)});
  if (join->points.size() < 3)  // each is near the best of so few
    say("measured at {} micro-batch{}: too few to say where both run well (a larger "
        "--budget-seconds)\n",
        join->points.size(), join->points.size() == 1 ? "" : "es");
  else if (join->smallest)
    say("attention and experts both reach 90 % of their best at a micro-batch of {}\n",
        join->well_text());
  else
    say("no micro-batch that was measured brings both to 90 % of their best\n");
}

void print_points(const cluster::Cluster& machine) {
  for (const cluster::Curve& curve : machine.curves) {
    report::Table table;
    table.columns = {{curve.name},
                     {"rate", Align::kRight},
                     {"median", Align::kRight},
                     {"95 %", Align::kRight},
                     {"samples", Align::kRight},
                     {"outliers", Align::kRight},
                     {"worst", Align::kRight},
                     {curve.fit ? "residual" : "", Align::kRight}};
    for (size_t i = 0; i < curve.points.size(); ++i) {
      const cluster::CurvePoint& p = curve.points[i];
      table.rows.push_back({place_text(curve, p), rate_text(curve, p.rate()),
                            format_seconds(p.timing.seconds), width_text(p.timing),
                            std::to_string(p.timing.num_samples),
                            std::to_string(p.timing.num_outliers), times_median(p.timing),
                            curve.fit ? format_percent(curve.fit->residuals[i]) : ""});
    }
    say("\n{}", Lines{report::to_text(table)});
  }
}

void print_noise(const cluster::Cluster& machine, double tight, int64_t planned) {
  int64_t points = 0, wide = 0, with_outliers = 0;
  const cluster::CurvePoint* worst = nullptr;
  const cluster::Curve* of = nullptr;
  const auto factor = [](const cluster::CurvePoint& p) {
    return p.timing.worst_seconds / p.timing.seconds;
  };
  for (const cluster::Curve& curve : machine.curves)
    for (const cluster::CurvePoint& point : curve.points) {
      ++points;
      wide += is_wide(point.timing, tight);
      with_outliers += point.timing.num_outliers > 0;
      if (worst == nullptr || factor(point) > factor(*worst)) {
        worst = &point;
        of = &curve;
      }
    }
  if (worst == nullptr) return;
  say("\n{} of {} medians are known within {}; the others ran out of their time "
      "(--budget-seconds)\n",
      points - wide, points, format_percent(tight));
  if (planned > points)
    say("{} points were left out: each would have taken several times its share\n",
        planned - points);
  say("{} points have outliers; the worst took {} its median: {} at {}\n", with_outliers,
      times_median(worst->timing), of->name, place_text(*of, *worst));
}

}  // namespace piper::cli
