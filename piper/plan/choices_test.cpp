#include <doctest/doctest.h>
#include <piper/plan/choices.h>
#include <piper/strategy/runnable.h>
#include <testing/plan/example_world.h>

#include <algorithm>
#include <set>

namespace piper::plan {
namespace {

std::optional<Candidate> best_runnable(Request request) {
  request.fixed.runnable = true;
  return search(request).ranked.front();
}

}  // namespace

TEST_CASE("the choice: the fastest, what differs from it in kind, what this Piper trains") {
  const ExampleWorld world;
  const Request request = world.request(32, 512);
  Plan plan = search(request);
  simulate_ranked(request, plan, 4);
  const std::optional<Candidate> runnable = best_runnable(request);
  std::vector<Choice> choices = choices_of(plan, runnable);
  simulate(request, choices, plan);
  REQUIRE(choices.size() > 4);
  // What is said of families is said of the same steps.
  int64_t num_families = 0;
  for (const FamilyBest& family : plan.families)
    for (const Choice& choice : choices) {
      if (!family.best || family_of(choice.candidate.strategy) != family.family) continue;
      ++num_families;
      CHECK(family.best->step_seconds() <= choice.candidate.step_seconds());
      CHECK(family.best->simulated_seconds > 0);
      CHECK(family.best->time().total() == doctest::Approx(family.best->step_seconds()));
    }
  CHECK(num_families >= 4);
  std::set<std::string> seen;
  for (const Choice& choice : choices) {
    CAPTURE(choice.what);
    CHECK(seen.insert(describe(choice.candidate.strategy)).second);
    CHECK(choice.candidate.simulated_seconds > 0);
    CHECK(choice.candidate.estimate.peak_bytes <= request.memory_limit_bytes);
  }
  CHECK(std::ranges::is_sorted(choices, {},
                               [](const Choice& c) { return c.candidate.step_seconds(); }));
  const auto with = [&](const char* what) {
    const auto found = std::ranges::find_if(
        choices, [&](const Choice& c) { return c.what.find(what) != std::string::npos; });
    REQUIRE(found != choices.end());
    return found->candidate;
  };
  const Candidate& best = plan.ranked.front();
  CHECK(describe(with("fastest").strategy) == describe(best.strategy));
  CHECK(strategy::not_runnable(with("this Piper").strategy).empty());
  CHECK(with("half of its memory").estimate.peak_bytes <= 0.5 * best.estimate.peak_bytes);
  for (const FamilyBest& family : plan.families)
    if (family.best)
      CHECK(seen.contains(family.family == family_of(best.strategy)
                              ? describe(best.strategy)
                              : describe(family.best->strategy)));
  CHECK(trade_of(best, with("half of its memory")).find("slower, ") != std::string::npos);
  CHECK(trade_of(best, with("half of its memory")).find(" less") != std::string::npos);
}

TEST_CASE("no two of a ranking are the same but for an axis without effect, and none reads alike") {
  for (const char* model : {"mixtral-8x7b", "qwen3-30b-a3b"}) {
    const ExampleWorld world(model);
    Request request = world.request(16, 128);
    request.num_kept = 64;
    const Plan plan = search(request);
    std::set<std::string> words;
    for (size_t i = 0; i < plan.ranked.size(); ++i) {
      const Candidate& c = plan.ranked[i];
      CHECK(words.insert(describe(c.strategy)).second);
      for (size_t j = 0; j < i; ++j) {
        const Candidate& other = plan.ranked[j];
        CHECK_FALSE((other.estimate.seconds == c.estimate.seconds &&
                     other.estimate.peak_bytes == c.estimate.peak_bytes &&
                     other.strategy.mesh == c.strategy.mesh));
      }
    }
  }
}

}  // namespace piper::plan
