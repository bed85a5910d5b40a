#include <piper/base/error.h>
#include <piper/collective/ring_hop.h>
#include <testing/collective/exchange_cases.h>

namespace piper::collective {
namespace {

constexpr int64_t kCount = 12;

TEST_CASE("a hop brings each member all that the one before it has, in one message") {
  for (const Topology& topology : small_topologies()) {
    const int64_t n = num_members(topology);
    if (n == 1) continue;
    CAPTURE(to_text(topology));
    const StepsOf steps = [&](int64_t m) { return ring_hop(m, n, kCount); };
    const Proof proof = prove(topology, steps, false, [&](int64_t m, Sums&) {
      return std::vector<Expected>{{0, {kCount, static_cast<int32_t>((m + n - 1) % n), 0}}};
    });
    CHECK(first_of(proof.problems) == "");
    CHECK(proof.max_scratch == 0);
    for (int64_t m = 0; m < n; ++m) CHECK(ring_hop(m, n, kCount).steps.size() == 2);
  }
  CHECK_THROWS_AS(ring_hop(0, 1, kCount), InternalError);
}

}  // namespace
}  // namespace piper::collective
