// Messages between stages travel over the links that their ranks are joined by, whichever stages.
#include <doctest/doctest.h>
#include <piper/cost/trainer/trainer_estimator.h>
#include <piper/model/import.h>

#include <algorithm>
#include <random>

namespace piper::cost {
namespace {

using strategy::Placement;
using strategy::Strategy;

// Two sites of four nodes of eight, joined by little.
cluster::Cluster two_sites(double bytes_per_second) {
  cluster::Cluster c = cluster::load_cluster("dgx-h100");
  c.levels.resize(1);
  c.levels.push_back({.name = "site", .num_members = 4, .link = {5e-6, 50e9}});
  c.levels.push_back({.name = "wan", .num_members = 2, .link = {1e-2, bytes_per_second}});
  return c;
}

struct MessagesWorld {
  explicit MessagesWorld(double bytes_per_second) : cluster(two_sites(bytes_per_second)) {}
  TrainerEstimator estimator() const {
    return {model, cluster, trainer, strategy::Precision::kBf16, 4096};
  }
  Strategy strategy(int64_t pp, strategy::PipelineSchedule schedule, int64_t vpp) const {
    Strategy s;
    s.mesh.pp = pp, s.mesh.dp = 64 / pp, s.mesh.ep = 2, s.mesh.vpp = vpp;
    s.layers_per_stage = strategy::even_split(model.num_layers(), pp * vpp);
    s.schedule = schedule;
    s.precision = strategy::Precision::kBf16;
    s.zero = 1;
    s.sequence = 4096;
    s.micro_batch_sequences = 1;
    s.num_micro_batches = 16 * pp;
    s.global_batch_sequences = s.mesh.dp * s.num_micro_batches;
    return s;
  }

  model::Model model = model::load_model("mixtral-8x7b");
  cluster::Cluster cluster;
  TrainerProfile trainer = load_trainer("piper");
};

}  // namespace

TEST_CASE("the level between two stages is the highest of any two ranks that speak") {
  std::mt19937_64 random(20261128);
  const auto draw = [&](std::vector<int64_t> of) { return of[random() % of.size()]; };
  for (int i = 0; i < 400; ++i) {
    cluster::Cluster c = two_sites(1e9);
    c.levels[0].num_members = draw({1, 3, 4, 6, 8});
    c.levels[1].num_members = draw({1, 2, 5, 4});
    c.levels[2].num_members = 256;
    const strategy::Mesh mesh{
        .pp = draw({1, 2, 3, 4, 8}), .dp = draw({1, 2, 3, 6}), .tp = draw({1, 2, 4})};
    const strategy::RankLayout layout(
        mesh, draw({0, 1}) == 0 ? Placement::kDataInside : Placement::kPipelineInside);
    const Rates rates(c, strategy::Precision::kBf16);
    for (int64_t from = 0; from < mesh.pp; ++from)
      for (int64_t to = 0; to < mesh.pp; ++to) {
        if (from == to) continue;
        size_t highest = 0;
        for (int64_t member = 0; member < layout.num_members(); ++member)
          highest = std::max(highest, c.common_level(layout.rank(from, member).value,
                                                     layout.rank(to, member).value));
        CHECK(rates.level_between(layout, from, to) == highest);
      }
  }
}

TEST_CASE("no step is shorter than what its busiest link has to carry, estimated or simulated") {
  constexpr double kLink = 1e8;
  const MessagesWorld slow(kLink), fast(50e9);
  using Schedule = strategy::PipelineSchedule;
  for (const auto& [pp, schedule, vpp] : {std::tuple{2, Schedule::k1F1B, 1},
                                          {4, Schedule::k1F1B, 1},
                                          {8, Schedule::k1F1B, 1},
                                          {4, Schedule::kGPipe, 1},
                                          {4, Schedule::kZbH1, 1},
                                          {4, Schedule::kInterleaved, 2},
                                          {4, Schedule::kDualPipeV, 2},
                                          {8, Schedule::kZbV, 2}}) {
    CAPTURE(pp);
    CAPTURE(strategy::name(schedule));
    const Strategy s = slow.strategy(pp, schedule, vpp);
    // Hidden states of a micro-batch, in bf16, each way.
    const double link = static_cast<double>(s.num_micro_batches * vpp) * 2 * 4096 *
                        static_cast<double>(slow.model.hidden) / kLink;
    TrainerEstimator on_slow = slow.estimator(), on_fast = fast.estimator();
    const Estimate e = on_slow.estimate(s);
    CHECK(e.seconds >= link);
    CHECK(e.time.total() == doctest::Approx(e.seconds));
    CHECK(on_slow.simulated_seconds(s) >= 0.9 * link);
    CHECK(e.seconds > 1.5 * on_fast.estimate(s).seconds);
    // What a search leaves out by a bound is no faster, wherever it would put the stages.
    for (const Placement placement : strategy::kPlacements) {
      Strategy placed = s;
      placed.placement = placement;
      const double seconds = on_slow.estimate(placed).seconds * (1 + 1e-9);
      CHECK(on_slow.bound_of_split(s) <= seconds);
      CHECK(on_slow.bound_of_schedule(s) <= seconds);
    }
  }
}

}  // namespace piper::cost
