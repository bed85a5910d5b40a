#include <fmt/format.h>
#include <piper/base/json.h>
#include <piper/base/units.h>
#include <piper/cli/console.h>
#include <piper/cli/plan_insight.h>
#include <piper/plan/answer.h>
#include <piper/plan/roofline.h>
#include <piper/plan/sensitivity.h>
#include <piper/report/table.h>

namespace piper::cli {
namespace {

constexpr double kChange = 0.2;

Json sensitivity_json(const plan::Request& request, const plan::Candidate& best) {
  Json inputs = Json::array();
  for (const plan::Influence& i : plan::sensitivity(request, best, kChange))
    inputs.push_back(
        {{"input", i.input}, {"value", i.value}, {"low_mfu", i.low_mfu}, {"high_mfu", i.high_mfu}});
  return {{"change", kChange}, {"inputs", inputs}};
}

Json roofline_json(const plan::Request& request, const strategy::Strategy& strategy) {
  const plan::Roofline roofline = plan::make_roofline(request, strategy);
  Json points = Json::array();
  for (const plan::RooflinePoint& p : roofline.points)
    points.push_back({{"part", p.part},
                      {"num_layers", p.num_layers},
                      {"flops", p.flops},
                      {"bytes", p.bytes},
                      {"flops_per_byte", p.intensity()},
                      {"peak_flops_per_second", p.peak_flops_per_second},
                      {"attainable_flops_per_second", roofline.attainable_flops_per_second(p)},
                      {"predicted_flops_per_second", p.predicted_flops_per_second},
                      {"bound", roofline.is_memory_bound(p) ? "memory" : "compute"}});
  return {{"peak_flops_per_second", roofline.peak_flops_per_second},
          {"memory_bytes_per_second", roofline.memory_bytes_per_second},
          {"ridge_flops_per_byte", roofline.ridge()},
          {"points", points}};
}

}  // namespace

Json insight_json(const plan::Request& request, const plan::Candidate& best) {
  return {{"memory_limit_bytes", request.memory_limit_bytes},
          {"sensitivity", sensitivity_json(request, best)},
          {"roofline", roofline_json(request, best.strategy)},
          {"exchange", to_json(plan::exchange_of(request, best.strategy))}};
}

void print_exchange(const plan::ExchangeVerdict& verdict) {
  if (verdict.options.empty()) return;
  report::Table table;
  table.columns = {{"exchange"},
                   {"time", report::Align::kRight},
                   {"of one message a pair", report::Align::kRight},
                   {"scratch", report::Align::kRight},
                   {"priced by"}};
  for (const plan::ExchangeOption& o : verdict.options)
    table.rows.push_back({to_text(o.config) + (o.chosen ? " (chosen)" : ""),
                          format_seconds(o.seconds), fmt::format("{:.2f}", o.over_flat),
                          format_bytes(o.scratch_bytes), plan::source_of(o)});
  say("\n{}\n{}", verdict.why, Lines{report::to_text(table)});
}

}  // namespace piper::cli
