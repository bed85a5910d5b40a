#include <doctest/doctest.h>
#include <piper/cost/mfu.h>
#include <piper/plan/sensitivity.h>
#include <testing/plan/example_world.h>

#include <algorithm>

using namespace piper;
using namespace piper::plan;

namespace {

struct AskedSensitivity : ExampleWorld {
  AskedSensitivity() : ExampleWorld("qwen3-30b-a3b") {}
  Request request() const {
    Request r = ExampleWorld::request(64, 512);
    r.imbalance = 1.5;
    r.num_kept = 4;
    return r;
  }
};

bool helps(const Influence& i) {
  return i.input == "compute efficiency" || i.input.find("bandwidth") != std::string::npos;
}

}  // namespace

TEST_CASE(
    "more bandwidth or efficiency never lowers MFU, more latency or imbalance never raises it") {
  const AskedSensitivity question;
  const Request request = question.request();
  Plan plan = search(request);
  simulate_ranked(request, plan, 2);  // some by their closed form, some simulated
  for (const Candidate& candidate : plan.ranked) {
    CAPTURE(describe(candidate.strategy));
    CAPTURE(candidate.simulated_seconds);
    const double mfu =
        cost::mfu(question.model, candidate.strategy, question.cluster, candidate.step_seconds());
    for (const Influence& i : sensitivity(request, candidate)) {
      CAPTURE(i.input);
      const double better = helps(i) ? i.high_mfu : i.low_mfu;
      const double worse = helps(i) ? i.low_mfu : i.high_mfu;
      CHECK(better >= mfu * (1 - 1e-12));
      CHECK(worse <= mfu * (1 + 1e-12));
    }
  }
}

TEST_CASE("what a strategy does not use does not move it, and what it uses does") {
  const AskedSensitivity question;
  Request request = question.request();
  request.num_devices = 8;
  request.global_batch_sequences = 64;
  request.fixed = {.pp = 1, .ep = 8, .tp = 1, .cp = 1};
  const Plan plan = search(request);
  REQUIRE(!plan.ranked.empty());
  double last = 1;
  for (const Influence& i : sensitivity(request, plan.ranked.front())) {
    CAPTURE(i.input);
    CHECK(i.swing() <= last);
    last = i.swing();
    const bool outer = i.input.find("level") != std::string::npos &&
                       i.input.find(question.cluster.levels[0].name) == std::string::npos;
    if (outer || i.input == "step of a ring between nodes") CHECK(i.swing() == 0);
    if (i.input == "compute efficiency" || i.input == "imbalance of experts" ||
        i.input == "bandwidth of level " + question.cluster.levels[0].name)
      CHECK(i.swing() > 1e-4);
  }
}
