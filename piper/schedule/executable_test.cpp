#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/schedule/executable.h>

using namespace piper;
using namespace piper::schedule;
using strategy::PipelineSchedule;
using Kind = Action::Kind;

namespace {

std::vector<int64_t> chunk_counts(PipelineSchedule schedule) {
  if (strategy::is_v(schedule)) return {2};
  if (strategy::interleaves(schedule)) return {1, 2, 3, 5};
  return {1};
}

using Lists = std::vector<std::vector<Action>>;

// The first line about a two-rank 1F1B of two micro-batches after `break_it`.
template <class Break>
std::string first_problem_of(Break break_it) {
  Lists lists = all_actions(PipelineSchedule::k1F1B, 2, 2);  // F0 F1 B0 B1; F0 B0 F1 B1
  break_it(lists);
  const std::vector<std::string> lines = execution_problems(PipelineSchedule::k1F1B, lists, 2);
  return lines.empty() ? "" : lines.front();
}

}  // namespace

TEST_CASE("every schedule is executable on any number of ranks with any number of micro-batches") {
  for (const PipelineSchedule schedule : strategy::kPipelineSchedules)
    for (const int64_t vpp : chunk_counts(schedule))
      for (const int64_t pp : {1, 2, 3, 4, 7, 8})
        for (const int64_t m : {1, 2, 3, 4, 6, 7, 8, 13, 14, 15, 16, 17, 33}) {
          CAPTURE(std::string(strategy::name(schedule)));
          CAPTURE(pp);
          CAPTURE(m);
          CAPTURE(vpp);
          CHECK(execution_problems(schedule, all_actions(schedule, pp, m, vpp), m, vpp) ==
                std::vector<std::string>{});
        }
}

TEST_CASE("the order of need holds every action once, each behind what it needs") {
  const Lists lists = all_actions(PipelineSchedule::kDualPipeV, 4, 9, 2);
  const auto order = topological_order(PipelineSchedule::kDualPipeV, lists, 9, 2);
  Lists again(4);
  for (const RankAction& a : order) again[static_cast<size_t>(a.rank)].push_back(a.action);
  CHECK(again == lists);
  for (size_t i = 0; i + 1 < order.size(); ++i)
    if (order[i].action.pairs_with_next) {
      CHECK(order[i + 1].rank == order[i].rank);
    }
}

TEST_CASE("what is wrong with a list is said by rank and action") {
  CHECK(first_problem_of([](Lists&) {}).empty());
  CHECK(first_problem_of([](Lists& l) { l[1].pop_back(); }) ==
        "rank 1: micro-batch 1 of chunk 0 is not complete");
  CHECK(first_problem_of([](Lists& l) {
          l[0].push_back({Kind::kForward, 0});
        }) == "rank 0: F0 runs twice");
  CHECK(first_problem_of([](Lists& l) { std::swap(l[1][0], l[1][1]); }) ==
        "rank 1: B0 stands before its forward");
  CHECK(first_problem_of([](Lists& l) {
          l[0].push_back({Kind::kForward, 0, 1});
        }) == "rank 0: F0 of chunk 1 does not exist");
  CHECK(first_problem_of([](Lists& l) { l[0][0].pairs_with_next = true; }) ==
        "rank 0: F0 is no pair with what follows");
  CHECK(first_problem_of([](Lists& l) {
          l[0] = {{Kind::kForward, 0},
                  {Kind::kForward, 1},
                  {Kind::kBackwardWeights, 0},
                  {Kind::kBackwardInput, 0},
                  {Kind::kBackward, 1}};
        }) == "rank 0: W0 stands before the input's part");
}

TEST_CASE("ranks that wait for each other are a deadlock, with what each waits to do") {
  CHECK(first_problem_of([](Lists& l) {
          l[0] = {
              {Kind::kForward, 0}, {Kind::kBackward, 0}, {Kind::kForward, 1}, {Kind::kBackward, 1}};
          l[1] = {
              {Kind::kForward, 0}, {Kind::kForward, 1}, {Kind::kBackward, 0}, {Kind::kBackward, 1}};
        }) == "deadlock: rank 0 at B0, rank 1 at F1");
  // A pair begins when both halves can: here F1 for B0, which waits for F1's own way down.
  Lists pair = {
      {{Kind::kForward, 0},
       {Kind::kForward, 1, 0, true},
       {Kind::kBackward, 0},
       {Kind::kBackward, 1}},
      {{Kind::kForward, 0}, {Kind::kForward, 1}, {Kind::kBackward, 0}, {Kind::kBackward, 1}}};
  CHECK(execution_problems(PipelineSchedule::k1F1B, pair, 2) ==
        std::vector<std::string>{"deadlock: rank 0 at F1, rank 1 at F1"});
  CHECK_THROWS_AS(topological_order(PipelineSchedule::k1F1B, pair, 2), InternalError);
}
