// piper place: which rank of a strategy on which node of an allocation, and which nodes to ask for.
#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/cli/allocation_flags.h>
#include <piper/cli/command.h>
#include <piper/cli/console.h>
#include <piper/cli/place_report.h>
#include <piper/cli/subcommand.h>
#include <piper/cluster/hostlist.h>
#include <piper/cost/estimator.h>
#include <piper/placement/placed_steps.h>
#include <piper/report/progress.h>

#include <memory>
#include <numeric>

namespace piper::cli {
namespace {

struct PlaceFlags {
  StrategyFlags strategy;
  AllocationFlags allocation;
  LaunchFileFlags files;
  std::string free;
  int64_t count = 0;
  bool json = false;
};

void check(const PlaceFlags& f) {
  std::vector<std::string> problems;
  if (f.allocation.nodes.empty() == f.free.empty())
    problems.emplace_back(f.allocation.nodes.empty()
                              ? "--nodes is missing: the nodes of the job, such as "
                                "\"$SLURM_JOB_NODELIST\"; or --free "
                                "with --count, to choose some"
                              : "--nodes beside --free; allowed: one of them");
  if (f.free.empty() != (f.count == 0))
    problems.emplace_back(f.free.empty() ? "--count without --free; allowed: both or neither"
                                         : "--free without --count: how many nodes are wanted");
  add_problems(f.allocation, problems);
  if (!problems.empty()) throw InvalidInput(problems);
}

// A step takes and waits so long, with ranks where the search assumes them.
struct Waiting {
  placement::ExposedSeconds exposed;
  double seconds = 0;
};

Waiting waiting_of(const Priced& p) {
  const cost::TrainerProfile trainer = cost::load_trainer("piper");
  const cost::Estimate e =
      cost::make_estimator_of(p.strategy, p.model, p.cluster, trainer)->estimate(p.strategy);
  return {placement::exposed_of(e.time), e.seconds};
}

void choose(const PlaceFlags& f, const Priced& priced, const Waiting& waiting,
            PlaceReport& report) {
  if (f.free.empty()) return;
  report.num_free = std::ssize(report.allocation.nodes);
  report.choice = placement::choose_nodes_by_step(
      report.allocation, f.count, priced.model, priced.strategy, waiting.exposed, waiting.seconds);
  std::vector<cluster::AllocatedNode> nodes;
  for (const int32_t n : report.choice->choice.nodes)
    nodes.push_back(report.allocation.nodes[static_cast<size_t>(n)]);
  report.allocation.nodes = std::move(nodes);
}

int run_place(const PlaceFlags& f) {
  check(f);
  const Priced priced = priced_from_flags(f.strategy);
  const auto num_ranks = static_cast<int32_t>(priced.strategy.mesh.world());
  PlaceReport report{.allocation = allocation_of(f.allocation, priced.cluster, f.free, "--free"),
                     .strategy = priced.strategy};
  if (report.allocation.num_slots() < num_ranks)
    throw InvalidInput(
        fmt::format("the strategy has {} ranks, the {} nodes take {}; allowed: at most that many",
                    num_ranks, report.allocation.nodes.size(), report.allocation.num_slots()));
  report::Progress bar({.label = "place", .total = 3, .unit = "parts"});
  const std::vector<placement::RankGroup> groups =
      placement::rank_traffic(priced.model, priced.strategy);
  const Waiting waiting = waiting_of(priced);
  choose(f, priced, waiting, report);
  bar.set(1);
  fill_in(report, priced.model, groups,
          placement::place_step(report.allocation, placement::slots_of(report.allocation),
                                priced.model, priced.strategy, waiting.exposed, waiting.seconds));
  bar.set(3);
  bar.finish();
  write_launch_files(report, f.files);
  if (f.json) {
    say_json(to_json(report));
    return 0;
  }
  say("{}", Lines{to_text(report)});
  say("{}", Lines{launch_text(report, f.files)});
  return 0;
}

}  // namespace

Run add_place(Subcommand command) {
  auto flags = std::make_shared<PlaceFlags>();
  PlaceFlags& f = *flags;
  add_allocation_flags(command, f.allocation);
  command.add_option("--free", f.free, "instead: nodes to choose from; with --count");
  command.add_option("--count", f.count, "how many nodes to choose")
      .check(integer_in(1, cluster::kMostHosts));
  add_launch_file_flags(command, f.files);
  command.add_flag("--json", f.json, "print everything as JSON");
  add_strategy_flags(command, f.strategy);
  return [flags] { return run_place(*flags); };
}

}  // namespace piper::cli
