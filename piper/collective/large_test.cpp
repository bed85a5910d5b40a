#include <fmt/format.h>
#include <piper/collective/algorithms.h>
#include <testing/collective/exchange_cases.h>
#include <tests/switches.h>

#include <chrono>

namespace piper::collective {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int64_t kDenseNodes = 16, kSparseNodes = 64;  // ten times slower there
constexpr testing::Repetitions kUnevenNodes{9, 9}, kAllSparseNodes{10, 10};
constexpr int64_t kLargestNodes = 64;
#else
constexpr int64_t kDenseNodes = 256, kSparseNodes = 500;
// In full: 2,048 and 10,000 members, some twelve minutes. docs/collectives.md has what it found.
constexpr testing::Repetitions kUnevenNodes{72, 256}, kAllSparseNodes{80, 1250};
constexpr int64_t kLargestNodes = 1250;
#endif
constexpr int64_t kMembers = 8;  // of a node

Proof prove_algorithm(AllToAll algorithm, const Topology& topology, const CountOf& count,
                      int64_t chunk = kUncut) {
  return prove_all_to_all(
      topology,
      [&](int64_t m) { return all_to_all(algorithm, m, topology, count, {.chunk = chunk}); },
      count);
}

TEST_CASE("a dense exchange among 2,048 is proven, flat and by HALO, and costs what it should") {
  const Topology topology = even_nodes(kDenseNodes, kMembers, 4, 16);
  const int64_t n = kDenseNodes * kMembers, remote = kDenseNodes - 1, d = 6;
  const CountOf count = [](int64_t, int64_t) { return int64_t{6}; };
  const Proof flat = prove_algorithm(AllToAll::kNodeAware, topology, count);
  CHECK(first_of(flat.problems) == "");
  CHECK(flat.by_level[1].messages + flat.by_level[2].messages == n * remote * kMembers);
  CHECK(flat.max_scratch == 0);
  const Proof halo = prove_algorithm(AllToAll::kHalo, topology, count);
  CHECK(first_of(halo.problems) == "");
  CHECK(halo.by_level[1].messages + halo.by_level[2].messages == n * remote);
  CHECK(halo.by_level[1].units + halo.by_level[2].units == n * remote * kMembers * d);
  CHECK(halo.by_level[0].messages == n * (kMembers - 1) * (remote + 1));
  CHECK(halo.max_scratch == remote * kMembers * d);
}

TEST_CASE("a sparse exchange among 4,000 is proven over three levels and in chunks") {
  const Topology topology = even_nodes(kSparseNodes, kMembers, 4, 16);
  const int64_t n = kSparseNodes * kMembers;
  const CountOf count = [=](int64_t from, int64_t to) -> int64_t {
    const int64_t distance = (to - from + n) % n;
    return distance % (n / 32) == from % 3 ? 5 + to % 3 : 0;
  };
  for (const AllToAll algorithm : {AllToAll::kHalo, AllToAll::kThreeLevel}) {
    const Proof proof = prove_algorithm(algorithm, topology, count, 4);
    CAPTURE(std::string(strategy::name(algorithm)));
    CHECK(first_of(proof.problems) == "");
  }
}

CountOf uneven() {
  return [](int64_t from, int64_t to) { return 1 + (from * 7 + to * 3) % 5; };
}

// Some 32 targets a member; groups of nodes that differ in size.
CountOf sparse(int64_t n) {
  return [=](int64_t from, int64_t to) -> int64_t {
    const int64_t distance = (to - from + n) % n;
    return distance % (n / 32) == from % 3 ? 5 + to % 3 : 0;
  };
}

void require_proven(AllToAll algorithm, const Topology& topology, const CountOf& count,
                    int64_t chunk = kUncut) {
  const auto begin = std::chrono::steady_clock::now();
  const Proof proof = prove_algorithm(algorithm, topology, count, chunk);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  CAPTURE(std::string(strategy::name(algorithm)));
  CHECK(first_of(proof.problems) == "");
  MESSAGE(fmt::format("{} among {}: {} steps, {:.1f} s", strategy::name(algorithm),
                      num_members(topology), proof.num_steps, took.count()));
}

TEST_CASE(
    "a dense exchange of uneven counts among 576, in full 2,048, is proven by every algorithm") {
  for (const AllToAll algorithm : strategy::kAllToAlls)
    require_proven(algorithm, even_nodes(repetitions(kUnevenNodes), kMembers, 4, 7), uneven());
}

TEST_CASE("a sparse exchange among 10,000 is proven by HALO over groups that differ in size") {
  const Topology topology = even_nodes(kLargestNodes, kMembers, 4, 7);
  require_proven(AllToAll::kHaloSwitch, topology, sparse(kLargestNodes * kMembers));
}

TEST_CASE("a sparse exchange among 640, in full 10,000, is proven in chunks by every algorithm") {
  const int64_t nodes = repetitions(kAllSparseNodes);
  for (const AllToAll algorithm : strategy::kAllToAlls) {
    // It sends messages of nothing, too: 10^8 of them among 10,000.
    if (algorithm == AllToAll::kFlat && testing::full_counts()) continue;
    require_proven(algorithm, even_nodes(nodes, kMembers, 4, 7), sparse(nodes * kMembers), 4);
  }
}

}  // namespace
}  // namespace piper::collective
