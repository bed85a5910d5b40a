#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/plan/moe_schedule_axis.h>
#include <piper/plan/search.h>
#include <testing/plan/example_world.h>
#include <tests/switches.h>

#include <algorithm>
#include <limits>
#include <string>

using namespace piper;
using namespace piper::plan;

namespace {

using SearchWorld = ExampleWorld;

}  // namespace

TEST_CASE(
    "pruning loses nothing: the same best strategies as the plain enumeration, and the same best "
    "of each family and of each pipeline schedule") {
  const SearchWorld world;
  size_t most_schedules = 0;
  for (const auto& [devices, batch, imbalance] :
       {std::tuple{16, 16, 1.0}, {8, 64, 1.5}, {16, 64, 1.5}, {32, 64, 1.0}, {64, 64, 1.5}}) {
    if ((devices > 16 || batch * devices > 512) && !testing::full_counts()) continue;
    CAPTURE(devices);
    Request request = world.request(devices, batch);
    request.imbalance = imbalance;
    request.num_kept = 20;
    const Plan pruned = search(request);
    request.prunes = false;
    const Plan plain = search(request);
    CHECK(pruned.num_passed_over > 0);
    CHECK(plain.num_passed_over == 0);
    CHECK(pruned.num_priced < plain.num_priced);
    REQUIRE(pruned.ranked.size() == plain.ranked.size());
    for (size_t i = 0; i < plain.ranked.size(); ++i)
      CHECK(to_json(pruned.ranked[i].strategy) == to_json(plain.ranked[i].strategy));
    for (size_t i = 0; i < plain.families.size(); ++i) {
      CAPTURE(std::string(name(plain.families[i].family)));
      REQUIRE(pruned.families[i].best.has_value() == plain.families[i].best.has_value());
      if (!plain.families[i].best) continue;
      const std::string of_pruned = to_json(pruned.families[i].best->strategy).dump(),
                        of_plain = to_json(plain.families[i].best->strategy).dump();
      CAPTURE(of_pruned);
      CAPTURE(of_plain);
      CHECK(pruned.families[i].best->estimate.seconds == plain.families[i].best->estimate.seconds);
    }
    REQUIRE(pruned.schedules.size() == plain.schedules.size());
    most_schedules = std::max(most_schedules, plain.schedules.size());
    for (size_t i = 0; i < plain.schedules.size(); ++i)
      CHECK(to_json(pruned.schedules[i].strategy) == to_json(plain.schedules[i].strategy));
  }
  CHECK(most_schedules > 2);
}

TEST_CASE("no part of the space beats the whole by more than the closed form's mean error") {
  const SearchWorld world;
  Request request = world.request(testing::full_counts() ? 64 : 16, 64);
  request.num_kept = kMostSimulated;
  const auto best_seconds = [&] {
    Plan plan = search(request);
    simulate_ranked(request, plan);
    return plan.ranked.empty() ? std::numeric_limits<double>::infinity()
                               : plan.ranked.front().step_seconds();
  };
  const double whole = best_seconds();
  double best_of_parts = std::numeric_limits<double>::infinity();
  const auto ask_part = [&](const std::string& part) {
    CAPTURE(part);
    const double seconds = best_seconds();
    best_of_parts = std::min(best_of_parts, seconds);
    CHECK(seconds >= 0.99 * whole);
  };
  for (const strategy::PipelineSchedule schedule : strategy::kPipelineSchedules) {
    request.fixed.schedule = schedule;
    ask_part(strategy::name(schedule));
  }
  request.fixed = {};
  for (const int64_t pp : {1, 2, 4, 8}) {
    request.fixed.pp = pp;
    ask_part("pp " + std::to_string(pp));
  }
  MESSAGE("best of the parts over the whole: ", best_of_parts / whole);
  // The whole is in one of the parts.
  CHECK(best_of_parts <= 1.01 * whole);
}

