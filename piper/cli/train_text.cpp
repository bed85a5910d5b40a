#include <fmt/format.h>
#include <fmt/ranges.h>
#include <piper/base/json.h>
#include <piper/base/units.h>
#include <piper/cli/console.h>
#include <piper/cli/load_corpus.h>
#include <piper/cli/strategy_flags.h>
#include <piper/cli/train_text.h>
#include <piper/model/count.h>
#include <piper/plan/search.h>
#include <piper/report/table.h>

namespace piper::cli {

void announce(const train::RunRequest& request, const std::vector<std::string>& said) {
  const strategy::Strategy& s = request.strategy;
  if (!request.model.ignored_keys.empty())
    say_error(fmt::format(
        "warning: keys of the model's config that are not understood, and may change what it "
        "computes: {}",
        fmt::join(first_of(request.model.ignored_keys, "keys"), ", ")));
  if (request.model.max_positions > 0 && s.sequence > request.model.max_positions)
    say_error(fmt::format(
        "warning: --sequence {} is beyond the model's {} positions (max_position_embeddings)",
        s.sequence, request.model.max_positions));
  const model::Parameters parameters = model::count_parameters(request.model);
  const auto count = [](int64_t number) { return format_count(static_cast<double>(number)); };
  say("{}: {} parameters{}, {}, sequences of {} tokens, {}\ntext: {}\n", request.model.name,
      count(parameters.total()),
      s.mtp_depth == 0
          ? ""
          : fmt::format(" and {} of multi-token prediction", count(parameters.next_token_layers)),
      plan::describe(s), s.sequence, strategy::name(s.precision), describe(request.corpus));
  if (request.validation.size() > 0) say("validation: {}\n", describe(request.validation));
  for (const std::string& line : said) say("{}\n", line);
}

void print_comparison(const train::RunResult& result) {
  using report::Align;
  const report::Comparison& c = result.comparison;
  report::Table table;
  table.columns = {
      {""}, {"predicted", Align::kRight}, {"measured", Align::kRight}, {"error", Align::kRight}};
  const auto shown = [](std::optional<double> value, auto format) {
    return value ? format(*value) : std::string("-");
  };
  const auto row = [&](const std::string& name, std::optional<double> predicted,
                       std::optional<double> measured, auto format) {
    table.rows.push_back({name, shown(predicted, format), shown(measured, format),
                          shown(report::relative_error(predicted, measured), [](double error) {
                            return fmt::format("{:+.1f} %", error * 100);
                          })});
  };
  row("step time", c.predicted_step_seconds, c.measured_step_seconds, format_seconds);
  row("MFU", c.predicted_mfu, c.measured_mfu, format_percent);
  for (const report::RankComparison& rank : c.ranks)
    row(fmt::format("peak memory, rank {}", rank.rank), rank.predicted_peak_bytes,
        rank.measured_peak_bytes, format_bytes);
  const std::string measured =
      c.measured_step ? fmt::format("step {}, the median of {}", *c.measured_step, *c.num_steps)
                      : "no step is recorded";
  say("\npredicted beside measured ({})\n{}", measured, Lines{report::to_text(table)});
  if (!c.no_prediction.empty()) say("nothing was predicted: {}\n", c.no_prediction);
  if (c.machine_slowdown)
    say("during the run this machine took {:.2f} times as long as in its profile; the predicted "
        "time counts it\n",
        *c.machine_slowdown);
  if (result.same_order)
    say("tasks ran in {} order as simulated\n", *result.same_order ? "the same" : "ANOTHER");
  if (result.traffic.step > 0) say("{}", Lines{train::to_text(result.traffic)});
}

void print_deviations(const report::Comparison& comparison, double bound) {
  using report::Align;
  const std::vector<report::Deviation> found = report::deviations(comparison, bound);
  if (bound <= 0 || found.empty()) return;
  report::Table table;
  table.columns = {{"beyond the bound"},
                   {"assumed", Align::kRight},
                   {"measured", Align::kRight},
                   {"deviation", Align::kRight}};
  for (const report::Deviation& d : found)
    table.rows.push_back(
        {d.name, d.assumed, d.measured, fmt::format("{:+.0f} %", d.relative * 100)});
  say("\nbeyond {:.0f} % of the step, or {:.0f} % of memory (--deviation-bound)\n{}", bound * 100,
      report::kMemoryBound * 100, Lines{report::to_text(table)});
}

Json result_json(const train::RunResult& result) {
  Json steps = Json::array();
  for (const report::StepMetrics& metrics : result.metrics)
    steps.push_back(report::to_json(metrics));
  Json json{{"steps", steps},
            {"comparison", report::to_json(result.comparison)},
            {"traffic", train::to_json(result.traffic)}};
  if (result.prediction) json["balanced_predicted_step_seconds"] = result.prediction->step_seconds;
  for (const plan::Replanned& r : result.replanned)
    json["replanned"].push_back({{"step", r.step},
                                 {"strategy", strategy::to_json(r.proposal.strategy)},
                                 {"step_seconds", r.proposal.seconds},
                                 {"step_seconds_staying", r.proposal.seconds_staying},
                                 {"change_seconds", r.change_seconds},
                                 {"why", r.why}});
  if (result.same_order) json["same_order_as_simulated"] = *result.same_order;
  return json;
}

}  // namespace piper::cli
