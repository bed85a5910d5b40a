// One pipeline stands for all: held against the simulation of all ranks, wherever it is claimed.
#include <doctest/doctest.h>
#include <piper/cost/prices.h>
#include <piper/sim/simulate.h>
#include <piper/sim/symmetry.h>
#include <piper/strategy/rank_layout.h>
#include <testing/cost/example_model.h>
#include <testing/cost/relative_approx.h>

namespace piper::sim {
namespace {

namespace priced = cost::example;

struct Simulated {
  schedule::StepGraph step;
  graph::Timeline timeline;
};

Simulated simulated(const model::Model& model, const strategy::Strategy& s,
                    const cluster::Cluster& cluster, const std::vector<Rank>& ranks) {
  Simulated p{schedule::write_step(model, s, ranks), {}};
  p.timeline = sim::simulate(p.step, cost::price(p.step, model, s, cluster));
  return p;
}

std::vector<double> ends(const Simulated& p, Rank rank) {
  std::vector<double> list;
  for (int stream = 0; stream < graph::kNumStreams; ++stream)
    for (const graph::TaskId id : p.step.graph.stream(rank, static_cast<graph::Stream>(stream)))
      list.push_back(p.timeline.tasks[id.index()].end_seconds);
  return list;
}

// Links so slow that the step is made of waiting for them.
cluster::Cluster slow_links() {
  cluster::Cluster c = priced::nodes();
  for (cluster::Level& level : c.levels) {
    level.link.bytes_per_second /= 1000;
    level.nic_bytes_per_second /= 1000;
  }
  return c;
}

// Every device has a NIC of its own: no port is shared, and only the levels of the groups decide.
cluster::Cluster own_cards() {
  cluster::Cluster c = slow_links();
  c.levels = {c.levels[0], c.levels[1]};
  c.levels[1].num_members = 4;
  c.levels[1].num_nics = 4;
  return c;
}

}  // namespace

TEST_CASE(
    "where one pipeline is said to stand for all, every task of every rank ends as it does there") {
  int64_t num_symmetric = 0, num_refused = 0;
  model::Model sharing = priced::mixture(4, true);
  for (model::Layer& layer : sharing.layers) layer.feed_forward.shared_ffn = 48;
  sharing.layers.front().feed_forward = {.ffn = 64};
  for (const cluster::Cluster& cluster : {priced::nodes(), slow_links(), own_cards()})
    for (const strategy::Mesh& mesh : std::vector<strategy::Mesh>{{1, 4, 4},
                                                                  {1, 4, 8},
                                                                  {1, 2, 16},
                                                                  {2, 2, 8},
                                                                  {2, 4, 4},
                                                                  {4, 2, 4},
                                                                  {4, 4, 4},
                                                                  {4, 2, 2},
                                                                  {2, 1, 2},
                                                                  {3, 2, 4},
                                                                  {2, 1, 6},
                                                                  {1, 2, 6},
                                                                  {2, 2, 6},
                                                                  {4, 1, 3}})
      for (const auto recompute : {strategy::Recompute::kNone, strategy::Recompute::kFull}) {
        strategy::Strategy s = priced::strategy(sharing, mesh.pp, mesh.ep, mesh.dp, 3);
        s.recompute = recompute;
        CAPTURE(mesh.pp);
        CAPTURE(mesh.ep);
        CAPTURE(mesh.dp);
        if (!why_not_symmetric(s, cluster).empty()) {
          ++num_refused;
          continue;
        }
        ++num_symmetric;
        const Simulated all = simulated(sharing, s, cluster, {});
        const Simulated one = simulated(
            sharing, s, cluster, strategy::RankLayout(s).group(strategy::Axis::kPipeline, Rank(0)));
        int64_t num_different = 0;
        for (int64_t rank = 0; rank < s.mesh.world(); ++rank) {
          const Rank stands_for(rank / s.mesh.dp * s.mesh.dp);
          const std::vector<double> a = ends(all, Rank(rank)), b = ends(one, stands_for);
          REQUIRE(a.size() == b.size());
          for (size_t i = 0; i < a.size(); ++i) num_different += !(a[i] == cost::near(b[i]));
          CHECK(all.timeline.peak_bytes[static_cast<size_t>(rank)] ==
                one.timeline.peak_bytes[stands_for.index()]);
        }
        CHECK(num_different == 0);
      }
  CHECK(num_symmetric > 20);
  CHECK(num_refused > 8);
}

TEST_CASE("what is not symmetric is said in words") {
  const model::Model model = priced::mixture(4);
  cluster::Cluster cluster = priced::nodes();
  const auto why = [&](int64_t pp, int64_t ep, int64_t dp) {
    return why_not_symmetric(priced::strategy(model, pp, ep, dp), cluster);
  };
  CHECK(why(2, 2, 4).empty());
  CHECK(why_not_symmetric(priced::strategy(model, 2, 1, 6), own_cards()) ==
        "ranks 0 and 4 of stage 0 have reductions of experts over different levels");
  CHECK(why(2, 1, 3) == "a port of level group serves 2 devices, a stage has 3");
  cluster.cores_per_node = 2;
  CHECK(why(2, 2, 4) == "ranks share cores");
}

}  // namespace piper::sim
