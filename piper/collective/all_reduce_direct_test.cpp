#include <doctest/doctest.h>
#include <piper/collective/all_reduce_direct.h>
#include <testing/collective/verify.h>

namespace piper::collective {
namespace {

void check_sum(int64_t n, int64_t count, int64_t piece) {
  std::vector<MemberSteps> members;
  for (int64_t m = 0; m < n; ++m) members.push_back(all_reduce_direct(m, n, count, piece));
  CAPTURE(n);
  CAPTURE(count);
  CAPTURE(piece);
  CHECK(verify_all_reduce(members, count).empty());
}

TEST_CASE(
    "a direct all-reduce is the ascending sum for every group size, counts that do not divide and "
    "pieces that do not divide") {
  for (const int64_t n : {1, 2, 3, 4, 7, 8})
    for (const int64_t count : {0, 1, 3, 8, 29})
      for (const int64_t piece : {int64_t{1}, int64_t{3}, kWholeShare}) check_sum(n, count, piece);
  check_sum(2, 23, 3);  // shares of 12 and 11: four pieces each, more than there are slots
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
  CHECK(all_reduce_direct(2, 4, 80, 6).scratch_count == 2 * 3 * 6);
}

}  // namespace
}  // namespace piper::collective
