// piper-studies phases: the phases of one layer, priced one by one beside a published trace.
#include <fmt/format.h>
#include <piper/base/json.h>
#include <piper/cli/command.h>
#include <piper/cli/console.h>
#include <piper/report/table.h>
#include <studies/phases.h>

#include <memory>
#include <string>
#include <vector>

namespace piper::studies {
namespace {

using report::Align;

int run_phases(const std::string& file, bool json) {
  const PhaseRun run = load_phase_run(file.empty() ? builtin_phase_runs().front() : file);
  const std::vector<PricedPhase> phases = price_phases(run);
  if (json) {
    cli::say_json(to_json(run, phases));
    return 0;
  }
  report::Table table;
  table.columns = {{"phase"},
                   {"measured ms", Align::kRight},
                   {"predicted ms", Align::kRight},
                   {"error", Align::kRight},
                   {"aim", Align::kRight},
                   {"verdict"}};
  for (const PricedPhase& p : phases)
    table.rows.push_back({p.phase.name, fmt::format("{:.3f}", 1e3 * p.phase.measured_seconds),
                          fmt::format("{:.3f}", 1e3 * p.predicted_seconds),
                          fmt::format("{:+.1f} %", 100 * p.error()),
                          fmt::format("{:.0f} %", 100 * p.phase.limit),
                          p.holds() ? "holds" : "miss"});
  cli::say("{}: {}\n\n{}\n", run.name, run.description, cli::Lines{report::to_text(table)});
  for (const PricedPhase& p : phases)
    if (!p.holds()) cli::say("miss: {}: {}\n", p.phase.name, p.phase.cause);
  for (const std::string& a : run.assumptions) cli::say("assumed: {}\n", a);
  cli::say("source: {}\n", run.source);
  return 0;
}

}  // namespace

cli::Run add_phases(cli::Subcommand command) {
  auto file = std::make_shared<std::string>();
  auto json = std::make_shared<bool>(false);
  command
      .add_option("file", *file,
                  "a run measured phase by phase, or a summary of a trace (JSON) [DeepSeek-V3 on "
                  "H800, which comes with Piper]")
      .check(cli::existing_file());
  command.add_flag("--json", *json, "print the result as JSON");
  return [file, json] { return run_phases(*file, *json); };
}

}  // namespace piper::studies
