#include <doctest/doctest.h>
#include <piper/collective/dispatch_combine_counts.h>
#include <testing/collective/verify.h>

#include <algorithm>

namespace piper::collective {
namespace {

// Uneven, and not symmetric.
int64_t count(int64_t from, int64_t to) { return (from * 7 + to * 3) % 5; }

// What `member` may know: its own row, what others have for it, and what it was told.
CountOf known_to(int64_t member, const DispatchCombineCounts& told, bool back) {
  return [=, &told](int64_t from, int64_t to) {
    const int64_t f = back ? to : from, t = back ? from : to;
    const bool knows = f == member || t == member ||
                       (!told.empty() && std::ranges::binary_search(told.to_hear(f), t));
    CHECK_MESSAGE(knows, "member " << member << " needs count(" << f << ", " << t << ")");
    return count(f, t);
  };
}

}  // namespace

TEST_CASE("what members are told is enough to write every exchange, there and back") {
  for (const Topology& topology : {even_nodes(3, 2), even_nodes(2, 4, 2), even_nodes(4, 3, 1, 2),
                                   even_nodes(1, 5), Topology{{{0, 0, 0, 1, 1, 2}}, {}}})
    for (const AllToAll algorithm : strategy::kAllToAlls) {
      const int64_t n = num_members(topology);
      std::vector<std::vector<int64_t>> out, back;
      for (int64_t f = 0; f < n; ++f) {
        out.emplace_back();
        back.emplace_back();
        for (int64_t t = 0; t < n; ++t) {
          out.back().push_back(count(f, t));
          back.back().push_back(count(t, f));
        }
      }
      std::vector<MemberSteps> there, here;
      for (int64_t m = 0; m < n; ++m) {
        const DispatchCombineCounts told(algorithm, m, topology);
        there.push_back(all_to_all(algorithm, m, topology, known_to(m, told, false)));
        here.push_back(all_to_all(algorithm, m, topology, known_to(m, told, true)));
      }
      CAPTURE(strategy::name(algorithm));
      CHECK(verify_all_to_all(there, out).empty());
      CHECK(verify_all_to_all(here, back).empty());
    }
}

TEST_CASE("both ends list the same counts, and exchanges that do not forward list none") {
  const Topology topology = even_nodes(3, 3);
  for (const AllToAll algorithm : strategy::kAllToAlls) {
    if (!forwards(algorithm)) {
      CHECK(DispatchCombineCounts(algorithm, 4, topology).empty());
      continue;
    }
    for (int64_t a = 0; a < 9; ++a)
      for (int64_t b = 0; b < 9; ++b)
        CHECK(DispatchCombineCounts(algorithm, a, topology).to_tell(b) ==
              DispatchCombineCounts(algorithm, b, topology).to_hear(a));
  }
}

}  // namespace piper::collective
