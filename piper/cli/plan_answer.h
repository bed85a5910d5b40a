// What `piper plan` answers: the strategies that are worth training with, and why.
#pragma once

#include <piper/base/json_fwd.h>
#include <piper/cli/placed_plan.h>
#include <piper/cli/run_cost.h>
#include <piper/cli/subcommand.h>
#include <piper/plan/answer.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace piper::cli {

struct PlanQuestion {
  plan::Question asked;
  cost::TrainerProfile trainer;
  bool trainer_is_default = false;
  int64_t top = 10;
  bool lists_ranking = false;  // the first `top` of the ranking in place of the choices
  bool explain = false, json = false;
  std::vector<std::string> what_if;  // plan_questions.h, this and the next
  bool min_devices = false;
  std::string out;
  RunCost run_cost;
  NodesQuestion nodes;
  std::optional<cluster::Allocation>
      allocation;  // where nodes are given; asked.cluster is its machine
};

// Declares --threads; `num_threads` outlives `command`.
void add_threads_flag(Subcommand command, int64_t& num_threads);

// Prints the answer; 1 when nothing fits, else 0. Throws InvalidInput.
int answer_plan(const PlanQuestion& question);

using PlanAnswer = plan::Answer;

// What plan::answer() says of the question; `progress` may be empty, and `question` outlives the
// answer. Throws InvalidInput.
PlanAnswer plan_answer(const PlanQuestion& question,
                       const std::function<void(int64_t done, int64_t total)>& progress = {});

// The plan as `piper plan` prints it, without what comes of nodes and files.
void print_plan_answer(const PlanQuestion& question, const PlanAnswer& answer, double seconds);
Json to_json(const PlanQuestion& question, const PlanAnswer& answer, double seconds);

// A strategy with what was predicted of it, as `--out` writes it.
Json priced_json(const plan::Request& request, const plan::Candidate& candidate);

}  // namespace piper::cli
