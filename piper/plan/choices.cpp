#include <fmt/format.h>
#include <piper/base/units.h>
#include <piper/plan/choices.h>
#include <piper/plan/simulated_step.h>
#include <piper/plan/threads.h>

#include <algorithm>
#include <cmath>

namespace piper::plan {
namespace {

// The best stays in front of the others.
void sort(std::vector<Choice>& choices) {
  std::ranges::stable_sort(choices.begin() + 1, choices.end(), {},
                           [](const Choice& c) { return c.candidate.step_seconds(); });
}

class Choosing {
 public:
  explicit Choosing(const Plan& plan) : plan_(plan), best_(plan.ranked.front()) {}

  std::vector<Choice> all(const std::optional<Candidate>& runnable) {
    const Candidate& fastest = *std::ranges::min_element(
        plan_.ranked, {}, [](const Candidate& c) { return c.step_seconds(); });
    const bool is_fastest = best_.step_seconds() <= fastest.step_seconds();
    add(best_, is_fastest
                   ? "fastest"
                   : fmt::format("best: of those within {:.0f} % of the fastest the one with "
                                 "least memory and smallest ep",
                                 100 * kTieSlack));
    if (!is_fastest) add(fastest, "fastest");
    if (runnable) add(*runnable, "this Piper trains it");
    for (const FamilyBest& family : plan_.families)
      if (family.best && family.family != family_of(best_.strategy))
        add(*family.best, std::string("best ") + name(family.family));
    add_smaller(0.75, "three quarters of its memory");
    add_smaller(0.5, "half of its memory");
    sort(choices_);
    return std::move(choices_);
  }

 private:
  void add(const Candidate& candidate, const std::string& what) {
    const std::string words = describe(candidate.strategy);
    for (Choice& known : choices_)
      if (describe(known.candidate.strategy) == words) {
        known.what += ", " + what;
        return;
      }
    choices_.push_back({candidate, what});
  }
  // The front is sorted by time.
  void add_smaller(double part, const char* what) {
    const auto found = std::ranges::find_if(plan_.pareto, [&](const Candidate& c) {
      return c.estimate.peak_bytes <= part * best_.estimate.peak_bytes;
    });
    if (found != plan_.pareto.end()) add(*found, what);
  }

  const Plan& plan_;
  const Candidate& best_;
  std::vector<Choice> choices_;
};

}  // namespace

std::vector<Choice> choices_of(const Plan& plan, const std::optional<Candidate>& runnable) {
  return Choosing(plan).all(runnable);
}

void simulate(const Request& request, std::vector<Choice>& choices, Plan& plan) {
  share_items(threads_of(request), std::ssize(choices), [&](int64_t, int64_t item) {
    Candidate& c = choices[static_cast<size_t>(item)].candidate;
    const std::unique_ptr<cost::Estimator> estimator = request.estimator();
    if (c.simulated_seconds == 0 && may_simulate(*estimator, c.strategy))
      c.simulated_seconds =
          simulated_seconds(*estimator, c.strategy, request.imbalance_at(c.strategy.mesh.ep));
  });
  sort(choices);
  for (FamilyBest& family : plan.families)
    for (const Choice& choice : choices)
      if (family.best && choice.candidate.strategy == family.best->strategy)
        family.best = choice.candidate;
}

std::string trade_of(const Candidate& best, const Candidate& choice) {
  const double slower = choice.step_seconds() / best.step_seconds() - 1;
  const double more = choice.estimate.peak_bytes - best.estimate.peak_bytes;
  const std::string memory =
      std::abs(more) < 1e-3 * best.estimate.peak_bytes
          ? "the same memory"
          : fmt::format("{} {}", format_bytes(std::abs(more)), more > 0 ? "more" : "less");
  return fmt::format("{} {}, {}", format_percent(std::abs(slower)),
                     slower < 0 ? "faster" : "slower", memory);
}

}  // namespace piper::plan
