// The group that decides a collective's price, found by formula, is the worst of all that a mesh
// makes.
#include <doctest/doctest.h>
#include <piper/cost/exchange_time.h>
#include <piper/cost/trainer/trainer_estimator.h>
#include <piper/model/import.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>

namespace piper::cost {
namespace {

using strategy::Axis;

// Nodes of `devices`, racks of `nodes`, joined by less and less.
cluster::Cluster racks(int64_t devices, int64_t nodes, int64_t num_racks) {
  cluster::Cluster c = cluster::load_cluster("dgx-h100");
  c.numbers.erase("ring_bytes_per_second");
  c.levels.resize(1);
  c.levels[0].num_members = devices;
  c.levels.push_back({.name = "rack", .num_members = nodes, .link = {5e-6, 20e9}});
  c.levels.push_back({.name = "hall", .num_members = num_racks, .link = {9e-6, 3e9}});
  return c;
}

// Where a rank sits when each rack gives as many of its nodes as hold whole groups, or an equal
// share of one; all of them where not one rack can.
int64_t device_of(const cluster::Cluster& c, int64_t block, int64_t rank) {
  const int64_t rack = c.devices_of_level(1), whole = std::lcm(c.devices_of_level(0), block);
  const int64_t racks_of_block = (block + rack - 1) / rack;
  const bool is_shared = racks_of_block > 1 && block % racks_of_block == 0 &&
                         block / racks_of_block % c.devices_of_level(0) == 0;
  const int64_t taken = whole <= rack ? rack / whole * whole
                        : is_shared   ? block / racks_of_block
                                      : rack;
  return rank / taken * rack + rank % taken;
}

// Over every group of the axis: the highest level crossed, and by level the fewest members in one
// unit of the level below, of groups that cross the level.
struct Counted {
  size_t level = 0;
  std::map<size_t, double> inside;
};

Counted counted(const cluster::Cluster& c, const strategy::RankLayout& layout, Axis axis) {
  Counted all;
  const int64_t block = layout.size(axis) * layout.distance(axis);
  for (int64_t r = 0; r < layout.num_ranks(); ++r) {
    std::vector<Rank> group = layout.group(axis, Rank(r));
    for (Rank& rank : group) rank = Rank(device_of(c, block, rank.value));
    size_t level = 0;
    for (const Rank other : group)
      level = std::max(level, c.common_level(group.front().value, other.value));
    all.level = std::max(all.level, level);
    for (size_t l = 1; l <= level; ++l) {
      std::map<int64_t, double> members;
      for (const Rank other : group) ++members[other.value / c.devices_of_level(l - 1)];
      for (const auto& [unit, count] : members) {
        double& fewest = all.inside.try_emplace(l, count).first->second;
        fewest = std::min(fewest, count);
      }
    }
  }
  return all;
}

}  // namespace

TEST_CASE("a collective costs what its worst group takes, on any machine and mesh") {
  std::mt19937_64 random(20261129);
  const auto draw = [&](std::vector<int64_t> of) { return of[random() % of.size()]; };
  int64_t num_straddling = 0;
  for (int i = 0; i < 400; ++i) {
    const cluster::Cluster c =
        racks(draw({1, 3, 4, 6, 8, 12}), draw({1, 2, 3, 5}), /*num_racks=*/512);
    strategy::Mesh mesh{.pp = draw({1, 2, 3}),
                        .dp = draw({1, 2, 3, 4, 6}),
                        .tp = draw({1, 2, 3, 4, 8}),
                        .cp = draw({1, 1, 2, 3})};
    const int64_t members = mesh.ranks_per_stage();
    do mesh.ep = draw({1, 2, 3, 4, 6, 8}), mesh.etp = draw({1, 1, 2, 4});
    while (members % (mesh.ep * mesh.etp) != 0);
    const strategy::RankLayout layout(mesh);
    const Rates rates = Rates(c, strategy::Precision::kBf16).among(mesh.world());
    for (const Axis axis : {Axis::kTensor, Axis::kContext, Axis::kData, Axis::kExpertTensor,
                            Axis::kExpert, Axis::kTensorExpert, Axis::kExpertData}) {
      const int64_t size = layout.size(axis), stride = layout.distance(axis);
      if (size == 1) continue;
      CAPTURE(strategy::name(axis));
      CAPTURE(size);
      CAPTURE(stride);
      CAPTURE(c.levels[0].num_members);
      const Counted of = counted(c, layout, axis);
      CHECK(rates.link_of(size, stride) == c.levels[of.level].name);
      const double n = static_cast<double>(size), bytes = 1e9;
      double ring = bytes * (n - 1) / n / c.levels[0].link.bytes_per_second;
      double exchange = bytes * (n - 1) / n / device_bandwidth(c, 0);
      for (const auto& [level, inside] : of.inside) {
        const double share = device_bandwidth(c, level);
        ring = std::max(ring, bytes * (n - 1) / n / (share * inside));
        exchange = std::max(exchange, bytes * (n - inside) / n / share);
      }
      CHECK(rates.all_gather(size, stride, bytes).transfer == doctest::Approx(ring));
      CHECK(rates.all_to_all(size, stride, bytes, 1).transfer == doctest::Approx(exchange));
      num_straddling += c.common_level(0, (size - 1) * stride) < of.level ? 1 : 0;
    }
  }
  CHECK(num_straddling > 50);
}

TEST_CASE("groups of 64 in racks of 72: 64 are taken of each, while there are racks enough") {
  cluster::Cluster large = racks(4, 18, 64), small = racks(4, 18, 4);
  large.levels[2].link.bytes_per_second = 1e8;
  const Rates many(large, strategy::Precision::kBf16), few(small, strategy::Precision::kBf16);
  CHECK(many.among(256).link_of(64, 1) == std::string("rack"));
  CHECK(few.among(256).link_of(64, 1) == std::string("rack"));
  CHECK(few.link_of(48, 1) == std::string("hall"));  // of all 288 no rack takes whole ones alone
  CHECK(few.among(192).link_of(48, 1) == std::string("rack"));
  CHECK(many.link_of(80, 1) == std::string("hall"));
  // 64 of each: as many speak through what leads out of a rack.
  CHECK(many.among(256).all_gather(128, 1, 1e9).transfer ==
        doctest::Approx(1e9 * 127 / 128 / (device_bandwidth(large, 2) * 64)));
}

TEST_CASE("six devices a node: tensor parallelism of 4 pays for the network, of 3 it does not") {
  const cluster::Cluster c = racks(6, 2, 2);
  const Rates all(c, strategy::Precision::kBf16);
  CHECK(all.link_of(3, 1) == std::string("node"));
  CHECK(all.link_of(4, 1) == std::string("rack"));
  // Ranks 0 .. 3 of a job of four have their node alone; of eight, 4 .. 7 lie in two.
  CHECK(all.among(4).link_of(4, 1) == std::string("node"));
  CHECK(all.among(8).link_of(4, 1) == std::string("rack"));
  // A whole step knows it too.
  const model::Model model = model::load_model("mixtral-8x7b");
  const TrainerProfile trainer = load_trainer("piper");
  const auto seconds = [&](int64_t nodes, int64_t devices) {
    const cluster::Cluster machine = racks(devices, nodes, 1);
    TrainerEstimator estimator(model, machine, trainer, strategy::Precision::kBf16, 4096);
    strategy::Strategy s;
    s.mesh = {.ep = 2, .dp = 6, .tp = 4};
    s.layers_per_stage = {model.num_layers()};
    s.schedule = strategy::PipelineSchedule::k1F1B;
    s.precision = strategy::Precision::kBf16;
    s.sequence = 4096;
    s.micro_batch_sequences = 1;
    s.num_micro_batches = 4;
    s.global_batch_sequences = 24;
    return estimator.estimate(s).time.tensor;
  };
  const double straddling = seconds(4, 6), whole = seconds(6, 4), wide = seconds(2, 12);
  CHECK(straddling > 3 * whole);
  CHECK(straddling > 3 * wide);
}

}  // namespace piper::cost
