#include <doctest/doctest.h>
#include <piper/cost/trainer/schedule_facts.h>
#include <piper/schedule/host_copies.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace piper::cost {
namespace {

using strategy::PipelineSchedule;
using strategy::Strategy;

// The end of the whole list, from the action on that completes the first of the chunks.
std::vector<schedule::Action> end_of(const std::vector<schedule::Action>& list, int64_t vpp) {
  std::vector<bool> is_complete(static_cast<size_t>(vpp));
  for (size_t i = list.size(); i-- > 0;) {
    if (schedule::makes_weight_gradients(list[i].kind))
      is_complete[static_cast<size_t>(list[i].chunk)] = true;
    if (std::ranges::count(is_complete, true) == vpp)
      return {list.begin() + static_cast<std::ptrdiff_t>(i), list.end()};
  }
  return list;
}

void check(PipelineSchedule schedule, int64_t pp, int64_t vpp, int64_t m) {
  CAPTURE(strategy::name(schedule));
  CAPTURE(pp);
  CAPTURE(vpp);
  CAPTURE(m);
  const Strategy s{.mesh = {.pp = pp, .vpp = vpp}, .schedule = schedule, .num_micro_batches = m};
  ScheduleFacts facts;
  for (int64_t rank = 0; rank < pp; ++rank) {
    const auto list = schedule::actions(schedule, pp, rank, m, vpp);
    const auto copies = schedule::host_copies(schedule, pp, vpp, m, rank);
    const ListFacts& found = facts.lists(s)[static_cast<size_t>(rank)];
    const auto pairs = std::ranges::count(list, true, &schedule::Action::pairs_with_next);
    CHECK(found.paired == static_cast<double>(pairs) / static_cast<double>(m * vpp));
    CHECK(found.held == static_cast<double>(copies.most_held) / static_cast<double>(vpp));
    for (int64_t chunk = 0; chunk < vpp; ++chunk) {
      const auto i = static_cast<size_t>(chunk);
      CHECK(found.copied[i] == std::count(copies.is_copied.begin() + chunk * m,
                                          copies.is_copied.begin() + (chunk + 1) * m, 1));
      const auto whole = std::ranges::count_if(list, [&](const schedule::Action& a) {
        return a.chunk == chunk && a.kind == schedule::Action::Kind::kBackward;
      });
      CHECK(found.whole[i] == static_cast<double>(whole) / static_cast<double>(m));
    }
    const std::vector<schedule::Action> end = end_of(list, vpp);
    const Tail& tail = facts.tail(s, rank);
    REQUIRE(tail.size() == end.size());
    const int32_t fewer = end.back().micro_batch - tail.back().action.micro_batch;
    for (size_t i = 0; i < end.size(); ++i) {
      schedule::Action expected = end[i];
      expected.micro_batch -= fewer;
      CHECK(tail[i].action == expected);
    }
  }
}

}  // namespace

TEST_CASE("facts of a schedule with many micro-batches are those of its whole lists") {
  for (const PipelineSchedule schedule : strategy::kPipelineSchedules)
    for (const int64_t pp : {1, 2, 3, 4, 7})
      for (const int64_t vpp : {1, 2, 3}) {
        const bool is_v = strategy::is_v(schedule);
        if (is_v ? vpp != 2 || pp == 1 : vpp > 1 && (!strategy::interleaves(schedule) || pp == 1))
          continue;
        if (vpp == 1 && strategy::interleaves(schedule)) continue;
        for (int64_t m = 1; m <= 14 * (pp + 1); m += m < 8 ? 1 : 3) {
          if (strategy::interleaves(schedule) && m % pp != 0) continue;
          check(schedule, pp, vpp, m);
        }
        check(schedule, pp, vpp, 60 * pp);
      }
}

TEST_CASE("facts of a schedule cost no more with millions of micro-batches") {
  ScheduleFacts facts;
  const Strategy s{.mesh = {.pp = 8}, .num_micro_batches = int64_t{1} << 40};
  CHECK(facts.tail(s, 7).size() == 1);
  CHECK(facts.lists(s)[0].whole[0] == 1);
}

}  // namespace piper::cost
