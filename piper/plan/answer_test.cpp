#include <doctest/doctest.h>
#include <piper/model/import.h>
#include <piper/plan/answer.h>
#include <piper/strategy/runnable.h>

#include <algorithm>

namespace piper::plan {
namespace {

TEST_CASE("one call of the library answers what the console prints: ranking, choices, reasons") {
  Question question{.model = model::load_model("mixtral-8x7b"),
                    .cluster = cluster::load_cluster("dgx-h100"),
                    .num_devices = 8,
                    .global_batch_sequences = 64};
  const cost::TrainerProfile trainer = cost::load_trainer("megatron");
  double last = 0;  // a part of the whole; a second round of simulations counts anew
  const auto progress = [&](int64_t done, int64_t total) {
    const double part = static_cast<double>(done) / static_cast<double>(total);
    CHECK((part >= 0 && part <= 1));
    last = part;
  };
  const Answer found = answer(question, trainer, {.progress = progress});
  CHECK(last > 0.9);
  REQUIRE_FALSE(found.plan.ranked.empty());
  const Candidate& best = found.plan.ranked.front();
  CHECK(best.simulated_seconds > 0);
  CHECK(prediction_of(found.request, best).step_seconds == best.simulated_seconds);
  CHECK(found.request.imbalance == found.request.imbalance_at(best.strategy.mesh.ep));
  // Each choice is judged under the heavy load, and one of them is what this Piper trains.
  REQUIRE_FALSE(found.choices.empty());
  CHECK(std::ranges::all_of(found.choices,
                            [](const Choice& c) { return c.candidate.heavy.has_value(); }));
  CHECK(std::ranges::any_of(found.choices, [&](const Choice& c) {
    return strategy::not_runnable(c.candidate.strategy, question.model).empty();
  }));
  CHECK(reasons_of(found.request, best.strategy).reduction.empty());  // asked of --runnable alone
  CHECK(exchange_of(found.request, best.strategy).options.empty() == (best.strategy.mesh.ep == 1));

  const Answer short_one = answer(question, trainer, {.with_choices = false});
  CHECK(short_one.choices.empty());
  CHECK(short_one.plan.ranked.front().strategy == best.strategy);
  question.num_devices = 1;  // which nothing fits on
  const Answer none = answer(question, trainer);
  CHECK((none.plan.ranked.empty() && none.choices.empty() && outside_measured(none, 5).empty()));
}

}  // namespace
}  // namespace piper::plan
