#include <doctest/doctest.h>
#include <piper/cluster/slowed.h>
#include <piper/cost/segment_time.h>
#include <piper/plan/replanner.h>
#include <piper/plan/simulated_step.h>
#include <piper/sim/disturbance.h>
#include <piper/sim/simulate.h>
#include <testing/cost/example_model.h>
#include <tests/switches.h>

#include <algorithm>

namespace piper::plan {
namespace {

using strategy::Strategy;

// A run in virtual time: two nodes of two devices, whose links are alike at first.
struct ReplannedWorld {
  ReplannedWorld() {
    model = cost::example::mixture(8);
    model.hidden = 256;
    model.vocabulary = 512;
    for (model::Layer& layer : model.layers) {
      layer.attention = {.num_heads = 8, .num_kv_heads = 4, .head_dim = 32};
      layer.feed_forward = {.ffn = 512, .num_experts = 8, .top_k = 2};
    }
    cluster.kind = "cpu";
    cluster.levels = {{.name = "node", .num_members = 2, .link = {1e-6, 20e9}},
                      {.name = "group", .num_members = 2, .link = {1e-6, 20e9}}};
    cluster.memory_bytes = int64_t{8} << 30;
  }
  model::Model model;
  cluster::Cluster cluster = cost::example::nodes();
  cost::TrainerProfile trainer = cost::load_trainer("piper");

  Request request() const {
    Request r{.model = &model,
              .cluster = &cluster,
              .trainer = &trainer,
              .num_devices = 4,
              .sequence = 128,
              .global_batch_sequences = 32,
              .precision = strategy::Precision::kFp32,
              .memory_limit_bytes = 0.96 * static_cast<double>(cluster.memory_bytes)};
    r.fixed.runnable = true;
    r.fixed.recompute = strategy::Recompute::kNone;
    r.fixed.cp = 1;
    r.num_kept = 16;
    return r;
  }
};

// What a run on the machine as described begins with.
const Strategy& best_of(const ReplannedWorld& world) {
  static const Strategy best = [&] {
    Plan plan = search(world.request());
    simulate_ranked(world.request(), plan);
    return plan.ranked.front().strategy;
  }();
  return best;
}

// What the machine really is.
struct Truth {
  std::vector<double> links;  // by level; empty: as described
  double bandwidth = 1;       // of every level, over what is described; start-ups stay
  std::vector<sim::Straggler> stragglers;
  double jitter_sigma = 0, rank_sigma = 0;
};

// Executes one strategy on it, step by step.
class VirtualRun {
 public:
  VirtualRun(const ReplannedWorld& world, const Truth& truth, const Strategy& strategy)
      : truth_(truth),
        cluster_(with_bandwidth(cluster::slowed(world.cluster, 1, truth.links), truth.bandwidth)),
        step_(schedule::write_step(world.model, strategy)),
        prices_(cost::price(step_, world.model, strategy, cluster_)) {}

  const schedule::StepGraph& step() const { return step_; }
  ObservedStep simulate(int64_t number) const {
    cost::Prices prices = prices_;
    sim::disturb(step_,
                 {.stragglers = truth_.stragglers,
                  .jitter_sigma = truth_.jitter_sigma,
                  .rank_sigma = truth_.rank_sigma,
                  .seed = static_cast<uint64_t>(number)},
                 prices);
    const graph::Timeline timeline = sim::simulate(step_, prices, false);
    return {.number = number, .seconds = timeline.seconds(), .tasks = timeline.tasks};
  }

 private:
  static cluster::Cluster with_bandwidth(cluster::Cluster cluster, double factor) {
    for (cluster::Level& level : cluster.levels) level.link.bytes_per_second *= factor;
    return cluster;
  }

