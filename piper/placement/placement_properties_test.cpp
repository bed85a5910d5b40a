// Properties of placements over random topologies. RC_PARAMS="seed=... max_success=..." tries
// others; a failure prints the smallest case and its seed.
#include <doctest/doctest.h>
#include <piper/placement/place_ranks.h>
#include <rapidcheck.h>

#include <cstdlib>
#include <set>

#include "placement_cases.h"

namespace piper::placement {

TEST_CASE(
    "on any topology every rank has a slot of its own, and no placement is dearer than given") {
  setenv("RC_PARAMS", "seed=20261 max_success=300", 0);
  CHECK(rc::check("placements", [] {
    std::mt19937 random(*rc::gen::arbitrary<uint32_t>());
    const auto most = *rc::gen::resize(100, rc::gen::inRange<int64_t>(1, 80));
    const example_places::Case c = example_places::any_case(random, most);
    const Slots slots = slots_of(c.allocation);
    const Placing placing =
        place_ranks(slots, c.groups, c.num_ranks, {.max_swaps = 20'000, .max_branches = 2'000});
    RC_ASSERT(std::ssize(placing.ranks) == c.num_ranks);
    std::set<int32_t> used(placing.ranks.begin(), placing.ranks.end());
    RC_ASSERT(std::ssize(used) == c.num_ranks);
    RC_ASSERT(*used.begin() >= 0 && *used.rbegin() < slots.size());
    std::map<int32_t, int64_t> on_node;
    for (const int32_t slot : used) ++on_node[slots.node[static_cast<size_t>(slot)]];
    for (const auto& [node, count] : on_node)
      RC_ASSERT(count <= c.allocation.nodes[static_cast<size_t>(node)].num_slots);
    RC_ASSERT(placing.seconds <= placing.given_seconds);
    RC_ASSERT(placing.seconds >= placing.least_seconds * (1 - 1e-9));
    const PlacementPrice price = price_placement(slots, c.groups, placing.ranks);
    RC_ASSERT(std::abs(price.seconds - placing.seconds) <= 1e-9 * placing.seconds);
    // Nothing crosses an outer boundary that does not cross those inside of it.
    for (size_t level = 2; level < price.bytes.by_level.size(); ++level)
      RC_ASSERT(price.bytes.total(level) <= price.bytes.total(level - 1) * (1 + 1e-9));
  }));
}

}  // namespace piper::placement
