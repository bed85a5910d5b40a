// piper report: the HTML page of a run's folder, of a plan, or of a machine.
#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/cli/command.h>
#include <piper/cli/subcommand.h>
#include <piper/report/plan_page.h>
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

// What `piper plan` wrote, --json or --out: its page beside it.
int run_plan(const Flags& flags) {
  if (!flags.plans.empty() || !flags.profile.empty())
    throw InvalidInput(fmt::format(
        "--plan and --profile belong to the page of a run's folder; {} is a file", flags.folder));
  const report::PlanDocument plan =
      report::parse_plan_document(read_json_file(flags.folder), flags.folder);
  const std::filesystem::path path =
      flags.out.empty() ? std::filesystem::path(flags.folder).replace_extension(".html")
                        : std::filesystem::path(flags.out);
  const std::string html = report::render(plan);
  write_text_file(path, html);
  if (!flags.json) {
    fmt::print("{}\n", path.string());
    return 0;
  }
  const Json json = {{"report", path.string()},
                     {"size_bytes", html.size()},
                     {"num_strategies", plan.ranked.size()},
                     {"num_families", plan.families.size()},
                     {"num_front_points", plan.front.size()},
                     {"num_sensitivity_inputs", plan.swings.size()},
                     {"num_roofline_points", plan.roofs ? plan.roofs->points.size() : 0}};
  std::cout << json.dump(2) << "\n";
  return 0;
}

// A description of a machine has levels; a plan has strategies, a strategy a mesh.
bool is_machine(const std::string& path) {
  const Json json = read_json_file(path);
  return json.is_object() && json.contains("levels");
}

int run(const Flags& flags) {
  if (!std::filesystem::is_directory(flags.folder))
    return is_machine(flags.folder) ? report_machine(flags) : run_plan(flags);
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

Run add_report(Subcommand command) {
  auto flags = std::make_shared<Flags>();
  command
      .add_option("run", flags->folder,
                  "folder that `piper train --run` wrote, a plan's file (what `piper plan` printed "
                  "with --json or wrote with --out), or a cluster file that `piper profile` wrote")
      .check(existing_path())
      .required()
      .type_name("DIR|FILE");
  command
      .add_option("--out", flags->out,
                  "page to write [report.html in the run's folder; FILE.html beside a file]")
      .check(writable_file());
  command
      .add_option("--plan", flags->plans,
                  "what `piper plan` wrote, --json or --out: this run's ranking, or a further plan "
                  "(may be repeated)")
      .type_name("FILE");
  command
      .add_option("--profile", flags->profile,
                  "what `piper profile` wrote [cluster.json in the run's folder]")
      .type_name("FILE");
  command.add_flag("--json", flags->json, "print what the page holds as JSON");
  return [flags] { return run(*flags); };
}

}  // namespace piper::cli
