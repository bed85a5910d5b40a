#include <piper/collective/all_gather_direct.h>
#include <piper/collective/reduce_scatter_direct.h>
#include <piper/collective/reduction.h>
#include <piper/collective/reductions.h>
#include <testing/collective/exchange_cases.h>

namespace piper::collective {
namespace {

// The sum of a share over all members as an algorithm adds it up.
Piece sum_of(ReductionAlgorithm algorithm, const Topology& topology, const Block& share,
             Sums& sums) {
  const int64_t n = num_members(topology);
  const auto value = [&](int64_t m) {
    return Piece{share.count, static_cast<int32_t>(m), share.offset};
  };
  const auto plus = [&](Piece a, const Piece& b) { return a.label < 0 ? b : sums.add(a, b); };
  Piece total;
  switch (algorithm) {
    case ReductionAlgorithm::kDirect:
      for (int64_t m = 0; m < n; ++m) total = plus(total, value(m));
      break;
    case ReductionAlgorithm::kHierarchical: {
      const Units nodes(topology, 0);
      for (int64_t node = 0; node < nodes.num_units(); ++node) {
        Piece inside;
        for (const int32_t m : nodes.members(node)) inside = plus(inside, value(m));
        total = plus(total, inside);
      }
      break;
    }
  }
  return total;
}

using ReductionOf = MemberSteps (*)(ReductionAlgorithm, int64_t, const Topology&, int64_t);

Proof proof_of(ReductionOf reduction, ReductionAlgorithm algorithm, const Topology& topology,
               int64_t count, const ExpectedOf& expected) {
  return prove(
      topology, [&](int64_t m) { return reduction(algorithm, m, topology, count); }, true,
      expected);
}

// The own share is the sum.
ExpectedOf scattered(ReductionAlgorithm algorithm, const Topology& topology, int64_t count) {
  return [=](int64_t m, Sums& sums) -> std::vector<Expected> {
    const Block share = reduce_share(m, num_members(topology), count);
    if (share.count == 0) return {};
    return {{share.offset, sum_of(algorithm, topology, share, sums)}};
  };
}

ExpectedOf gathered(const Topology& topology, int64_t count) {
  return [=](int64_t, Sums&) {
    std::vector<Expected> expected;
    for (int64_t owner = 0; owner < num_members(topology); ++owner) {
      const Block share = reduce_share(owner, num_members(topology), count);
      if (share.count > 0)
        expected.push_back(
            {share.offset, {share.count, static_cast<int32_t>(owner), share.offset}});
    }
    return expected;
  };
}

// Every share is the sum; element by element, because algorithms differ in who owns what.
ExpectedOf reduced(ReductionAlgorithm algorithm, const Topology& topology, int64_t count) {
  return [=](int64_t, Sums& sums) {
    std::vector<Expected> expected;
    for (int64_t owner = 0; owner < num_members(topology); ++owner) {
      const Block share = reduce_share(owner, num_members(topology), count);
      if (share.count > 0)
        expected.push_back({share.offset, sum_of(algorithm, topology, share, sums)});
    }
    return expected;
  };
}

TEST_CASE("reductions by every algorithm are the stated sums, in the stated order") {
  for (const Topology& topology : small_topologies())
    for (const ReductionAlgorithm algorithm : kReductionAlgorithms)
      for (const int64_t count : {0, 1, 5, 29}) {
        CAPTURE(to_text(topology));
        CAPTURE(std::string(name(algorithm)));
        CAPTURE(count);
        CHECK(first_of(proof_of(reduce_scatter, algorithm, topology, count,
                                scattered(algorithm, topology, count))
                           .problems) == "");
        CHECK(first_of(proof_of(all_gather, algorithm, topology, count, gathered(topology, count))
                           .problems) == "");
        CHECK(first_of(proof_of(all_reduce, algorithm, topology, count,
                                reduced(algorithm, topology, count))
                           .problems) == "");
      }
}

TEST_CASE("a direct reduce-scatter in pieces is the same sum, with two slots of scratch") {
  for (const int64_t n : {1, 2, 5})
    for (const int64_t count : {0, 3, 40, 101})
      for (const int64_t piece : {1, 3, 4, 100}) {
        CAPTURE(n);
        CAPTURE(count);
        CAPTURE(piece);
        const Topology topology = apart(n);
        const StepsOf steps = [&](int64_t m) { return reduce_scatter_direct(m, n, count, piece); };
        CHECK(first_of(prove(topology, steps, true,
                             scattered(ReductionAlgorithm::kDirect, topology, count))
                           .problems) == "");
        for (int64_t m = 0; m < n; ++m) CHECK(steps(m).scratch_count <= 2 * (n - 1) * piece);
      }
}

TEST_CASE("shares of any sizes are summed and gathered as equal ones are") {
  for (const std::vector<int64_t>& counts :
       {std::vector<int64_t>{7}, {3, 0}, {0, 0, 5}, {2, 9, 0, 1}, {0, 0, 0}, {4, 4, 4}}) {
    const Topology topology = apart(std::ssize(counts));
    std::vector<Block> shares;
    int64_t all = 0;
    for (const int64_t count : counts) {
      shares.push_back({Buffer::kOutput, all, count});
      all += count;
    }
    for (const int64_t piece : {1, 3, 100}) {
      const StepsOf sums = [&](int64_t m) { return reduce_scatter_direct(m, counts, piece); };
      const ExpectedOf sum = [&](int64_t m, Sums& of) -> std::vector<Expected> {
        if (shares[m].count == 0) return {};
        return {{shares[m].offset, sum_of(ReductionAlgorithm::kDirect, topology, shares[m], of)}};
      };
      CHECK(first_of(prove(topology, sums, true, sum).problems) == "");
      for (int64_t m = 0; m < std::ssize(counts); ++m) CHECK(sums(m).output_count == all);
    }
    const StepsOf gather = [&](int64_t m) { return all_gather_direct(m, counts); };
    const ExpectedOf everything = [&](int64_t, Sums&) {
      std::vector<Expected> expected;
      for (size_t owner = 0; owner < counts.size(); ++owner)
        if (const Block& share = shares[owner]; share.count > 0)
          expected.push_back(
              {share.offset, {share.count, static_cast<int32_t>(owner), share.offset}});
      return expected;
    };
    CHECK(first_of(prove(topology, gather, true, everything).problems) == "");
  }
}

TEST_CASE(
    "what crosses: hierarchical algorithms send a node's sum, flat ones every member's values") {
  const int64_t nodes = 3, r = 4, n = nodes * r, count = 10 * n;
  const Topology topology = even_nodes(nodes, r);
  const auto traffic = [&](ReductionOf reduction, ReductionAlgorithm algorithm) {
    return proof_of(reduction, algorithm, topology, count,
                    [](int64_t, Sums&) { return std::vector<Expected>{}; })
        .by_level;
  };
  const int64_t m = nodes - 1;
  for (const ReductionOf half : {ReductionOf{reduce_scatter}, ReductionOf{all_gather}}) {
    CHECK(traffic(half, ReductionAlgorithm::kDirect)[1] == Traffic{n * m * r, n * m * r * 10});
    CHECK(traffic(half, ReductionAlgorithm::kHierarchical)[1] == Traffic{n * m, n * m * 10});
  }
  CHECK(traffic(all_gather, ReductionAlgorithm::kHierarchical)[0] ==
        Traffic{n * (r - 1) * nodes, n * (r - 1) * nodes * 10});
  // The shares that a member carries lie together: one message to each other member of the node.
  CHECK(traffic(all_reduce, ReductionAlgorithm::kHierarchical)[0].messages ==
        n * (r - 1) + n * (r - 1) * nodes);
  CHECK(traffic(all_reduce, ReductionAlgorithm::kHierarchical)[1] ==
        Traffic{2 * n * m, 2 * n * m * 10});
}

TEST_CASE("scratch of reductions is what the headers say") {
  const Topology topology = even_nodes(3, 4);
  const int64_t count = 120;  // shares of 10
  CHECK(reduce_scatter(ReductionAlgorithm::kDirect, 5, topology, count).scratch_count == 11 * 10);
  CHECK(all_reduce(ReductionAlgorithm::kHierarchical, 5, topology, count).scratch_count ==
        3 * 30 + 2 * 10);
  for (const ReductionAlgorithm algorithm : kReductionAlgorithms)
    CHECK(all_gather(algorithm, 5, topology, count).scratch_count == 0);
}

TEST_CASE("every step of the reductions is needed") {
  const Topology topology = nodes_of({2, 3, 1});
  const int64_t count = 13;
  for (const ReductionAlgorithm algorithm : kReductionAlgorithms)
    for (const ReductionOf reduction :
         {ReductionOf{reduce_scatter}, ReductionOf{all_gather}, ReductionOf{all_reduce}}) {
      const ExpectedOf expected =
          reduction == ReductionOf{reduce_scatter} ? scattered(algorithm, topology, count)
          : reduction == ReductionOf{all_gather}   ? gathered(topology, count)
                                                   : reduced(algorithm, topology, count);
      for (int64_t m = 0; m < 6; ++m) {
        const MemberSteps whole = reduction(algorithm, m, topology, count);
        for (size_t s = 0; s < whole.steps.size(); ++s) {
          CAPTURE(std::string(name(algorithm)));
          CAPTURE(m);
          CAPTURE(s);
          const StepsOf broken = [&](int64_t other) {
            return other == m ? without_step(whole, static_cast<int32_t>(s))
                              : reduction(algorithm, other, topology, count);
          };
          CHECK_FALSE(prove(topology, broken, true, expected).problems.empty());
        }
      }
    }
}

}  // namespace
}  // namespace piper::collective
