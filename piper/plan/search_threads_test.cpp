// The search over every axis by several threads.
#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/plan/search.h>
#include <piper/plan/under_load.h>
#include <testing/plan/example_world.h>
#include <tests/switches.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

using namespace piper;
using namespace piper::plan;

namespace {

constexpr int64_t kThreads[] = {2, 3, 8};

Json to_json(const cost::MeanP95Worst& s) { return {s.mean, s.p95, s.worst}; }

Json to_json(const Candidate& c) {
  const cost::Estimate& e = c.estimate;
  const cost::StepSeconds& t = e.time;
  Json json{{"strategy", strategy::to_json(c.strategy)},
            {"seconds", e.seconds},
            {"time",
             {t.compute, t.recompute, t.tensor, t.exchange, t.context, t.messages, t.bubble,
              t.reductions, t.update, t.offload}},
            {"peak", e.peak_bytes},
            {"stages", {e.fullest_stage, e.busiest_stage}},
            {"pipeline", {e.states_bytes, e.pipeline_seconds, e.is_coarse, e.at_least}},
            {"simulated", c.simulated_seconds}};
  if (c.under_load)
    json["load"] = {to_json(c.under_load->seconds), to_json(c.under_load->peak_bytes)};
  return json;
}

Json to_json(const std::vector<Candidate>& candidates) {
  Json json = Json::array();
  for (const Candidate& c : candidates) json.push_back(to_json(c));
  return json;
}

// All of it; doubles to the last bit.
std::string text_of(const Plan& plan) {
  Json json{{"counts", {plan.num_priced, plan.num_timed, plan.num_shapes, plan.num_passed_over}},
            {"ranked", to_json(plan.ranked)},
            {"front", to_json(plan.pareto)}};
  for (const FamilyBest& f : plan.families)
    json["families"].push_back({{"family", name(f.family)},
                                {"priced", f.num_priced},
                                {"best", f.best ? to_json(*f.best) : Json()},
                                {"smallest", f.smallest ? to_json(*f.smallest) : Json()}});
  return json.dump(1);
}

struct ThreadsCase {
  const char* model;
  const char* cluster;
  int64_t devices, batch;
  double part_of_memory = 0.9;
  double imbalance = 1;
  const char* load = nullptr;
};

// Searched and simulated.
std::string answer(const ThreadsCase& c, int64_t num_threads) {
  ExampleWorld world(c.model);
  world.cluster = cluster::load_cluster(c.cluster);
  Request request = world.request(c.devices, c.batch);
  request.memory_limit_bytes = c.part_of_memory * static_cast<double>(world.cluster.memory_bytes);
  request.imbalance = c.imbalance;
  request.num_kept = 16;
  request.num_threads = num_threads;
  if (c.load == nullptr) {
    Plan plan = search(request);
    simulate_ranked(request, plan, 4);
    return text_of(plan);
  }
  const cost::LoadSamples samples{.load = cost::parse_load(c.load), .num_samples = 16, .seed = 7};
  const Imbalances imbalances = sampled_imbalances(request, samples, {1, 2, 4, 8, 16, 32, 64, 128});
  request.imbalance_by_ep = statistic_of(imbalances, cost::Statistic::kP95);
  Plan plan = search(request);
  simulate_under_load(request, samples, 4, plan);
  return text_of(plan);
}

}  // namespace

TEST_CASE("however many threads search and simulate, the answer is the same to the last bit") {
  for (const ThreadsCase& c : {ThreadsCase{"mixtral-8x7b", "dgx-h100", 16, 32},
                               ThreadsCase{"mixtral-8x7b", "dgx-h100", 12, 24, 0.5, 1.5},
                               ThreadsCase{"mixtral-8x7b", "dgx-h100", 4, 8, 0.01},  // nothing fits
                               ThreadsCase{"olmoe-1b-7b", "h800", 8, 16},
                               ThreadsCase{"qwen3-30b-a3b", "dgx-a100", 8, 16, 0.9, 1, "zipf:1"}}) {
    CAPTURE(c.model);
    CAPTURE(c.devices);
    const std::string alone = answer(c, 1);
    CHECK(alone.size() > 1000);
    for (const int64_t threads : kThreads) {
      if (threads == 2 && !testing::full_counts()) continue;
      CAPTURE(threads);
      CHECK_MESSAGE(answer(c, threads) == alone, "another answer");
    }
  }
}

TEST_CASE("progress of a search by threads comes from the caller's, and only rises") {
  const ExampleWorld world;
  Request request = world.request(16, 32);
  for (const int64_t threads : {1, 4}) {
    CAPTURE(threads);
    request.num_threads = threads;
    int64_t last = -1, calls = 0;
    const auto own = std::this_thread::get_id();
    request.progress = [&](int64_t done, int64_t total) {
      CHECK(std::this_thread::get_id() == own);
      CHECK(done >= last);
      CHECK(done <= total);
      last = done;
      ++calls;
    };
    Plan plan = search(request);
    CHECK(calls > 5);
    CHECK(calls < 1000);
    last = -1;
    calls = 0;
    simulate_ranked(request, plan, 4);
    CHECK(calls > 0);
  }
}

TEST_CASE("what the search refuses reaches the caller whatever the number of threads") {
  const ExampleWorld world;
  Request request = world.request(16, 32);
  request.precision = strategy::Precision::kNvfp4;  // no figures
  for (const int64_t threads : {1, 3}) {
    request.num_threads = threads;
    CHECK_THROWS_AS(search(request), InvalidInput);
  }
}

TEST_CASE("a machine that notes what it is asked is searched by one thread") {
  const ExampleWorld world;
  Request request = world.request(8, 16);
  request.num_threads = 4;
  CHECK(threads_of(request) == 4);
  const cluster::Cluster watched =
      cluster::watched(world.cluster, std::make_shared<cluster::Watch>());
  request.cluster = &watched;
  CHECK(threads_of(request) == 1);
}