TEST_CASE(
    "where one recomputation does not suit all stages, stages choose their own and layers move") {
  const SearchWorld world;
  Request request = world.request(64, 256);
  request.memory_limit_bytes = 40e9;
  request.fixed.pp = 8;
  request.fixed.tp = 1;
  request.fixed.cp = 1;
  request.fixed.schedule = strategy::PipelineSchedule::k1F1B;
  request.fixed.offload = strategy::Offload::kNone;
  request.fixed.micro_batch_sequences = 2;
  const Plan free = search(request);
  REQUIRE(!free.ranked.empty());
  const Candidate& best = free.ranked.front();
  REQUIRE(best.strategy.recompute_per_stage.size() == 8);
  CHECK(best.strategy.recompute_per_stage.front() > best.strategy.recompute_per_stage.back());
  CHECK(best.estimate.peak_bytes <= request.memory_limit_bytes);
  double uniform = 0;
  for (const strategy::Recompute recompute : strategy::kRecomputes) {
    request.fixed.recompute = recompute;
    const Plan plan = search(request);
    if (plan.ranked.empty()) continue;
    const double seconds = plan.ranked.front().estimate.seconds;
    uniform = uniform == 0 ? seconds : std::min(uniform, seconds);
  }
  MESSAGE("by stage ", best.estimate.seconds, " s, the best that is the same on all ", uniform,
          " s");
  CHECK(best.estimate.seconds < 0.97 * uniform);
}

TEST_CASE("every strategy that is kept is sound and fits") {
  const SearchWorld world;
  const Plan plan = search(world.request(64, 256));
  REQUIRE(!plan.ranked.empty());
  for (const Candidate& c : plan.ranked) {
    CHECK(strategy::contradictions(c.strategy, world.model).empty());
    CHECK(c.strategy.mesh.world() == 64);
    CHECK(c.estimate.peak_bytes <= 0.9 * static_cast<double>(world.cluster.memory_bytes));
    CHECK(c.estimate.time.total() == doctest::Approx(c.estimate.seconds));
  }
  for (const Candidate& c : plan.pareto)
    CHECK(strategy::contradictions(c.strategy, world.model).empty());
}

TEST_CASE("a search tries what the trainer's profile offers, and nothing else") {
  ExampleWorld world;
  for (const char* name : {"megatron", "torchtitan", "nanotron", "piper-frontier", "deepspeed"}) {
    CAPTURE(name);
    world.trainer = cost::load_trainer(name);
    const cost::Offers& offers = world.trainer.offers;
    const Plan plan = search(world.request(32, 64));
    REQUIRE(!plan.pareto.empty());
    for (const std::vector<Candidate>* list : {&plan.ranked, &plan.pareto})
      for (const Candidate& c : *list) {
        const strategy::Strategy& s = c.strategy;
        CHECK(offers.has(s.schedule, s.mesh.pp));
        CHECK(offers.has_zero(s.zero, s.mesh.pp));
        CHECK(offers.has_offload_of(s));
        CHECK(offers.has(s.recompute));
        CHECK((offers.recompute_by_stage || s.recompute_per_stage.empty()));
        CHECK(offers.has_expert_tensor(s.mesh.etp, s.mesh.tp));
        if (world.trainer.rules != nullptr)
          CHECK(cost::rule(*world.trainer.rules, {&world.model, &s, &world.cluster, &world.trainer})
                    .forbids.empty());
      }
  }
}

TEST_CASE("what a trainer's rules refuse is left out before and after pruning alike") {
  ExampleWorld world;
  world.trainer = cost::load_trainer("megatron");
  Request request = world.request(16, 32);
  const Plan pruned = search(request);
  request.prunes = false;
  const Plan plain = search(request);
  REQUIRE(!pruned.ranked.empty());
  // The ranking and the best of each family; the front may lose slow shapes to the pruning.
  REQUIRE(pruned.ranked.size() == plain.ranked.size());
  for (size_t i = 0; i < plain.ranked.size(); ++i)
    CHECK(pruned.ranked[i].strategy == plain.ranked[i].strategy);
  for (size_t i = 0; i < plain.families.size(); ++i) {
    REQUIRE(pruned.families[i].best.has_value() == plain.families[i].best.has_value());
    if (plain.families[i].best)
      CHECK(pruned.families[i].best->strategy == plain.families[i].best->strategy);
  }
  // Without them more is tried.
  request.fixed.offered = false;
  request.fixed.schedule = strategy::PipelineSchedule::k1F1B;
  const Plan all = search(request);
  const auto is_undivided = [](const Candidate& c) {
    return c.strategy.mesh.tp > 1 && !c.strategy.sequence_parallel;
  };
  CHECK(std::ranges::any_of(all.ranked, is_undivided));
  CHECK(std::ranges::none_of(plain.ranked, is_undivided));
}

