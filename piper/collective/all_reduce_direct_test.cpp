#include <doctest/doctest.h>
#include <piper/collective/all_reduce_direct.h>
#include <piper/collective/verify.h>

namespace piper::collective {
namespace {

TEST_CASE(
    "a direct all-reduce is the ascending sum for every group size and for counts that do not "
    "divide") {
  for (const int64_t n : {1, 2, 3, 4, 7, 8})
    for (const int64_t count : {0, 1, 3, 8, 29}) {
      std::vector<MemberSteps> members;
      for (int64_t m = 0; m < n; ++m) members.push_back(all_reduce_direct(m, n, count));
      CAPTURE(n);
      CAPTURE(count);
      CHECK(verify_all_reduce(members, count).empty());
    }
}

TEST_CASE("the shares of a reduction are contiguous and differ by one element at most") {
  int64_t offset = 0;
  for (int64_t m = 0; m < 7; ++m) {
    const Block share = reduce_share(m, 7, 24);  // 24 = 3 * 4 + 4 * 3
    CHECK(share.offset == offset);
    CHECK(share.count == (m < 3 ? 4 : 3));
    offset += share.count;
  }
  CHECK(offset == 24);
}

TEST_CASE(
    "a direct all-reduce sends twice the others' part of the data and needs the others' shares as "
    "scratch") {
  const MemberSteps steps = all_reduce_direct(2, 4, 80);  // shares of 20
  int64_t sent = 0;
  for (const Step& step : steps.steps)
    if (step.kind == StepKind::kSend) sent += step.source.count;
  CHECK(sent == 2 * 60);
  CHECK(steps.scratch_count == 3 * 20);
}

}  // namespace
}  // namespace piper::collective
