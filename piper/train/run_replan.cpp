// Does the strategy still suit? What rank 0 asks the planner after every step, and what it says or
// does.
#include <fmt/format.h>
#include <piper/base/json.h>
#include <piper/cost/expert_price.h>
#include <piper/executor/clock.h>
#include <piper/plan/question.h>
#include <piper/report/run_files.h>
#include <piper/strategy/runnable.h>
#include <piper/train/process_agreement.h>
#include <piper/train/run_parts.h>

#include <algorithm>

namespace piper::train::parts {

// What may be chosen: whatever trains the same model on the same ranks, text and batches. Called
// when the run has begun: what that took is what a change will take twice, once for its save.
void Run::make_replanner() {
  if (!request_.replan.is_on()) return;
  const strategy::Strategy& s = request_.strategy;
  trainer_profile_ = cost::load_trainer("piper");
  replan_request_ = {.model = &request_.model,
                     .cluster = &request_.cluster,
                     .trainer = &trainer_profile_,
                     .num_devices = s.mesh.world(),
                     .sequence = s.sequence,
                     .global_batch_sequences = s.global_batch_sequences,
                     .precision = s.precision,
                     .memory_limit_bytes = (1 - plan::kMemoryMargin) *
                                           static_cast<double>(request_.cluster.memory_bytes)};
  replan_request_.fixed.runnable = true;
  replan_request_.fixed.capacity = s.capacity;
  const auto accepts = [this](const strategy::Strategy& other) {
    return strategy::untrainable(request_.model, other).empty() &&
           train::problems(request_.rebalance, other,
                           cost::expert_bytes(request_.model, other.precision))
               .empty();
  };
  const double begin_seconds = executor::now_seconds() - begun_seconds_;
  replanner_.emplace(replan_request_, step_, s, request_.replan, 2 * begin_seconds, accepts);
}

// Between two steps, by all ranks at once.
void Run::replan(RankTrainer& trainer, comm::Transport& transport, int64_t number, double seconds,
                 const StepOutcome& outcome) {
  if (!request_.replan.is_on()) return;
  // Of one process too: the other ranks have then written their part of the step.
  gather_step(transport, kReplanKeys + 2 * static_cast<uint64_t>(number), number);
  if (transport.rank() != Rank(0) || changes_) return;
  auto found = replanner_->note({.number = number,
                                 .seconds = seconds,
                                 .tasks = recorder_.timeline_of(number)->tasks,
                                 .expert_rows = outcome.expert_rows},
                                last_step() - number, displaced(trainer.placements()));
  if (!found) return;
  // The step that follows is the last with the present strategy.
  const bool changes = request_.replan.kind == plan::Replan::kAuto && number + 1 < last_step();
  const fs::path file = request_.folder / report::kProposedStrategyFile;
  write_json_file(file, strategy::to_json(found->proposal.strategy));
  say(fmt::format("step {}: {}; {}", number, plan::to_text(*found, request_.strategy),
                  changes ? "the run saves and goes on with it"
                          : "to go on with it: --resume --strategy " + file.string()));
  replanned_.push_back(std::move(*found));
  changes_ = changes;
}

// After the last step, by every process. Whoever was asked to stop meanwhile, in whatever process,
// stops all: the step is saved, and --resume may go on with what was proposed.
void Run::agree_on_change() {
  const std::string text = on_first_process(world_, "change of strategy", [this] {
    return changes_ ? strategy::to_json(replanned_.back().proposal.strategy).dump() : std::string();
  });
  const std::vector<std::string> stops = on_all_processes(world_, "stop", [this] {
    return std::string(request_.stop_requested && request_.stop_requested() ? "stop" : "");
  });
  if (text.empty() || std::ranges::find(stops, "stop") != stops.end()) return;
  next_strategy_ =
      strategy::parse_strategy(parse_json(text, "change of strategy"), "change of strategy");
}

}  // namespace piper::train::parts
