#include <doctest/doctest.h>
#include <fmt/format.h>
#include <piper/collective/reductions.h>
#include <piper/cost/executor_estimator.h>
#include <piper/cost/prices.h>
#include <piper/model/import.h>
#include <piper/plan/reduction_axis.h>
#include <piper/sim/flow_limit.h>
#include <piper/sim/placement.h>
#include <piper/sim/simulate.h>
#include <testing/cost/example_model.h>
#include <testing/cost/relative_approx.h>
#include <testing/plan/example_world.h>
#include <testing/plan/random_cluster.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <set>
#include <string>

namespace piper::plan {
namespace {

using cost::Group;
using strategy::Reduction;

constexpr Reduction kHierarchical = Reduction::kHierarchical;

}  // namespace

TEST_CASE("the ways of a reduction: inside nodes, and among those with the same place in each") {
  const cluster::Cluster cluster = cost::example::nodes();  // nodes of 4
  const auto ways = cost::reduction_ways(cluster, {.first = 8, .size = 8}, 800, kHierarchical);
  CHECK(ways.inside.group.size == 4);
  CHECK(ways.inside.group.first == 8);
  CHECK(ways.inside.pair_bytes == 200);
  CHECK(ways.across.group.size == 2);
  CHECK(ways.across.group.stride == 4);
  CHECK(ways.across.pair_bytes == 100);
  // Every second device: two in a node.
  CHECK(cost::reduction_ways(cluster, {.stride = 2, .size = 8}, 800, kHierarchical)
            .inside.group.size == 2);
  // One a node, one node, and directly: one way.
  for (const auto& flat :
       {cost::reduction_ways(cluster, {.stride = 4, .size = 4}, 800, kHierarchical),
        cost::reduction_ways(cluster, {.size = 4}, 800, kHierarchical),
        cost::reduction_ways(cluster, {.size = 8}, 800, Reduction::kDirect)}) {
    CHECK(flat.inside.group.size == 1);
    CHECK(flat.across.pair_bytes * static_cast<double>(flat.across.group.size) == 800);
  }
}

TEST_CASE("reductions in closed form against the simulated steps: one piece, random machines") {
  std::mt19937 random(20261122);
  double squares = 0, least = 0, most = 0;
  int num = 0;
  for (int i = 0; i < 60; ++i) {
    cluster::Cluster cluster = random_cluster(random);
    cluster.numbers["message_seconds"] = 1e-6;
    const int64_t nodes = int64_t{2} << random() % 3;
    const sim::Placement placement = sim::packed(cluster, nodes);
    const auto n = static_cast<int64_t>(placement.device.size());
    const int64_t elements = int64_t{1} << (16 + random() % 5);
    const sim::Fabric fabric = sim::fabric_of(cluster, placement);
    const collective::Topology topology = sim::topology_of(cluster, placement);
    const double simulated = sim::price(
        n,
        [&](int64_t member) {
          collective::MemberSteps steps = collective::all_reduce(
              collective::ReductionAlgorithm::kHierarchical, member, topology, 4 * elements);
          return steps;
        },
        fabric);
    const double closed = cost::all_reduce_seconds(
        cluster, {.size = n}, 4 * static_cast<double>(elements), kHierarchical);
    const double error = closed / simulated - 1;
    squares += error * error;
    least = std::min(least, error);
    most = std::max(most, error);
    ++num;
  }
  MESSAGE(fmt::format("hierarchical: {:+.1f} to {:+.1f} %, rms {:.1f} %", 100 * least, 100 * most,
                      100 * std::sqrt(squares / num)));
  CHECK(std::sqrt(squares / num) < 0.2);
}

TEST_CASE("a step whose gradients are summed inside nodes first: closed form, simulation") {
  const cluster::Cluster cluster = cost::example::nodes();
  const model::Model model = cost::example::mixture(4);
  for (const int64_t ep : {1, 2, 4}) {
    strategy::Strategy s = cost::example::strategy(model, 1, ep, 16, 2);  // four nodes
    const auto seconds = [&] {
      const schedule::StepGraph step = schedule::write_step(model, s);
      const double simulated = sim::simulate(step, cost::price(step, model, s, cluster)).seconds();
      const double closed =
          cost::ExecutorEstimator(model, cluster, s.precision, s.sequence).exact(s).seconds;
      CAPTURE(ep);
      CHECK(std::abs(closed / simulated - 1) < 0.03);
      return simulated;
    };
    const double direct = seconds();
    s.reduction = kHierarchical;
    const double inside_first = seconds();
    if (ep == 1) CHECK(inside_first < direct);
  }
}

TEST_CASE(
    "gradients over nodes are summed inside them first, in one node directly; what is fixed "
    "stays") {
  const model::Model model = model::load_model("olmoe-1b-7b");
  const cluster::Cluster cluster = cluster::load_cluster("dgx-h100");
  const auto with = [](const strategy::Mesh& mesh) {
    return strategy::Strategy{.mesh = mesh, .precision = strategy::Precision::kBf16};
  };
  const auto choose = [&](const strategy::Mesh& mesh) {
    return cheaper_reduction(model, cluster, with(mesh));
  };
  CHECK(choose({.pp = 1, .ep = 8, .dp = 8}) == Reduction::kDirect);
  CHECK(choose({.pp = 1, .ep = 8, .dp = 64}) == kHierarchical);
  const auto seconds = [&](Reduction algorithm) {
    return reduction_seconds(model, cluster, with({.pp = 1, .ep = 8, .dp = 64}), algorithm);
  };
  CHECK(seconds(kHierarchical) < 0.8 * seconds(Reduction::kDirect));
  // With the pipeline inside a node its replicas sit one a node: there is nothing to sum inside.
  strategy::Strategy apart = with({.pp = 8, .ep = 1, .dp = 8});
  CHECK(cheaper_reduction(model, cluster, apart) == Reduction::kDirect);  // a node's ranks
  apart.placement = strategy::Placement::kPipelineInside;
  CHECK(reduction_seconds(model, cluster, apart, kHierarchical) ==
        reduction_seconds(model, cluster, apart, Reduction::kDirect));
  CHECK(
      reduction_seconds(model, cluster, apart, Reduction::kDirect) >
      2 * reduction_seconds(model, cluster, with({.pp = 8, .ep = 1, .dp = 8}), Reduction::kDirect));
  // Ranks that share matrices: replicas of a part are tp apart, two of a node of 8.
  const strategy::Strategy shared = with({.pp = 1, .ep = 1, .dp = 16, .tp = 4});
  CHECK(reduction_seconds(model, cluster, shared, kHierarchical) <
        reduction_seconds(model, cluster, shared, Reduction::kDirect));
  const ExampleWorld world("olmoe-1b-7b");
  Request request = world.request(64, 128);
  request.fixed.runnable = true;
  CHECK(search(request).ranked.front().strategy.reduction == kHierarchical);
  Request wide = world.request(128, 128);
  wide.fixed.runnable = true;
  wide.fixed.pp = 8;
  wide.fixed.ep = wide.fixed.etp = wide.fixed.tp = wide.fixed.cp = 1;
  wide.fixed.placement = strategy::Placement::kDataInside;  // 16 replicas on two nodes
  CHECK(search(wide).ranked.front().strategy.reduction == kHierarchical);
  wide.fixed.placement = strategy::Placement::kPipelineInside;  // one a node
  CHECK(search(wide).ranked.front().strategy.reduction == Reduction::kDirect);
  request.fixed.reduction = Reduction::kDirect;
  CHECK(search(request).ranked.front().strategy.reduction == Reduction::kDirect);
}

// Links so slow that sums are in the way of the stages' messages.
TEST_CASE("the search starts sums when a step is shortest, and the explanation has all three") {
  ExampleWorld world("piper-10m");
  world.cluster.kind = "cpu";  // priced as this Piper runs it
  world.cluster.levels = {{.name = "node", .num_members = 2, .link = {2e-4, 25e6}},
                          {.name = "rack",
                           .num_members = 2,
                           .link = {3e-4, 1.5e6},
                           .num_nics = 1,
                           .nic_bytes_per_second = 3e6}};
  Request request = world.request(4, 4);
  request.sequence = 128;
  request.precision = strategy::Precision::kFp32;
  request.fixed = {.pp = 2, .zero = 0, .runnable = true};
  REQUIRE(request.has_exact_costs());
  std::set<strategy::ReductionStart> chosen;
  for (const int64_t micro_batches : {1, 2}) {
    request.fixed.num_micro_batches = micro_batches;
    const Candidate best = search(request).ranked.front();
    chosen.insert(best.strategy.reduction_start);
    double least = best.estimate.seconds;
    for (const strategy::ReductionStart start : strategy::kReductionStarts) {
      request.fixed.reduction_start = start;
      const Candidate fixed = search(request).ranked.front();
      CHECK(fixed.strategy.reduction_start == start);
      least = std::min(least, fixed.estimate.seconds);
    }
    request.fixed.reduction_start.reset();
    CHECK(best.estimate.seconds <= least * (1 + kReductionTie));
    const std::string text = explain_reduction_start(*request.estimator(), best.strategy, 1);
    CHECK(text.find(strategy::name(best.strategy.reduction_start)) != std::string::npos);
  }
  CHECK(chosen != std::set{strategy::ReductionStart::kReady});
  strategy::Strategy divided = search(request).ranked.front().strategy;
  divided.zero = 2;
  CHECK(explain_reduction_start(*request.estimator(), divided, 1).empty());
}

}  // namespace piper::plan
