#include <doctest/doctest.h>
#include <fmt/format.h>
#include <piper/cost/estimator.h>
#include <piper/cost/executor_estimator.h>
#include <piper/model/import.h>
#include <piper/placement/placed_steps.h>
#include <piper/placement/placement_cases.h>
#include <testing/cost/relative_approx.h>

#include <algorithm>

namespace piper::placement {
namespace {

using cost::near;

strategy::Strategy strategy_of_stages(const model::Model& model, int64_t pp, int64_t ep,
                                      int64_t dp) {
  strategy::Strategy s;
  s.mesh = {.pp = pp, .ep = ep, .dp = dp};
  s.layers_per_stage = strategy::even_split(model.num_layers(), pp);
  s.sequence = 1024;
  s.micro_batch_sequences = 1;
  s.num_micro_batches = 4;
  s.global_batch_sequences = 4 * dp;
  return s;
}

}  // namespace

// A byte takes 1 / 100 s inside a node, 1 / 10 across nodes, 1 / 5 across switches, 1 across racks.
TEST_CASE("an axis is busy as long as the busiest member of its slowest group") {
  const cluster::Allocation two = example_places::allocation({{0, 0}, {0, 0}}, {4, 4});
  const Slots slots = slots_of(two);
  const RankSlots order{0, 1, 2, 3, 4, 5, 6, 7};
  const auto busy = [&](Axis axis, bool is_ring, std::vector<int32_t> ranks,
                        const RankSlots& placement) {
    const std::vector<RankGroup> groups{{axis, is_ring, 10, std::move(ranks)}};
    return busy_seconds(two.machine, slots, groups, placement)[static_cast<size_t>(axis)];
  };
  CHECK(busy(Axis::kExpert, false, {0, 1, 2, 3}, order) == near(3 * 0.1));
  // Three here, one there: the one says all of its bytes to the other node.
  CHECK(busy(Axis::kExpert, false, {1, 2, 3, 4}, order) == near(3 * 1.0));
  CHECK(busy(Axis::kExpert, false, {2, 3, 4, 5}, order) == near(2 * 1.0));
  CHECK(busy(Axis::kData, true, {0, 1, 2, 3}, order) == near(0.1));
  // Both members of a node carry what leaves it.
  CHECK(busy(Axis::kData, true, {2, 3, 4, 5}, order) == near(0.5));
  CHECK(busy(Axis::kExpert, false, {0, 1, 2, 3}, {0, 4, 1, 5, 2, 6, 3, 7}) == near(2.0));
}

TEST_CASE(
    "on a machine as assumed nothing changes; torn groups cost what they expose, placed ones "
    "less") {
  model::Model model = model::load_model("piper-10m");
  const strategy::Strategy s = strategy_of_stages(model, 1, 8, 24);
  const ExposedSeconds exposed{.exchange = 1};
  const auto place = [&](const std::vector<std::vector<int>>& paths) {
    const cluster::Allocation allocation =
        example_places::allocation(paths, std::vector<int64_t>(paths.size(), 4));
    return place_step(allocation, slots_of(allocation), model, s, exposed, 10);
  };
  // Six nodes, two a switch: each expert group of two nodes has its own.
  const PlacedStep whole = place({{0, 0}, {0, 0}, {1, 1}, {1, 1}, {2, 2}, {2, 2}});
  CHECK(whole.given_seconds == near(10));
  CHECK(whole.seconds == near(10));
  // The same switches, listed in turns: as given every group crosses racks.
  const PlacedStep torn = place({{0, 0}, {1, 1}, {2, 2}, {0, 0}, {1, 1}, {2, 2}});
  CHECK(torn.given_seconds > 12);
  CHECK(torn.seconds == near(10));
  CHECK(std::ranges::is_permutation(torn.placing.ranks, whole.placing.ranks));
  // Nothing exposed, nothing lost.
  const cluster::Allocation any = example_places::allocation({{0, 0}, {1, 1}, {0, 0}}, {4, 4, 4});
  CHECK(place_step(any, slots_of(any), model, strategy_of_stages(model, 1, 4, 12), {}, 3).seconds ==
        near(3));
}

// Nodes of a job on Frontier's shape with cabinets whose uplinks are thinner, as a scheduler may
// hand them out.
TEST_CASE("a placed step is never longer than as given or as placed by bytes, wherever nodes lie") {
  const model::Model model = model::load_model("qwen3-30b-a3b");
  cluster::Cluster machine = cluster::load_cluster("frontier");
  machine.levels[2].link.bytes_per_second /= 4;
  struct Job {
    const char* name;
    std::vector<int> switches;  // by node; two of a cabinet
    std::vector<int64_t> slots;
  };
  const std::vector<int64_t> whole(8, 8), uneven{8, 4, 8, 8, 4, 8, 8, 8, 8};
  const std::vector<Job> jobs{{"packed", {0, 0, 0, 0, 1, 1, 1, 1}, whole},
                              {"in turns over switches", {0, 1, 0, 1, 0, 1, 0, 1}, whole},
                              {"in turns over cabinets", {0, 2, 4, 0, 2, 4, 0, 2}, whole},
                              {"torn", {0, 0, 0, 1, 3, 3, 3, 3}, whole},
                              {"uneven nodes", {0, 2, 0, 2, 0, 2, 0, 2, 0}, uneven}};
  double most_gained = 0;
  for (const Job& job : jobs)
    for (const auto& [pp, ep] : {std::pair<int64_t, int64_t>{1, 8}, {1, 16}, {1, 32}, {2, 16}}) {
      cluster::GroupsOfNodes groups;
      std::vector<std::string> names;
      for (size_t n = 0; n < job.switches.size(); ++n) {
        names.push_back(fmt::format("n{}", n));
        groups[names.back()] = {fmt::format("s{}", job.switches[n]),
                                fmt::format("c{}", job.switches[n] / 2)};
      }
      const cluster::Allocation allocation = cluster::allocate(machine, names, groups, job.slots);
      strategy::Strategy s = strategy_of_stages(model, pp, ep, 64 / pp);
      s.num_micro_batches = pp;
      s.global_batch_sequences = pp * s.mesh.dp;
      s.all_to_all = strategy::AllToAll::kNodeAware;
      const cost::Estimate e = cost::to_estimate(
          cost::ExecutorEstimator(model, machine, s.precision, s.sequence).exact(s));
      const PlacedStep step = place_step(allocation, slots_of(allocation), model, s,
                                         exposed_of(e.time), e.seconds, {.max_swaps = 300'000});
      MESSAGE(fmt::format("{}, pp {}, ep {}: {:.3f} s as given, {:.3f} by bytes, {:.3f} placed",
                          job.name, pp, ep, step.given_seconds, step.by_bytes_seconds,
                          step.seconds));
      CHECK(step.seconds <= step.given_seconds);
      CHECK(step.seconds <= step.by_bytes_seconds);
      most_gained = std::max(most_gained, 1 - step.seconds / step.by_bytes_seconds);
    }
  CHECK(most_gained > 0.1);
}

}  // namespace piper::placement