  Truth truth_;
  cluster::Cluster cluster_;
  schedule::StepGraph step_;
  cost::Prices prices_;
};

constexpr int64_t kWithin = 20;  // steps

// The first proposal of a run that begins well and whose machine is `truth` from step 10 on.
std::optional<Replanned> proposed(const ReplannedWorld& world, const Strategy& present,
                                  const Truth& truth, int64_t num_steps) {
  const Request request = world.request();
  const VirtualRun calm(world, {}, present), changed(world, truth, present);
  Replanner replanner(request, calm.step(), present, {.kind = Replan::kAsk}, 1e-3);
  constexpr int64_t kChange = 10;
  for (int64_t number = 1; number <= num_steps; ++number) {
    const auto found =
        replanner.note((number < kChange ? calm : changed).simulate(number), 100'000);
    CHECK_FALSE((found && number < kChange));
    if (found) {
      CHECK(number < kChange + kWithin);
      return found;
    }
  }
  return std::nullopt;
}

// It is as fast there as was promised, and the run would be as slow as was said.
void check_kept(const ReplannedWorld& world, const Strategy& present, const Truth& truth,
                const Replanned& found) {
  const double before = VirtualRun(world, truth, present).simulate(0).seconds;
  const double after = VirtualRun(world, truth, found.proposal.strategy).simulate(0).seconds;
  INFO(to_text(found, present), "; really ", before, " s, ", after, " s");
  CHECK(after * 1.05 < before);
  CHECK(found.proposal.seconds_staying == doctest::Approx(before).epsilon(0.1));
  CHECK(found.proposal.seconds == doctest::Approx(after).epsilon(0.1));
}

}  // namespace

namespace {

ObservedMachine observed(const ReplannedWorld& world, const Truth& truth, const Strategy& s) {
  const VirtualRun run(world, truth, s);
  const cost::Prices prices = cost::price(run.step(), world.model, s, world.cluster);
  graph::Timeline timeline;
  timeline.tasks = run.simulate(0).tasks;
  return observe(run.step(), prices, world.cluster, sim::simulate(run.step(), prices, false),
                 timeline);
}

}  // namespace

TEST_CASE("what a step shows of its machine is what was done to it") {
  const ReplannedWorld world;
  Request request = world.request();
  request.fixed.pp = 2;  // between the nodes; gradients are summed inside
  request.fixed.ep = request.fixed.tp = 1;
  const Truth truth{.links = {1, 10}, .stragglers = {{Rank(3), 2.5}}};
  const ObservedMachine apart = observed(world, truth, search(request).ranked.front().strategy);
  for (size_t rank = 0; rank < 4; ++rank)
    CHECK(apart.compute[rank] == doctest::Approx(rank == 3 ? 2.5 : 1));
  CHECK(apart.links[0] == doctest::Approx(1).epsilon(0.02));
  CHECK(apart.links[1] == doctest::Approx(10).epsilon(0.1));
  // One exchange among all four says of both levels what it knows of both together.
  request.fixed.pp = 1;
  request.fixed.ep = 4;
  const ObservedMachine together = observed(world, truth, search(request).ranked.front().strategy);
  CHECK(together.links[1] > 5);
  CHECK(together.links[0] == together.links[1]);
}

// Gradients of many layers are on their way at once; what is alone is small and knows start-ups.
TEST_CASE("thin links are seen where the large messages of a step overlap") {
  ReplannedWorld world;
  for (cluster::Level& level : world.cluster.levels) level.link = {1e-3, 1e9};
  Request request = world.request();
  request.fixed.pp = request.fixed.ep = request.fixed.tp = 1;
  const Strategy replicas = search(request).ranked.front().strategy;
  CHECK(observed(world, {}, replicas).links[1] == doctest::Approx(1).epsilon(0.02));
  CHECK(observed(world, {.bandwidth = 0.05}, replicas).links[1] > 8);
}

TEST_CASE("slow links: within twenty steps a strategy that spares it, as fast as it says") {
  const ReplannedWorld world;
  const Strategy& present = best_of(world);
  const Truth truth{.links = {30, 30}};
  const auto found = proposed(world, present, truth, 40);
  REQUIRE(found.has_value());
  CHECK(found->why.find("messages within a node take") == 0);
  check_kept(world, present, truth, *found);
}

TEST_CASE("a slow rank: within twenty steps a strategy that gives it less to do") {
  const ReplannedWorld world;
  const Strategy& present = best_of(world);
  const Truth truth{.stragglers = {{Rank(2), 2}}};
  const auto found = proposed(world, present, truth, 40);
  REQUIRE(found.has_value());
  CHECK(found->why.find("rank 2 computes up to 2.0 times as long") != std::string::npos);
  check_kept(world, present, truth, *found);
}

TEST_CASE("steps that only scatter propose nothing in a thousand") {
  const ReplannedWorld world;
  const Strategy& present = best_of(world);
  const int64_t steps = testing::repetitions({.usual = 40, .full = 1000});
  CHECK_FALSE(
      proposed(world, present, {.jitter_sigma = 0.2, .rank_sigma = 0.08}, steps).has_value());
}

TEST_CASE("a change that the steps left do not earn back is none") {
  const ReplannedWorld world;
  const Strategy& present = best_of(world);
  const VirtualRun run(world, {.links = {30, 30}}, present);
  const Request request = world.request();
  for (const auto& [left, expected] : {std::pair<int64_t, bool>{1'000'000, true}, {20, false}}) {
    Replanner replanner(request, run.step(), present, {.kind = Replan::kAsk},
                        100 * run.simulate(0).seconds);
    bool found = false;
    for (int64_t number = 1; number <= 40; ++number)
      found = replanner.note(run.simulate(number), left).has_value() || found;
    CHECK(found == expected);
  }
}

}  // namespace piper::plan
