// Which activations leave for the host, in what order, and what stays: held to the plain rules,
// action by action.
#include <doctest/doctest.h>
#include <piper/schedule/action.h>
#include <piper/schedule/host_copies.h>

#include <algorithm>
#include <set>

using namespace piper;
using namespace piper::schedule;
using strategy::PipelineSchedule;

TEST_CASE(
    "copies to the host: every one that leaves comes back before it is needed, and few are held") {
  for (const PipelineSchedule schedule : strategy::kPipelineSchedules)
    for (const int64_t p : {1, 2, 4, 8})
      for (const int64_t rounds : {1, 2, 5}) {
        const int64_t vpp = strategy::is_v(schedule) ? 2 : strategy::interleaves(schedule) ? 3 : 1;
        const int64_t m = p * rounds;
        for (int64_t stage = 0; stage < p; ++stage) {
          CAPTURE(strategy::name(schedule));
          CAPTURE(p);
          CAPTURE(m);
          CAPTURE(stage);
          const HostCopies copies = host_copies(schedule, p, vpp, m, stage);
          const std::vector<Action> list = schedule::actions(schedule, p, stage, m, vpp);
          const auto index = [&](const Action& a) {
            return static_cast<size_t>(a.chunk * m + a.micro_batch);
          };
          std::vector<int32_t> back(copies.is_copied.size(), HostCopies::kNone);
          for (const HostCopies::Back& b : copies.back) {
            CHECK(back[static_cast<size_t>(b.which)] == HostCopies::kNone);  // once
            back[static_cast<size_t>(b.which)] = b.place;
          }
          CHECK(std::ranges::is_sorted(copies.back, {}, &HostCopies::Back::place));
          std::vector<int32_t> forward(back.size(), -1), running;
          int64_t num_copied = 0, in_flight = 0, most_in_flight = 0;
          for (const Action& a : list) {
            if (a.kind == Action::Kind::kForward) ++in_flight;
            most_in_flight = std::max(most_in_flight, in_flight);
            if (makes_weight_gradients(a.kind)) --in_flight;
          }
          for (int32_t i = 0; i < static_cast<int32_t>(list.size()); ++i) {
            const Action& a = list[static_cast<size_t>(i)];
            const size_t which = index(a);
            if (a.kind == Action::Kind::kForward) {
              forward[which] = i;
              if (const int32_t before = copies.starts_behind[which]; before >= 0) {
                CHECK(copies.is_copied[which]);
                CHECK(forward[static_cast<size_t>(before)] >= 0);
                CHECK(copies.is_copied[static_cast<size_t>(before)]);
              }
            }
            if (!schedule::makes_input_gradient(a.kind)) continue;
            CHECK(copies.is_copied[which] == (i > forward[which] + 3));
            CHECK((back[which] >= 0) == (copies.is_copied[which] != 0));
            if (back[which] < 0) continue;
            ++num_copied;
            CHECK(back[which] >= forward[which]);
            // A pair is one: nothing is posted between its two.
            const bool is_second = i > 0 && list[static_cast<size_t>(i - 1)].pairs_with_next;
            CHECK(back[which] < i - (is_second ? 1 : 0));
            CHECK(back[which] >= i - 4);
          }
          CHECK(copies.copied_part ==
                doctest::Approx(static_cast<double>(num_copied) / static_cast<double>(m * vpp)));
          CHECK(copies.most_held <= most_in_flight + (num_copied > 0 ? 3 : 0));
          if (schedule == PipelineSchedule::kGPipe && m >= 8) CHECK(copies.most_held <= 6);
          if (schedule == PipelineSchedule::k1F1B && p == 8 && stage == 0)
            CHECK(copies.most_held <= 5);
        }
      }
}
