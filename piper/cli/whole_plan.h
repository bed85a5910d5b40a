// `piper plan` over every axis (plan/whole.h): the default on GPU clusters.
#pragma once

#include <piper/base/json_fwd.h>
#include <piper/cli/placed_plan.h>
#include <piper/cli/subcommand.h>
#include <piper/plan/plan.h>
#include <piper/plan/under_load.h>
#include <piper/plan/whole.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace piper::cli {

struct WholeQuestion {
  plan::Request request;  // model, cluster, devices, sequence, batch, precision
  plan::WholeFixed fixed;
  std::string stack = "piper";  // name or file
  double imbalance = 1;
  std::optional<plan::LoadSamples> load;  // in place of `imbalance`
  int64_t top = 10;
  int64_t num_threads = 0;  // 0: as many as cores may be used. The answer does not depend on it
  bool explain = false, json = false;
  std::vector<std::string> what_if;  // whole_questions.h, this and the next
  bool min_devices = false;
  std::string out;
  NodesQuestion nodes;
  std::optional<cluster::Allocation>
      allocation;  // where nodes are given; request.cluster is its machine
};

// Declares --threads; `num_threads` outlives `command`.
void add_threads_flag(Subcommand command, int64_t& num_threads);

// Prints the answer; 1 when nothing fits, else 0. Throws InvalidInput.
int answer_whole(const WholeQuestion& question);

// The request with its blanks filled in, and what the search found.
struct WholeAnswer {
  plan::WholeRequest request;  // points into the question and the stack
  std::vector<plan::Default> defaults;
  plan::WholePlan plan;
  // Where a load is drawn: of the request's, its imbalance being that of the best.
  plan::Imbalances imbalances;
};

// Searches every axis and plays the best. `progress` may be empty. `question` and `stack` outlive
// the answer. Throws InvalidInput.
WholeAnswer whole_answer(const WholeQuestion& question, const stack::Stack& stack,
                         const std::function<void(int64_t done, int64_t total)>& progress = {});

// The plan as `piper plan` prints it, without what comes of nodes and files.
void print_whole(const WholeQuestion& question, const WholeAnswer& answer, double seconds);
Json to_json(const WholeQuestion& question, const WholeAnswer& answer, double seconds);

// Of the step as it is ranked: played where it was.
double whole_mfu(const plan::WholeRequest& request, const plan::WholeCandidate& candidate);

// A strategy with what was predicted of it, as `--out` writes it.
Json whole_json(const plan::WholeRequest& request, const plan::WholeCandidate& candidate);

// Fills in what the request leaves open; `defaults` says so. The pointers of the result point into
// `question` and `stack`.
plan::WholeRequest whole_request(const WholeQuestion& question, const stack::Stack& stack,
                                 std::vector<plan::Default>& defaults);

}  // namespace piper::cli