TEST_CASE("heads and experts of every layer divide, not of the first alone") {
  SearchWorld world;
  world.model.layers.back().attention.num_heads = 12;  // by 4, not by 8
  world.model.layers.back().feed_forward.ffn = 14340;  // likewise
  for (const auto& [tp, etp] : {std::pair{4, 4}, {8, 1}, {1, 8}}) {
    CAPTURE(tp);
    CAPTURE(etp);
    Request request = world.request(16, 32);
    request.memory_limit_bytes = 1e15;
    request.fixed.tp = tp;
    request.fixed.etp = etp;
    if (tp == 8 || etp == 8) {
      CHECK_THROWS_AS(search(request), InvalidInput);
      continue;
    }
    for (const Candidate& c : search(request).ranked)
      CHECK(strategy::contradictions(c.strategy, world.model).empty());
  }
}

TEST_CASE("the front: along it memory falls as time rises") {
  const SearchWorld world;
  const Plan plan = search(world.request(32, 64));
  REQUIRE(plan.pareto.size() > 1);
  CHECK(plan.pareto.front().estimate.seconds == plan.ranked.front().estimate.seconds);
  for (size_t i = 1; i < plan.pareto.size(); ++i) {
    CHECK(plan.pareto[i].estimate.seconds > plan.pareto[i - 1].estimate.seconds);
    CHECK(plan.pareto[i].estimate.peak_bytes < plan.pareto[i - 1].estimate.peak_bytes);
  }
}

TEST_CASE("fixed axes are kept, and what they leave nothing of is said") {
  const SearchWorld world;
  Request request = world.request(64, 256);
  request.fixed.tp = 4;
  request.fixed.zero = 1;
  request.fixed.schedule = strategy::PipelineSchedule::k1F1B;
  for (const Candidate& c : search(request).ranked) {
    CHECK(c.strategy.mesh.tp == 4);
    CHECK(c.strategy.zero == 1);
    CHECK(c.strategy.schedule == strategy::PipelineSchedule::k1F1B);
  }
  request.fixed.tp = 3;
  try {
    search(request);
    FAIL("accepted");
  } catch (const InvalidInput& e) {
    CHECK(e.problems() ==
          std::vector<std::string>{
              "--tp 3 leaves no strategy of mixtral-8x7b on 64 devices with 256 sequences a step; "
              "allowed: --tp 2 or 4 (divides the devices and the heads)"});
  }
}

TEST_CASE(
    "of fixed axes that contradict each other a smallest set is named, and one change that helps") {
  const SearchWorld world;
  const auto complaint = [&](const FixedAxes& fixed) -> std::string {
    Request request = world.request(64, 256);
    request.fixed = fixed;
    try {
      search(request);
    } catch (const InvalidInput& e) {
      REQUIRE(e.problems().size() == 1);
      return e.problems().front();
    }
    return "";
  };
  const auto has = [](const std::string& text, const char* part) {
    CAPTURE(text);
    CHECK(text.find(part) != std::string::npos);
  };
  // 16 x 8 ranks are more than 64: the depth and the experts' degree have no part in it.
  const std::string ranks = complaint({.pp = 4, .ep = 8, .tp = 8, .dp = 16});
  CHECK(ranks.starts_with("--tp 8 with --dp 16 leaves no strategy"));
  has(ranks, "--tp 1, or --dp 2");  // with all that is fixed: 4 x 1 x 16, 4 x 8 x 2
  const std::string v = complaint({.pp = 1, .schedule = strategy::PipelineSchedule::kZbV});
  has(v, "--schedule gpipe or 1f1b or zb-h1 or 1f1b-pairs, or --pp 2");
  has(complaint({.vpp = 4, .schedule = strategy::PipelineSchedule::kZbV}),
      "--schedule interleaved or interleaved-pairs, or --vpp 2");
  has(complaint({.vpp = 2, .schedule = strategy::PipelineSchedule::kGPipe}), "or --vpp 1");
  const std::string pairs =
      complaint({.zero = 3, .schedule = strategy::PipelineSchedule::k1F1BPairs});
  has(pairs, "--schedule 1f1b-pairs with --zero 3 leaves no strategy");
  has(complaint({.etp = 3}), "--etp 2 or 4");
  has(complaint({.micro_batch_sequences = 7}), "--micro-batch 4 or 8");
  has(complaint({.pp = 1, .placement = strategy::Placement::kPipelineInside}), "--pp 2");
  CHECK(complaint({.pp = -1}) == "--pp is -1; allowed: an integer from 1");
  CHECK(complaint({.vpp = 0}) == "--vpp is 0; allowed: an integer from 1");
}

