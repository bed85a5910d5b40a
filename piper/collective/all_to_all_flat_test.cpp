#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/collective/all_to_all_flat.h>
#include <testing/collective/verify.h>

#include <random>

namespace piper::collective {
namespace {

using Counts = std::vector<std::vector<int64_t>>;

std::vector<MemberSteps> write_all(const Counts& counts) {
  std::vector<MemberSteps> members;
  for (size_t m = 0; m < counts.size(); ++m) {
    std::vector<int64_t> received;
    for (const auto& row : counts) received.push_back(row[m]);
    members.push_back(all_to_all_flat(static_cast<int64_t>(m), counts[m], received));
  }
  return members;
}

TEST_CASE("a flat exchange is right for every group size and for uneven counts with zeros") {
  std::mt19937 random(7);
  for (const size_t n : {1, 2, 3, 4, 7, 8}) {
    Counts counts(n, std::vector<int64_t>(n));
    for (auto& row : counts)
      for (int64_t& count : row)
        count = std::max<int64_t>(0, static_cast<int64_t>(random() % 9) - 3);
    CAPTURE(n);
    CHECK(verify_all_to_all(write_all(counts), counts).empty());
  }
}

TEST_CASE(
    "a flat exchange is right when one member receives everything, and when nothing is sent") {
  Counts hot(7, std::vector<int64_t>(7));
  CHECK(verify_all_to_all(write_all(hot), hot).empty());
  for (auto& row : hot) row[3] = 11;
  CHECK(verify_all_to_all(write_all(hot), hot).empty());
}

TEST_CASE("at every distance of the order each member is the target of one sender") {
  const size_t n = 7;
  const Counts counts(n, std::vector<int64_t>(n, 1));
  const std::vector<MemberSteps> members = write_all(counts);
  for (size_t turn = 0; turn + 1 < n; ++turn) {
    std::vector<int> hits(n);
    for (const MemberSteps& member : members) ++hits[member.steps[n - 1 + turn].peer];
    CHECK(hits == std::vector<int>(n, 1));
  }
}

TEST_CASE("a member that disagrees with itself is refused") {
  const std::vector<int64_t> sent{1, 2}, received{3, 2};
  CHECK_THROWS_AS(all_to_all_flat(0, sent, received), InternalError);
}

}  // namespace
}  // namespace piper::collective
