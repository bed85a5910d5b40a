// piper validate: predictions held against published runs, misses included.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/base/standard_input.h>
#include <piper/base/units.h>
#include <piper/cli/command.h>
#include <piper/cli/console.h>
#include <piper/cli/subcommand.h>
#include <piper/report/progress.h>
#include <piper/report/table.h>
#include <piper/validate/validate.h>

#include <map>
#include <memory>

namespace piper::cli {
namespace {

using report::Align;
using validate::Errors;
using validate::PricedRow;

struct ValidateFlags {
  std::string file, trainer;
  bool rows = false, fit = false, json = false;
};

std::vector<std::string> cells(const std::string& name, const Errors& e) {
  return {name, std::to_string(e.count), format_percent(e.median), format_percent(e.mean),
          format_percent(e.worst)};
}

report::Table error_table(const std::string& what) {
  report::Table table;
  table.columns = {{what},
                   {"rows", Align::kRight},
                   {"median error", Align::kRight},
                   {"mean", Align::kRight},
                   {"worst", Align::kRight}};
  return table;
}

void print_group(const std::string& what,
                 const std::vector<std::pair<std::string, Errors>>& groups) {
  report::Table table = error_table(what);
  for (const auto& [name, errors] : groups) table.rows.push_back(cells(name.substr(0, 70), errors));
  if (!table.rows.empty()) say("\n{}", Lines{report::to_text(table)});
}

void print_rows(const std::vector<PricedRow>& rows) {
  report::Table table;
  table.columns = {{"row", Align::kRight},
                   {"model"},
                   {"predicted", Align::kRight},
                   {"measured", Align::kRight},
                   {"unit"},
                   {"error", Align::kRight},
                   {"assumed"}};
  for (size_t i = 0; i < rows.size(); ++i) {
    const PricedRow& p = rows[i];
    if (!p.is_priced()) continue;
    const bool fit = p.row.is_fit_row();
    const std::optional<double> measured = fit ? p.row.allocated_gb : p.row.measured_value;
    table.rows.push_back(
        {std::to_string(i), p.row.model.substr(0, 32), fmt::format("{:.4g}", p.predicted_value),
         measured ? fmt::format("{:.4g}", *measured) : "-",
         fit ? fmt::format("GB, {} (predicted {})", p.row.outcome, p.predicted_outcome)
             : p.row.unit.substr(0, 24),
         measured
             ? fmt::format("{:+.1f} %{}", 100 * p.relative_error, p.calibration_row ? " *" : "")
             : "-",
         fmt::format("{}", fmt::join(p.assumed_fields, ", ")).substr(0, 60)});
  }
  if (!table.rows.empty()) say("{}\n", Lines{report::to_text(table)});
}

void print_left_out(const std::vector<PricedRow>& rows) {
  std::map<std::string, std::vector<size_t>> by_reason;
  for (size_t i = 0; i < rows.size(); ++i)
    if (!rows[i].is_priced()) by_reason[rows[i].not_priced_because].push_back(i);
  for (const auto& [reason, indices] : by_reason)
    say("not priced: {} row(s) ({}{}): {}\n", indices.size(),
        fmt::join(indices.begin(), indices.begin() + std::min<ptrdiff_t>(8, std::ssize(indices)),
                  ", "),
        indices.size() > 8 ? ", ..." : "", reason);
}

void print_summary(const validate::Summary& s) {
  if (s.fit.ran + s.fit.oom > 0)
    say("did it fit: {} of {} that ran are called feasible, {} of {} that ran out of memory "
        "are not\n",
        s.fit.ran_called_feasible, s.fit.ran, s.fit.oom_called_infeasible, s.fit.oom);
  if (s.time_stated.count + s.time_assumed.count + s.memory.count == 0) return;
  report::Table table = error_table("rows of grade A and A-");
  // Without rows there is no error, rather than one of 0 %.
  for (const auto& [name, errors] : {std::pair{"step time, every field stated", s.time_stated},
                                     {"step time, some fields assumed", s.time_assumed},
                                     {"step time, mixtures of experts", s.time_moe},
                                     {"step time, dense", s.time_dense},
                                     {"peak memory", s.memory}})
    if (errors.count > 0) table.rows.push_back(cells(name, errors));
  say("\n{}", Lines{report::to_text(table)});
  if (s.memory.count > 0) say("{} row(s) of peak memory beyond 10 %\n", s.memory_beyond_tenth);
  for (const auto& [what, groups] : s.groups) print_group("step time by " + what, groups);
  print_group("leave one out: a source priced without its own constant", s.leave_one_out);
}

// One constant a trainer and device: the median of what its rows ask for.
void print_fit(const std::vector<PricedRow>& rows) {
  std::map<std::pair<std::string, std::string>, std::vector<std::pair<double, size_t>>> asked;
  for (size_t i = 0; i < rows.size(); ++i)
    if (const auto efficiency = validate::exact_efficiency(rows[i]))
      asked[{rows[i].trainer, rows[i].device}].emplace_back(*efficiency, i);
  report::Table table;
  table.columns = {{"trainer"},
                   {"device"},
                   {"rows", Align::kRight},
                   {"now", Align::kRight},
                   {"lowest", Align::kRight},
                   {"median", Align::kRight},
                   {"highest", Align::kRight},
                   {"row in the middle"}};
  for (auto& [key, list] : asked) {
    std::ranges::sort(list);
    const auto& [median, row] = list[list.size() / 2];
    const validate::MeasuredRow& r = rows[row].row;
    table.rows.push_back(
        {key.first, key.second, std::to_string(list.size()),
         fmt::format("{:.3f}",
                     cost::load_trainer(key.first).calibration_of(key.second).compute_efficiency),
         fmt::format("{:.3f}", list.front().first), fmt::format("{:.3f}", median),
         fmt::format("{:.3f}", list.back().first),
         fmt::format("{}: {}, {} devices, {} {}", row, r.model, r.gpus.value_or(0),
                     r.measured_value.value_or(0), r.unit)});
  }
  if (!table.rows.empty()) say("{}\n", Lines{report::to_text(table)});
}

int run_validate(const ValidateFlags& flags) {
  const std::vector<validate::MeasuredRow> rows =
      flags.file.empty() ? validate::builtin_rows()
                         : validate::parse_rows(read_json_input(flags.file), flags.file);
  if (rows.empty()) throw InvalidInput(flags.file + ": 'rows' is empty; nothing to price");
  report::Progress bar({.label = "validate", .total = std::ssize(rows), .unit = "rows"});
  const std::vector<PricedRow> priced = validate::price_rows(
      rows, [&](int64_t done) { bar.set(done, ""); }, flags.trainer);
  bar.finish();
  const validate::Summary summary = validate::summarise(priced);
  if (flags.json) {
    Json json{{"rows", Json::array()}, {"summary", validate::to_json(summary)}};
    for (const PricedRow& p : priced) json["rows"].push_back(validate::to_json(p));
    say_json(json);
    return 0;
  }
  if (flags.rows) print_rows(priced);
  if (flags.fit) print_fit(priced);
  print_left_out(priced);
  say("{} of {} rows priced ({} of {} of grade A and A-); {} that a constant was fitted to "
      "are not in the statistics\n",
      summary.num_priced, summary.num_rows, summary.num_grade_a_priced, summary.num_grade_a,
      summary.num_calibration);
  print_summary(summary);
  return 0;
}

}  // namespace

Run add_validate(Subcommand command) {
  auto flags = std::make_shared<ValidateFlags>();
  command
      .add_option("file", flags->file,
                  "measured runs or fit rows (JSON) [those that come with Piper]")
      .check(existing_file());
  command.moved("--statements", "piper-studies statements");
  command.moved("--phases", "piper-studies phases");
  command.add_option("--trainer", flags->trainer,
                     "price every row by this trainer [the one that ran it]; see piper trainer "
                     "--list");
  command.add_flag("--rows", flags->rows, "every row, not only the tables");
  command.add_flag(
      "--fit", flags->fit,
      "what constant each trainer would need on each device, and the row in the middle");
  command.add_flag("--json", flags->json, "print rows and summary as JSON");
  return [flags] { return run_validate(*flags); };
}

}  // namespace piper::cli
