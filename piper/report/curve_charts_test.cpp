#include <doctest/doctest.h>
#include <piper/report/report.h>
#include <piper/report/sections.h>
#include <testing/base/text.h>

using namespace piper;
using namespace piper::report;

namespace {

cluster::CurvePoint at(std::vector<double> coordinates, double amount, double seconds) {
  return {std::move(coordinates),
          amount,
          {seconds, seconds * 0.99, seconds * 1.02, seconds * 7, 12, 3}};
}

cluster::Cluster profiled() {
  cluster::Cluster machine{.name = "here", .device = "D"};
  machine.compute["fp32"].gemm = {
      {"m", "n", "k"}, {{1, 64}, {128}, {256, 512}}, {1e9, 2e9, 3e9, 4e9}};
  machine.levels = {{.name = "node", .num_members = 4, .link = {1e-6, 1e9}}};
  cluster::Curve link{.name = "all-to-all", .unit = "bytes", .axes = {"bytes"}};
  for (const double bytes : {64.0, 4096.0, 1e6})
    link.points.push_back(at({bytes}, bytes, 1e-5 + bytes / 1e9));
  link.fit = cluster::fit_alpha_beta(cluster::samples_of(link));
  cluster::Curve join_a{.name = "join_attention.fp32", .unit = "flops", .axes = {"sequences"}},
      join_e = join_a;
  join_e.name = "join_experts.fp32";
  for (const double n : {1.0, 2.0, 4.0}) {
    join_a.points.push_back(at({n}, 100, 1));
    join_e.points.push_back(at({n}, 100, n < 2 ? 2 : 1));
  }
  machine.curves = {link, join_a, join_e};
  return machine;
}

}  // namespace

TEST_CASE(
    "a machine's page draws its products, its join and its links with fit, samples and R squared") {
  const std::string html = render_machine(profiled());
  CHECK(count(html, "<svg") == 3);
  CHECK(count(html, "<script") == 0);
  CHECK(html.find("512 × ") == std::string::npos);  // out x in, not in x out
  CHECK(html.find("128 × 512 (out × in)") != std::string::npos);
  CHECK(html.find("Both reach 90 % of their best at a micro-batch of 2, 4.") != std::string::npos);
  CHECK(html.find("R² 1.000; residuals: median 0.0 %") != std::string::npos);
  CHECK(count(html, "series-b dot") == 3);  // one a sample
}

TEST_CASE("every point is in a table with its samples, outliers and the worst") {
  const std::string html = curve_charts(profiled());
  CHECK(html.find("<summary>all-to-all: 3 points</summary>") != std::string::npos);
  CHECK(count(html, "<td class=\"number\">12</td><td class=\"number\">3</td>") == 9);
  CHECK(html.find(">14.00 s</td>") != std::string::npos);  // seven times the slowest median
}

TEST_CASE("a machine without curves has no chart, and names from a file are no markup") {
  CHECK(curve_charts({}).empty());
  cluster::Cluster machine = profiled();
  for (cluster::Curve& curve : machine.curves) curve.name += "<script>";
  CHECK(render_machine(machine).find("<script") == std::string::npos);
}
