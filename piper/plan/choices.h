// What a user chooses from: the best strategy, and the best of those that differ from it in
// kind, each with what it trades. The ranking itself holds the best and its neighbours.
#pragma once

#include <piper/plan/search.h>

#include <optional>
#include <string>
#include <vector>

namespace piper::plan {

struct Choice {
  Candidate candidate;
  std::string what;  // "fastest", "best pipeline", "half of its memory", ...
};

// The choices of a plan whose ranking is not empty: its best, then, fastest first: the fastest
// where that is another (ranking.h); the best of each other family; on the front of speed and
// memory the fastest that needs at most three quarters, and at most half, of what the best needs;
// and the best that this Piper trains, where that is another. No strategy stands there twice.
// `runnable`: the plan of the same request with FixedAxes::runnable.
std::vector<Choice> choices_of(const Plan& plan, const std::optional<Candidate>& runnable);

// Simulates those that are not, where that is little enough work, and brings all into their order.
// The plan's families take over what was found.
void simulate(const Request& request, std::vector<Choice>& choices, Plan& plan);

// Compares `choice` with the best in words: "2.3 % slower, 20.1 GiB less".
std::string trade_of(const Candidate& best, const Candidate& choice);

}  // namespace piper::plan