TEST_CASE(
    "the number of micro-batches may be fixed, beyond the largest micro-batch that is tried too") {
  const SearchWorld world;
  Request request = world.request(16, 512);
  request.memory_limit_bytes = 1e15;
  request.fixed.pp = 1;
  request.fixed.dp = 16;
  for (const int64_t number : {8, 1}) {
    request.fixed.num_micro_batches = number;
    const Plan plan = search(request);
    REQUIRE(!plan.ranked.empty());
    for (const Candidate& c : plan.ranked) {
      CHECK(c.strategy.num_micro_batches == number);
      CHECK(c.strategy.micro_batch_sequences == 32 / number);
    }
  }
}

TEST_CASE("when nothing fits there is still an answer: what lacks least in each family") {
  const SearchWorld world;
  Request request = world.request(8, 16);
  request.memory_limit_bytes = 1e9;
  const Plan plan = search(request);
  CHECK(plan.ranked.empty());
  int64_t with_smallest = 0;
  for (const FamilyBest& family : plan.families) with_smallest += family.smallest ? 1 : 0;
  CHECK(with_smallest > 0);
  for (const FamilyVerdict& v : explain_families(request, plan)) {
    CHECK(!v.lost.empty());
    CHECK(!v.revive.empty());
  }
}

TEST_CASE(
    "a family that was not tried lost to what the trainer does not run, or to what is fixed") {
  SearchWorld world;
  const auto lost = [](const Request& request, Family family) {
    for (const FamilyVerdict& v : explain_families(request, search(request)))
      if (v.family == name(family)) return v.lost + "; " + v.revive;
    return std::string();
  };
  CHECK(lost(world.request(8, 16), Family::kFullySharded).find("does not run") ==
        std::string::npos);
  world.trainer = cost::load_trainer("megatron");
  Request request = world.request(8, 16);
  CHECK(lost(request, Family::kFullySharded) ==
        "trainer megatron does not run ZeRO 3; another --trainer");
  request.fixed.pp = 1;
  CHECK(lost(request, Family::kPipeline) == "--pp is fixed at 1; leave --pp open");
  request.fixed.zero = 1;
  CHECK(lost(request, Family::kFullySharded) == "--zero is fixed at 1; leave --zero open");
}

TEST_CASE("more bandwidth, lower latency and more memory never make the best plan slower") {
  const SearchWorld world;
  const auto best = [&](const cluster::Cluster& cluster, double limit) {
    Request request = world.request(testing::full_counts() ? 32 : 16, 64);
    request.cluster = &cluster;
    request.memory_limit_bytes = limit;
    request.num_kept = 1;
    request.keeps_kinds = false;
    return search(request).ranked.front().estimate.seconds;
  };
  // The simpler of two schedules of a mixture layer is taken where the other gains less than this.
  constexpr double kMost = 1 + kMoeScheduleTie;
  const double limit = 0.9 * static_cast<double>(world.cluster.memory_bytes);
  const double now = best(world.cluster, limit);
  for (size_t level = 0; level < world.cluster.levels.size(); ++level) {
    cluster::Cluster faster = world.cluster;
    faster.levels[level].link.bytes_per_second *= 2;
    faster.levels[level].nic_bytes_per_second *= 2;
    faster.numbers["ring_bytes_per_second"] *= level == 0 ? 2 : 1;
    CHECK(best(faster, limit) <= kMost * now);
    cluster::Cluster quicker = world.cluster;
    quicker.levels[level].link.latency_seconds /= 2;
    CHECK(best(quicker, limit) <= kMost * now);
  }
  CHECK(best(world.cluster, 1.2 * limit) <= kMost * now);
}
