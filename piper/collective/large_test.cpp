#include <fmt/format.h>
#include <piper/collective/algorithms.h>

#include <chrono>
#include <cstdlib>

#include "exchange_cases.h"

namespace piper::collective {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int64_t kDenseNodes = 16, kSparseNodes = 64;  // ten times slower there
constexpr int64_t kUnevenNodes = 9, kLargestNodes = 64;
#else
constexpr int64_t kDenseNodes = 256, kSparseNodes = 500;
constexpr int64_t kUnevenNodes = 72, kLargestNodes = 1250;
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

TEST_CASE("a dense exchange of uneven counts among 576 is proven, by every algorithm") {
  for (const AllToAll algorithm : strategy::kAllToAlls)
    require_proven(algorithm, even_nodes(kUnevenNodes, kMembers, 4, 7), uneven());
}

TEST_CASE("a sparse exchange among 10,000 is proven by HALO over groups that differ in size") {
  const Topology topology = even_nodes(kLargestNodes, kMembers, 4, 7);
  require_proven(AllToAll::kHaloSwitch, topology, sparse(kLargestNodes * kMembers));
}

// Minutes: not in every run. docs/collectives.md has what it found.
TEST_CASE("with PIPER_LARGE: 2,048 dense and 10,000 sparse, uneven, by every algorithm") {
  if (std::getenv("PIPER_LARGE") == nullptr) return;
  for (const AllToAll algorithm : strategy::kAllToAlls)
    require_proven(algorithm, even_nodes(256, kMembers, 4, 7), uneven());
  for (const AllToAll algorithm : strategy::kAllToAlls) {
    if (algorithm == AllToAll::kFlat) continue;  // sends messages of nothing, too: 10^8 of them
    require_proven(algorithm, even_nodes(1250, kMembers, 4, 7), sparse(10000), 4);
  }
}

}  // namespace
}  // namespace piper::collective
