// MoNTA's rule for long contexts, and where it says nothing.
#include <doctest/doctest.h>
#include <piper/strategy/rank_layout.h>
#include <studies/paper/monta_expansion.h>

#include <algorithm>
#include <set>

using namespace piper;
using namespace piper::studies::paper::monta;

TEST_CASE("horizontal below ep where the switch reaches, vertical from ep on, else silent") {
  CHECK(expansion(2, 8, 16) == Expansion::kHorizontal);
  CHECK(expansion(2, 8, 15) == Expansion::kSilent);
  CHECK(expansion(8, 8, 1) == Expansion::kVertical);
  CHECK(expansion(7, 4, 64) == Expansion::kVertical);
  CHECK(expansion(1, 1, 1) == Expansion::kVertical);
}

TEST_CASE(
    "orthogonal groups need cp x ep nodes on one network, aligned ones the larger of the two") {
  CHECK(connected_nodes(Expansion::kHorizontal, 2, 8) == 16);
  CHECK(connected_nodes(Expansion::kVertical, 2, 8) == 8);
  CHECK(connected_nodes(Expansion::kVertical, 7, 4) == 7);
}

TEST_CASE("the sentence says which condition decided") {
  CHECK(why(2, 8, 16) == "horizontal: cp 2 is less than ep 8, and 16 nodes on a switch hold 2 x 8");
  CHECK(why(8, 4, 16) == "vertical: cp 8 is at least ep 4, so 8 nodes suffice");
  CHECK(why(2, 8, 15) ==
        "the rule is silent: cp 2 is less than ep 8, and 15 nodes on a switch do not hold 2 x 8");
}

TEST_CASE("Piper's layout is the vertical expansion, also where the rule says horizontal") {
  constexpr int64_t kTp = 8;  // a node, as in Fig. 12
  for (const int64_t cp : {1, 2, 4, 8})
    for (const int64_t ep : {1, 2, 4, 8}) {
      const int64_t dp = std::max(cp, ep) / cp;
      const strategy::RankLayout layout(
          strategy::Mesh{.ep = ep, .dp = dp, .etp = kTp, .tp = kTp, .cp = cp});
      std::set<int64_t> nodes;
      for (const strategy::Axis axis : {strategy::Axis::kContext, strategy::Axis::kExpert})
        for (const Rank rank : layout.group(axis, layout.rank(0, 0)))
          nodes.insert(rank.value / kTp);
      CHECK(static_cast<int64_t>(nodes.size()) == connected_nodes(Expansion::kVertical, cp, ep));
    }
}
