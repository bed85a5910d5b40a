// piper report: the HTML page of a run's folder, of a plan, or of a machine.
#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/cli/command.h>
#include <piper/cli/console.h>
#include <piper/cli/read_model.h>
#include <piper/cli/simulated_steps.h>
#include <piper/cli/subcommand.h>
#include <piper/cost/trainer/priced_step.h>
#include <piper/files/output.h>
#include <piper/model/import.h>
#include <piper/report/plan_page.h>
#include <piper/report/run_files.h>
#include <piper/strategy/rank_layout.h>

#include <filesystem>
#include <memory>

namespace piper::cli {
namespace {

struct ReportFlags {
  std::string folder;
  std::string out;
  std::string profile, map, model;
  std::vector<std::string> plans, ignore;
  bool json = false;
};

void add_plans(report::Report& report, const std::vector<std::string>& paths) {
  for (const std::string& path : paths) {
    report::add_plan(report, report::parse_plan_document(read_json_file(path), path));
  }
}

std::optional<report::StrategyMap> map_of(const ReportFlags& flags) {
  if (flags.map.empty()) return std::nullopt;
  return report::parse_strategy_map(read_json_file(flags.map), flags.map);
}

// A step of the plan's best, one pipeline simulated as the plan's trainer would run it. Nothing
// where model or machine are not found by the names that the plan gives, or where it would take
// long.
std::optional<report::Gantt> timeline_of(const ReportFlags& flags, const report::PlanDocument& plan,
                                         const Json& json) {
  constexpr size_t kMostRanks = 16;
  constexpr double kMostTasks = 1e6;
  const bool has_strategies = json.contains("strategies");
  if (has_strategies && (!json["strategies"].is_array() || json["strategies"].empty()))
    return std::nullopt;
  strategy::Strategy best =
      strategy::parse_strategy(has_strategies ? json["strategies"].front() : json, flags.folder);
  const strategy::Strategy planned = best;
  best.predicted = nullptr;
  const std::string model = flags.model.empty() ? plan.model : flags.model;
  try {
    const Priced priced{
        .model = read_model(model, flags.ignore),
        .cluster = cluster::load_cluster(flags.profile.empty() ? plan.cluster : flags.profile),
        .strategy = best};
    const cost::TrainerProfile trainer = trainer_of(plan.trainer, priced.cluster);
    const double imbalance = imbalance_of(load_of("", planned), best, priced.model);
    if (schedule::num_tasks(priced.model, best, best.mesh.pp, cost::style_of(trainer)) > kMostTasks)
      return std::nullopt;
    const SimulatedSteps simulated =
        simulate(priced, {.imbalance = imbalance, .keep_memory = true}, trainer);
    std::vector<int64_t> stages;
    const strategy::RankLayout layout(best);
    for (int64_t rank = 0; rank < best.mesh.world(); ++rank)
      stages.push_back(layout.stage(Rank(rank)));
    return report::make_gantt(simulated.step, simulated.timeline, stages, kMostRanks);
  } catch (const std::runtime_error&) {
    if (!flags.model.empty()) throw;
    return std::nullopt;
  }
}

// Where the page goes; claimed before anything is read, as what --out names is.
std::filesystem::path page_of(const ReportFlags& flags, std::filesystem::path beside) {
  if (!flags.out.empty()) return flags.out;
  files::claim_output(beside, "the page's name");
  return beside;
}

std::filesystem::path beside(const std::string& file) {
  return std::filesystem::path(file).replace_extension(".html");
}

// A cluster file instead of a run: the machine's page beside it.
int report_machine(const ReportFlags& flags) {
  if (!flags.plans.empty() || !flags.profile.empty() || !flags.map.empty())
    throw InvalidInput(
        "--plan, --profile and --map belong to a run or a plan; this is a cluster file");
  const std::filesystem::path path = page_of(flags, beside(flags.folder));
  const std::string html = report::render_machine(cluster::load_cluster(flags.folder));
  files::write_text_file(path, html);
  if (flags.json)
    say_json(Json{{"report", path.string()}, {"size_bytes", html.size()}});
  else
    say("{}\n", path.string());
  return 0;
}

// What `piper plan` wrote, --json or --out: its page beside it.
int report_plan(const ReportFlags& flags) {
  if (!flags.plans.empty())
    throw InvalidInput(
        fmt::format("--plan belongs to the page of a run's folder; {} is a file", flags.folder));
  const Json json = read_json_file(flags.folder);
  report::PlanDocument plan = report::parse_plan_document(json, flags.folder);
  plan.map = map_of(flags);
  plan.timeline = timeline_of(flags, plan, json);
  const std::filesystem::path path = page_of(flags, beside(flags.folder));
  const std::string html = report::render(plan);
  files::write_text_file(path, html);
  if (!flags.json) {
    say("{}\n", path.string());
    return 0;
  }
  const Json holds = {{"report", path.string()},
                      {"size_bytes", html.size()},
                      {"num_strategies", plan.ranked.size()},
                      {"num_families", plan.families.size()},
                      {"num_front_points", plan.front.size()},
                      {"num_sensitivity_inputs", plan.swings.size()},
                      {"num_roofline_points", plan.roofs ? plan.roofs->points.size() : 0},
                      {"has_timeline", plan.timeline.has_value()},
                      {"has_map", plan.map.has_value()}};
  say_json(holds);
  return 0;
}

// A description of a machine has levels; a plan has strategies, a strategy a mesh.
bool is_machine(const std::string& path) {
  const Json json = read_json_file(path);
  return json.is_object() && json.contains("levels");
}

int run_report(const ReportFlags& flags) {
  if (!std::filesystem::is_directory(flags.folder))
    return is_machine(flags.folder) ? report_machine(flags) : report_plan(flags);
  report::Report report = report::read_run(flags.folder);
  add_plans(report, flags.plans);
  if (!flags.profile.empty()) report.machine = cluster::load_cluster(flags.profile);
  report.map = map_of(flags);
  const std::filesystem::path path =
      page_of(flags, std::filesystem::path(flags.folder) / "report.html");
  const std::string html = report::render(report);
  files::write_text_file(path, html);
  if (flags.json) {
    const Json json = {{"report", path.string()},
                       {"size_bytes", html.size()},
                       {"num_steps", report.metrics.size()},
                       {"has_predicted_timeline", report.predicted.has_value()},
                       {"has_measured_timeline", report.measured.has_value()},
                       {"has_comparison", report.comparison.has_value()},
                       {"num_further_plans", report.further_plans.size()}};
    say_json(json);
  } else {
    say("{}\n", path.string());
  }
  return 0;
}

}  // namespace

Run add_report(Subcommand command) {
  auto flags = std::make_shared<ReportFlags>();
  command
      .add_option("run", flags->folder,
                  "folder that `piper train --run` wrote, a plan's file (what `piper plan` printed "
                  "with --json or wrote with --out), or a cluster file that `piper profile` wrote")
      .check(existing_path())
      .required()
      .type_name("DIR|FILE");
  command.add_output("--out", flags->out,
                     "page to write [report.html in the run's folder; FILE.html beside a file]");
  command
      .add_option("--plan", flags->plans,
                  "what `piper plan` wrote, --json or --out: this run's ranking, or a further plan "
                  "(may be repeated)")
      .type_name("FILE");
  command
      .add_option(
          "--profile", flags->profile,
          "what `piper profile` wrote [cluster.json in the run's folder; the plan's cluster]")
      .type_name("FILE");
  command
      .add_option("--map", flags->map,
                  "what `piper map --json` printed: the strategy map of the page")
      .type_name("FILE");
  command
      .add_option("--model", flags->model,
                  "of a plan whose model is not known by its name: a config.json, for the timeline")
      .type_name("NAME|FILE");
  add_ignore_flag(command, flags->ignore);
  command.add_flag("--json", flags->json, "print what the page holds as JSON");
  return [flags] { return run_report(*flags); };
}

}  // namespace piper::cli
