// piper report: the HTML page of a run's folder, or of a machine.
#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/cli/command.h>
#include <piper/cli/validators.h>
#include <piper/report/run_files.h>

#include <filesystem>
#include <iostream>
#include <memory>

namespace piper::cli {
namespace {

struct Flags {
  std::string folder;
  std::string out;
  std::string profile;
  std::vector<std::string> plans;
  bool json = false;
};

void add_plans(report::Report& report, const std::vector<std::string>& paths) {
  for (const std::string& path : paths) {
    report::add_plan(report, report::parse_ranked_strategies(read_json_file(path), path));
  }
}

// A cluster file instead of a run: the machine's page beside it.
int report_machine(const Flags& flags) {
  if (!flags.plans.empty() || !flags.profile.empty())
    throw InvalidInput("--plan and --profile belong to a run's folder; this is a cluster file");
  const std::string html = report::render_machine(cluster::load_cluster(flags.folder));
  std::filesystem::path path = flags.out;
  if (flags.out.empty()) path = std::filesystem::path(flags.folder).replace_extension(".html");
  write_text_file(path, html);
  if (flags.json)
    std::cout << Json{{"report", path.string()}, {"size_bytes", html.size()}}.dump(2) << "\n";
  else
    fmt::print("{}\n", path.string());
  return 0;
}

int run(const Flags& flags) {
  if (std::filesystem::is_regular_file(flags.folder)) return report_machine(flags);
  report::Report report = report::read_run(flags.folder);
  add_plans(report, flags.plans);
  if (!flags.profile.empty()) report.machine = cluster::load_cluster(flags.profile);
  const std::filesystem::path path = flags.out.empty()
                                         ? std::filesystem::path(flags.folder) / "report.html"
                                         : std::filesystem::path(flags.out);
  const std::string html = report::render(report);
  write_text_file(path, html);
  if (flags.json) {
    const Json json = {{"report", path.string()},
                       {"size_bytes", html.size()},
                       {"num_steps", report.metrics.size()},
                       {"has_predicted_timeline", report.predicted.has_value()},
                       {"has_measured_timeline", report.measured.has_value()},
                       {"has_comparison", report.comparison.has_value()},
                       {"num_further_plans", report.further_plans.size()}};
    std::cout << json.dump(2) << "\n";
  } else {
    fmt::print("{}\n", path.string());
  }
  return 0;
}

}  // namespace

Run add_report(CLI::App& command) {
  auto flags = std::make_shared<Flags>();
  command
      .add_option(
          "run", flags->folder,
          "folder that `piper train --run` wrote, or cluster file that `piper profile` wrote")
      ->check(CLI::ExistingPath)
      ->required()
      ->type_name("PATH");
  command
      .add_option(
          "--out", flags->out,
          "page to write [report.html in the run's folder; FILE.html beside a cluster file]")
      ->check(writable_file());
  command
      .add_option("--plan", flags->plans,
                  "what `piper plan` wrote, --json or --out: this run's ranking, or a further plan "
                  "(may be repeated)")
      ->type_name("FILE");
  command
      .add_option("--profile", flags->profile,
                  "what `piper profile` wrote [cluster.json in the run's folder]")
      ->type_name("FILE");
  command.add_flag("--json", flags->json, "print what the page holds as JSON");
  return [flags] { return run(*flags); };
}

}  // namespace piper::cli
