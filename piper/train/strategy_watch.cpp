#include <fmt/format.h>
#include <piper/base/json.h>
#include <piper/cost/expert_price.h>
#include <piper/executor/clock.h>
#include <piper/files/output.h>
#include <piper/plan/question.h>
#include <piper/report/run_files.h>
#include <piper/strategy/runnable.h>
#include <piper/train/process_agreement.h>
#include <piper/train/rebalancer.h>
#include <piper/train/strategy_watch.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <utility>

namespace piper::train {

void StrategyWatch::begin(const schedule::StepGraph& step, double begun_seconds) {
  if (!run_.request.replan.is_on()) return;
  const strategy::Strategy& s = run_.request.strategy;
  trainer_profile_ = cost::load_trainer("piper");
  replan_request_ = {.model = &run_.request.model,
                     .cluster = &run_.request.cluster,
                     .trainer = &trainer_profile_,
                     .num_devices = s.mesh.world(),
                     .sequence = s.sequence,
                     .global_batch_sequences = s.global_batch_sequences,
                     .precision = s.precision,
                     .memory_limit_bytes = (1 - plan::kMemoryMargin) *
                                           static_cast<double>(run_.request.cluster.memory_bytes)};
  replan_request_.fixed.runnable = true;
  replan_request_.fixed.capacity = s.capacity;
  replan_request_.fixed.expert_compression = s.expert_compression;
  const auto accepts = [this](const strategy::Strategy& other) {
    return strategy::untrainable(run_.request.model, other).empty() &&
           train::problems(run_.request.rebalance, other,
                           cost::expert_bytes(run_.request.model, other.precision))
               .empty();
  };
  const double begin_seconds = executor::now_seconds() - begun_seconds;
  replanner_.emplace(replan_request_, step, s, run_.request.replan, 2 * begin_seconds, accepts);
}

void StrategyWatch::note(int64_t number, double seconds, const graph::Timeline& timeline,
                         const std::map<int32_t, std::vector<int64_t>>& expert_rows,
                         const balance::Placements& placements) {
  if (changes_) return;
  auto found = replanner_->note(
      {.number = number, .seconds = seconds, .tasks = timeline.tasks, .expert_rows = expert_rows},
      run_.last_step() - number, placements);
  if (!found) return;
  // The step that follows is the last with the present strategy.
  const bool changes =
      run_.request.replan.kind == plan::Replan::kAuto && number + 1 < run_.last_step();
  const std::filesystem::path file = run_.request.folder / report::kProposedStrategyFile;
  files::write_json_file(file, strategy::to_json(found->proposal.strategy));
  run_.say(fmt::format("step {}: {}; {}", number, plan::to_text(*found, run_.request.strategy),
                       changes ? "the run saves and goes on with it"
                               : "to go on with it: --resume --strategy " + file.string()));
  replanned_.push_back(std::move(*found));
  changes_ = changes;
}

std::optional<strategy::Strategy> StrategyWatch::agree_on_change() const {
  const std::string text = on_first_process(run_.world, "change of strategy", [this] {
    return changes_ ? strategy::to_json(replanned_.back().proposal.strategy).dump() : std::string();
  });
  const std::vector<std::string> stops = on_all_processes(run_.world, "stop", [this] {
    return std::string(run_.request.stop_requested && run_.request.stop_requested() ? "stop" : "");
  });
  if (text.empty() || std::ranges::find(stops, "stop") != stops.end()) return std::nullopt;
  return strategy::parse_strategy(parse_json(text, "change of strategy"), "change of strategy");
}

}  // namespace piper::train
