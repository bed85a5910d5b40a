// The planner answers with one call: the request with its blanks filled in, the ranking with its
// simulations, the choices beside the best, and why the parts of the best are what they are.
// `piper plan` prints an Answer and computes nothing of it. Functions are thread-safe where they
// are given different answers.
#pragma once

#include <piper/cluster/watch.h>
#include <piper/placement/placed_plan.h>
#include <piper/plan/choices.h>
#include <piper/plan/exchange_axis.h>
#include <piper/plan/prediction.h>
#include <piper/plan/question.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace piper::plan {

struct Answer {
  Request request;  // refers to the question's model and cluster, and to the trainer
  std::vector<Default> defaults;
  Plan plan;
  std::vector<Choice> choices;  // the best is the first of the ranking; empty with it
};

struct AnswerOptions {
  int64_t num_ranked = 0;    // at least kMostSimulated are simulated and judged
  bool with_choices = true;  // which take a second search where this Piper cannot train the best
  // The calling thread calls it a few hundred times; it may be empty.
  std::function<void(int64_t done, int64_t total)> progress;
};

// Searches, simulates the best, and judges them under the load. `question` and `trainer` outlive
// the answer. Throws InvalidInput as resolve_defaults() and search() do.
Answer answer(const Question& question, const cost::TrainerProfile& trainer,
              const AnswerOptions& options = {});

// Places the ranks of the first placement::kMostPlaced of the ranking on the nodes that a job has,
// and brings the ranking into the order of their steps there. Requires that something fits.
placement::PlacedPlan place_on_nodes(const cluster::Allocation& allocation, Answer& answer);

// What was predicted of a candidate: by its simulated step where it was simulated.
Prediction prediction_of(const Request& request, const Candidate& candidate);

// Why a strategy's parts are what they are, a sentence each; empty where nothing was chosen.
struct Reasons {
  std::string reduction, reduction_start, moe_schedule;
};
Reasons reasons_of(const Request& request, const strategy::Strategy& strategy);

// One exchange of the strategy's rows by every algorithm.
ExchangeVerdict exchange_of(const Request& request, const strategy::Strategy& strategy);

// Lists where the prices of the first `count` of the ranking lean on shapes or sizes that were not
// measured.
std::vector<cluster::Outside> outside_measured(const Answer& answer, int64_t count);

}  // namespace piper::plan
