// piper signature: one hash over golden plans, predictions and virtual times, so that no change of
// behaviour goes unnoticed (tests/golden/signature.txt holds its value).
#include <fmt/format.h>
#include <piper/base/hash.h>
#include <piper/base/json.h>
#include <piper/cli/command.h>
#include <piper/cli/command_list.h>
#include <piper/cli/console.h>
#include <piper/cluster/cluster.h>
#include <piper/cost/executor_estimator.h>
#include <piper/cost/mfu.h>
#include <piper/cost/prices.h>
#include <piper/model/count.h>
#include <piper/model/import.h>
#include <piper/plan/question.h>
#include <piper/schedule/step.h>
#include <piper/sim/simulate.h>
#include <piper/strategy/rank_layout.h>

#include <memory>

namespace piper::cli {
namespace {

// What a golden case is: a planning question.
struct Case {
  const char* model;
  const char* cluster;
  int64_t devices, sequence, global_batch;
};
constexpr Case kCases[] = {{"mixtral-8x7b", "dgx-h100", 64, 4096, 512},
                           {"m10b-e16", "frontier", 64, 2048, 512},
                           {"piper-100m", "rtx4090x8", 8, 1024, 64},
                           {"deepseek-v3", "h800", 256, 4096, 1024}};

// Nine digits: a change of the last bits by another compiler is no change of behaviour.
std::string number(double value) { return fmt::format("{:.9g}", value); }

std::string describe(const Case& c) {
  const plan::Question question{.model = model::load_model(c.model),
                                .cluster = cluster::load_cluster(c.cluster),
                                .num_devices = c.devices,
                                .sequence = c.sequence,
                                .global_batch_sequences = c.global_batch,
                                .fixed = {.runnable = true}};
  const cost::TrainerProfile trainer = cost::load_trainer("piper");
  std::vector<plan::Default> defaults;
  const plan::Request request = plan::resolve_defaults(question, trainer, defaults);
  plan::Plan plan = plan::search(request);
  plan::simulate_ranked(request, plan);
  std::string text = fmt::format(
      "{} on {} x {}: {} parameters, {} active, {} flops a token\n", c.model, c.devices, c.cluster,
      model::count_parameters(question.model).total(), model::active_parameters(question.model),
      number(model::token_flops(question.model, c.sequence).forward()));
  for (size_t i = 0; i < std::min<size_t>(3, plan.ranked.size()); ++i) {
    const plan::Candidate& candidate = plan.ranked[i];
    const strategy::Strategy& s = candidate.strategy;
    const double seconds = candidate.step_seconds();
    text += fmt::format("  pp {} ep {} dp {} micro {} x {} {} {}: {} s, mfu {}, {} B\n", s.mesh.pp,
                        s.mesh.ep, s.mesh.dp, s.num_micro_batches, s.micro_batch_sequences,
                        strategy::name(s.schedule), strategy::name(s.recompute), number(seconds),
                        number(cost::mfu(question.model, s, question.cluster, seconds)),
                        number(candidate.estimate.peak_bytes));
  }
  text += fmt::format("  {} priced, {} on the front\n", plan.num_priced, plan.pareto.size());
  if (plan.ranked.empty()) return text;

  const strategy::Strategy& best = plan.ranked.front().strategy;
  const cost::ExactEstimate exact =
      cost::ExecutorEstimator(question.model, question.cluster, best.precision, best.sequence)
          .exact(best);
  text += fmt::format("  exact costs: {} s, {} B\n", number(exact.seconds), exact.peak_bytes);
  const std::vector<Rank> pipeline =
      strategy::RankLayout(best).group(strategy::Axis::kPipeline, Rank(0));
  const schedule::StepGraph step = schedule::write_step(question.model, best, pipeline);
  const graph::Timeline timeline =
      sim::simulate(step, cost::price(step, question.model, best, question.cluster));
  double ends = 0;
  for (const graph::Interval& task : timeline.tasks) ends += task.has_run() ? task.end_seconds : 0;
  text += fmt::format("  simulated: {} tasks, {} s, ends sum to {} s\n", step.graph.tasks().size(),
                      number(timeline.seconds()), number(ends));
  return text;
}

int run_signature(bool verbose, bool json) {
  std::string text;
  for (const Case& c : kCases) text += describe(c);
  const std::string signature = fmt::format("{:016x}", fnv1a64(text));
  if (json) {
    say_json(Json{{"signature", signature}, {"behaviour", text}});
  } else {
    say("{}{}\n", Lines{verbose ? text : ""}, signature);
  }
  return 0;
}

}  // namespace

Run add_signature(Subcommand command) {
  auto verbose = std::make_shared<bool>(false);
  auto json = std::make_shared<bool>(false);
  command.add_flag("--verbose", *verbose, "print what the hash covers, too");
  command.add_flag("--json", *json, "print the result as JSON");
  return [verbose, json] { return run_signature(*verbose, *json); };
}

}  // namespace piper::cli
