#include <doctest/doctest.h>
#include <piper/comm/exchange_limit.h>

namespace piper::comm {
namespace {

// 2 nodes of 2 ranks; one or two NICs.
collective::Topology nodes(bool two_cards) {
  return {.unit = {{0, 0, 1, 1}},
          .nic = two_cards ? std::vector<int32_t>{0, 1, 0, 1} : std::vector<int32_t>{}};
}

TEST_CASE("an even exchange is bounded by its NICs: 4 pairs leave each node") {
  const auto even = [](int64_t, int64_t) { return 1000; };
  CHECK(exchange_limit(nodes(false), even, 4, {.inner = 1e6, .nic = 1e6}) ==
        doctest::Approx(4 * 1000 / 1e6));
  CHECK(exchange_limit(nodes(true), even, 4, {.inner = 1e6, .nic = 1e6}) ==
        doctest::Approx(2 * 1000 / 1e6));
}

TEST_CASE("a slow port within the node bounds it, and what nobody counts does not") {
  const auto even = [](int64_t, int64_t) { return 1000; };
  CHECK(exchange_limit(nodes(false), even, 4, {.inner = 1e5, .nic = 1e6}) ==
        doctest::Approx(1000 / 1e5));
  CHECK(exchange_limit(nodes(false), even, 4, {}) == 0);
}

TEST_CASE("a hot rank's bytes may enter through all NICs of its node") {
  // Rank 0 receives 1000 from each rank of the other node, nothing else moves.
  const auto hot = [](int64_t from, int64_t to) { return to == 0 && from >= 2 ? 1000 : 0; };
  CHECK(exchange_limit(nodes(true), hot, 4, {.inner = 1e9, .nic = 1e6}) ==
        doctest::Approx(2000 / 2e6));
}

TEST_CASE("a thin uplink bounds what leaves its rack") {
  const collective::Topology racks{.unit = {{0, 1, 2, 3}, {0, 0, 1, 1}}};
  const auto even = [](int64_t, int64_t) { return 1000; };
  CHECK(exchange_limit(racks, even, 4, {.nic = 1e6, .uplink = {5e5}}) ==
        doctest::Approx(4 * 1000 / 5e5));
}

}  // namespace
}  // namespace piper::comm
