// piper signature: one hash over golden plans, predictions and virtual times, so that no change of
// behaviour goes unnoticed (tests/golden/signature.txt holds its value).
#include <fmt/format.h>
#include <piper/base/json.h>
#include <piper/cli/command.h>
#include <piper/cli/command_list.h>
#include <piper/cluster/cluster.h>
#include <piper/cost/prices.h>
#include <piper/model/count.h>
#include <piper/model/import.h>
#include <piper/plan/plan.h>
#include <piper/schedule/step.h>
#include <piper/sim/play.h>
#include <piper/strategy/rank_layout.h>

#include <iostream>
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
  plan::Request request;
  request.model = model::load_model(c.model);
  request.cluster = cluster::load_cluster(c.cluster);
  request.num_devices = c.devices;
  request.sequence = c.sequence;
  request.global_batch_sequences = c.global_batch;
  const plan::Plan plan = plan::make_plan(request);
  std::string text = fmt::format(
      "{} on {} x {}: {} parameters, {} active, {} flops a token\n", c.model, c.devices, c.cluster,
      model::count_parameters(request.model).total(), model::active_parameters(request.model),
      number(model::token_flops(request.model, c.sequence).forward()));
  for (size_t i = 0; i < std::min<size_t>(3, plan.strategies.size()); ++i) {
    const strategy::Strategy& s = plan.strategies[i].strategy;
    const plan::Prediction& p = plan.strategies[i].prediction;
    text += fmt::format("  pp {} ep {} dp {} micro {} x {} {} {}: {} s, mfu {}, {} B\n", s.mesh.pp,
                        s.mesh.ep, s.mesh.dp, s.num_micro_batches, s.micro_batch_sequences,
                        strategy::name(s.schedule), strategy::name(s.recompute),
                        number(p.step_seconds), number(p.mfu), p.peak_bytes);
  }
  text += fmt::format("  {} families rejected\n", plan.rejected.size());
  if (plan.strategies.empty()) return text;

  const strategy::Strategy& best = plan.strategies.front().strategy;
  const std::vector<Rank> pipeline =
      strategy::RankLayout(best).group(strategy::Axis::kPipeline, Rank(0));
  const schedule::StepGraph step = schedule::write_step(request.model, best, pipeline);
  const graph::Timeline timeline =
      sim::play(step, cost::price(step, request.model, best, request.cluster));
  double ends = 0;
  for (const graph::Interval& task : timeline.tasks) ends += task.played() ? task.end_seconds : 0;
  text += fmt::format("  played: {} tasks, {} s, ends sum to {} s\n", step.graph.tasks().size(),
                      number(timeline.seconds()), number(ends));
  return text;
}

// FNV-1a, 64 bits: a fingerprint, not a defence.
uint64_t hash(const std::string& text) {
  uint64_t value = 0xcbf29ce484222325;
  for (const unsigned char c : text) value = (value ^ c) * 0x100000001b3;
  return value;
}

int run(bool verbose, bool json) {
  std::string text;
  for (const Case& c : kCases) text += describe(c);
  const std::string signature = fmt::format("{:016x}", hash(text));
  if (json) {
    std::cout << Json{{"signature", signature}, {"behaviour", text}}.dump(2) << "\n";
  } else {
    fmt::print("{}{}\n", verbose ? text : "", signature);
  }
  return 0;
}

}  // namespace

Run add_signature(Subcommand command) {
  auto verbose = std::make_shared<bool>(false);
  auto json = std::make_shared<bool>(false);
  command.add_flag("--verbose", *verbose, "print what the hash covers, too");
  command.add_flag("--json", *json, "print the result as JSON");
  return [verbose, json] { return run(*verbose, *json); };
}

}  // namespace piper::cli
