// Routes of tokens that the tests of deduplicated exchanges share.
#pragma once

#include <piper/collective/halo_dedup.h>

#include <cstdint>
#include <random>
#include <set>
#include <vector>

namespace piper::collective {

using Routes = std::vector<TokenRoutes>;  // by member

// k experts a token, drawn among `experts` on each member; some members without tokens, some
// tokens without experts.
inline Routes random_routes(int64_t n, int64_t k, uint32_t seed) {
  std::mt19937 random(seed);
  Routes routes(n);
  for (TokenRoutes& own : routes) {
    const int64_t num_tokens = static_cast<int64_t>(random() % 9) - 1;
    for (int64_t token = 0; token < num_tokens; ++token) {
      std::set<int32_t> targets;
      const int64_t chosen = random() % 7 == 0 ? 0 : k;
      for (int64_t i = 0; i < chosen; ++i)
        targets.insert(static_cast<int32_t>(random() % static_cast<uint32_t>(n)));
      own.add(std::vector<int32_t>(targets.begin(), targets.end()));
    }
  }
  return routes;
}

// Only what the others tell it.
inline DedupKnown known_to(int64_t member, const Routes& routes, const Units& units,
                           int64_t num_pieces) {
  return {.own = routes[member],
          .into_unit = [&routes, &units, member](
                           int64_t from) { return routes_told(routes[from], from, member, units); },
          .rows =
              [&routes, &units, member, num_pieces](int64_t from) {
                return counts_told(routes[from], from, member, units, num_pieces);
              }};
}

}  // namespace piper::collective
