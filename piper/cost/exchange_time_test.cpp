#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/cost/exchange_time.h>
#include <testing/cost/example_model.h>
#include <testing/cost/relative_approx.h>

namespace piper::cost {
namespace {

std::vector<Rank> ranks(const Group& group) {
  std::vector<Rank> members;
  for (int64_t i = 0; i < group.size; ++i) members.push_back(Rank(group.device(i)));
  return members;
}

}  // namespace

TEST_CASE("devices of a node share its NICs") {
  const cluster::Cluster cluster = example::nodes();
  CHECK(device_bandwidth(cluster, 0) == 100e9);
  CHECK(device_bandwidth(cluster, 1) == 5e9);  // 2 NICs of 10 GB/s for 4 devices, not the link's 50
  CHECK(device_bandwidth(cluster, 2) == 2e9);
}

TEST_CASE("an exchange takes as long as its busiest level, and the latency of the outermost") {
  const cluster::Cluster cluster = example::nodes();
  // In the node: 3 messages of 1 MB at 100 GB/s.
  CHECK(all_to_all_seconds(cluster, {.size = 4}, 1e6) == near(1e-6 + 30e-6));
  // Two nodes: 4 messages leave each device at 5 GB/s; the 3 inside travel meanwhile.
  CHECK(all_to_all_seconds(cluster, {.size = 8}, 1e6) == near(5e-6 + 800e-6));
  // All: 8 messages to the other group at 2 GB/s; through the NIC go 12 MB, 2.4 ms.
  CHECK(all_to_all_seconds(cluster, {.size = 16}, 1e6) == near(10e-6 + 4000e-6));
  // Every fourth device: one a node.
  CHECK(all_to_all_seconds(cluster, {.stride = 4, .size = 2}, 1e6) == near(5e-6 + 200e-6));
  CHECK(all_to_all_seconds(cluster, {.size = 1}, 1e6) == 0);
}

TEST_CASE("a group that straddles two nodes pays for the member with the fewest neighbours") {
  const cluster::Cluster cluster = example::nodes();
  // Devices 3, 4, 5: device 3 sends both messages out.
  CHECK(all_to_all_seconds(cluster, {.first = 3, .size = 3}, 1e6) == near(5e-6 + 400e-6));
}

TEST_CASE("uneven equals even when all pairs are equal, and the busiest member counts when not") {
  const cluster::Cluster cluster = example::nodes();
  for (const Group group :
       {Group{.size = 2}, Group{.size = 4}, Group{.first = 1, .size = 7}, Group{.size = 16}}) {
    const auto n = static_cast<size_t>(group.size);
    CAPTURE(n);
    const std::vector<double> even(n * n, 2e6);
    CHECK(all_to_all_seconds(cluster, ranks(group), even) ==
          near(all_to_all_seconds(cluster, group, 2e6)));
  }
  // Everything to member 0: it receives three messages of 4 MB.
  std::vector<double> hot(16, 0.0);
  for (size_t from = 0; from < 4; ++from) hot[from * 4] = 4e6;
  CHECK(all_to_all_seconds(cluster, ranks({.size = 4}), hot) == near(1e-6 + 120e-6));
}

TEST_CASE("members behind one NIC have their shares of it together") {
  const cluster::Cluster cluster = example::nodes();
  // From node 0 (devices 0 to 3, two a NIC) 8 MB to device 4 and nothing to its neighbour 5: both
  // shares of the NIC, 10 GB/s, are its.
  const auto hot = [&](const std::vector<Rank>& members) {
    std::vector<double> bytes(members.size() * members.size(), 0.0);
    for (size_t from = 0; from < 4; ++from) bytes[from * members.size() + 4] = 2e6;
    return all_to_all_seconds(cluster, members, bytes);
  };
  CHECK(hot(ranks({.size = 8})) == near(5e-6 + 800e-6));
  // A neighbour that is not of the group keeps its share.
  CHECK(hot(ranks({.size = 5})) == near(5e-6 + 1600e-6));
}

TEST_CASE("groups of an axis under either placement are read alike from ranks and from a layout") {
  using strategy::Axis;
  for (const strategy::Mesh& mesh : {strategy::Mesh{.pp = 2, .ep = 2, .dp = 4},
                                     {.pp = 4, .ep = 4, .dp = 2, .tp = 2},
                                     {.pp = 2, .ep = 2, .dp = 4, .etp = 2, .tp = 2, .cp = 2},
                                     {.pp = 3, .dp = 5}})
    for (const strategy::Placement placement : strategy::kPlacements) {
      const strategy::RankLayout layout(mesh, placement);
      for (const Axis axis :
           {Axis::kExpert, Axis::kExpertTensor, Axis::kTensorExpert, Axis::kTensor, Axis::kContext,
            Axis::kData, Axis::kExpertData, Axis::kStage})
        for (const Rank rank : layout.world()) {
          const std::vector<Rank> members = layout.group(axis, rank);
          CAPTURE(name(axis));
          CHECK(ranks(group_of(layout, axis, rank)) == members);
          CHECK(ranks(group_of(members)) == members);
        }
    }
  CHECK_THROWS_AS(group_of(std::vector{Rank(0), Rank(1), Rank(4), Rank(6)}), InternalError);
}

TEST_CASE("a reduction over runs of ranks is divided by nodes as over equally spaced ones") {
  const cluster::Cluster cluster = example::nodes();  // four devices a node
  const auto ways = [&](const Group& group) {
    return reduction_ways(cluster, group, 8e6, strategy::Reduction::kHierarchical);
  };
  // Two of each of four nodes; pairs of nodes; one node of two.
  const ReductionWays pairs = ways({0, 1, 8, 2, 4});
  CHECK(ranks(pairs.inside.group) == std::vector{Rank(0), Rank(1)});
  CHECK(ranks(pairs.across.group) == std::vector{Rank(0), Rank(4), Rank(8), Rank(12)});
  const ReductionWays whole = ways({0, 1, 8, 4, 8});
  CHECK(ranks(whole.inside.group) == ranks({.size = 4}));
  CHECK(ranks(whole.across.group) == std::vector{Rank(0), Rank(8)});
  const ReductionWays halves = ways({0, 1, 12, 6, 8});  // 4 and 2 a node: not even, taken as even
  CHECK(halves.inside.group.size == 1);
  CHECK(ranks(Group{0, 1, 8, 4, 8}.part(1, 2, 4)) ==
        std::vector{Rank(1), Rank(3), Rank(9), Rank(11)});
}

TEST_CASE("messages beyond the first that leave a node cost a gap each") {
  cluster::Cluster cluster = example::nodes();
  cluster.numbers["message_gap_seconds"] = 1e-3;
  CHECK(all_to_all_seconds(cluster, {.size = 8}, 0) == near(5e-6 + 3e-3));
  cluster.numbers.clear();
  CHECK(all_to_all_seconds(cluster, {.size = 8}, 0) == near(5e-6 + 3 * kMessageGapSeconds));
}

TEST_CASE("a measured exchange is taken at its word inside a node") {
  cluster::Cluster cluster = example::nodes();
  cluster.numbers["all_to_all_latency_seconds"] = 2e-3;
  cluster.numbers["all_to_all_bytes_per_second"] = 1e9;
  CHECK(all_to_all_seconds(cluster, {.size = 4}, 1e6) == near(2e-3 + 3e-3));
  CHECK(all_to_all_seconds(cluster, {.size = 8}, 1e6) == near(5e-6 + 800e-6));
}

TEST_CASE("a reduction is two exchanges of shares and the additions between them") {
  const cluster::Cluster cluster = example::nodes();
  // 4 MB over 4: shares of 1 MB; additions read 2 and write 1 of 3 MB at 100 GB/s.
  CHECK(all_reduce_seconds(cluster, {.size = 4}, 4e6) == near(2 * 31e-6 + 90e-6));
  CHECK(all_reduce_seconds(cluster, {.size = 1}, 4e6) == 0);
}

TEST_CASE("a message between stages crosses the level that holds both devices") {
  const cluster::Cluster cluster = example::nodes();
  CHECK(point_to_point_seconds(cluster, 0, 1, 1e6) == near(11e-6));
  CHECK(point_to_point_seconds(cluster, 0, 4, 1e6) == near(205e-6));
  CHECK(point_to_point_seconds(cluster, 0, 8, 1e6) == near(510e-6));
}

TEST_CASE("rows that come the same from everywhere: the short form is the matrix written out") {
  cluster::Cluster cluster = example::nodes();
  uint64_t state = 7;
  for (const Group& group : {Group{0, 1, 4},
                             {0, 1, 16},
                             {2, 1, 9},
                             {0, 4, 4},
                             {1, 3, 5},
                             {5, 1, 2},
                             {0, 1, 4, 2, 4},
                             {1, 2, 6, 2, 5},
                             {2, 1, 8, 2, 4},
                             {0, 1, 7, 3, 6}})
    for (const bool measured : {false, true}) {
      cluster.numbers.erase("all_to_all_bytes_per_second");
      if (measured) cluster.numbers["all_to_all_bytes_per_second"] = 3e9;
      CAPTURE(group.first);
      CAPTURE(group.size);
      CAPTURE(measured);
      std::vector<Rank> members;
      std::vector<double> to_bytes, matrix;
      for (int64_t i = 0; i < group.size; ++i) {
        members.emplace_back(group.device(i));
        state = state * 6364136223846793005 + 1442695040888963407;
        to_bytes.push_back(static_cast<double>(state >> 44));
      }
      for (int64_t i = 0; i < group.size; ++i)
        matrix.insert(matrix.end(), to_bytes.begin(), to_bytes.end());
      CHECK(all_to_all_seconds(cluster, group, std::span<const double>(to_bytes)) ==
            near(all_to_all_seconds(cluster, members, matrix)));
      // The same of the peers at some distances alone.
      for (int64_t first = 0; first < group.size; ++first)
        for (int64_t count = 0; first + count <= group.size; ++count) {
          std::vector<double> part = matrix;
          for (int64_t from = 0; from < group.size; ++from)
            for (int64_t to = 0; to < group.size; ++to)
              if (!strategy::is_in_group(group.size, {first, count}, from, to))
                part[static_cast<size_t>(from * group.size + to)] = 0;
          const double seconds =
              all_to_all_seconds(cluster, group, std::span<const double>(to_bytes), {first, count});
          if (count > 1 || (count == 1 && first > 0))
            CHECK(seconds == near(all_to_all_seconds(cluster, members, part)));
          else
            CHECK(seconds == 0);  // what stays on the rank
        }
    }
}

}  // namespace piper::cost
