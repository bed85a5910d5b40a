// Steps that are written to be simulated only: several chunks a rank, backwards in two parts.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <piper/base/error.h>
#include <piper/schedule/step.h>
#include <piper/strategy/runnable.h>
#include <testing/schedule/example_model.h>

#include <algorithm>
#include <map>

using namespace piper;
using namespace piper::schedule;
using graph::Phase;
using graph::Task;
using strategy::PipelineSchedule;
using strategy::Recompute;

namespace {

int64_t chunks_of(PipelineSchedule schedule) {
  return strategy::is_v(schedule) ? 2 : strategy::interleaves(schedule) ? 3 : 1;
}

struct Case {
  model::Model model;
  strategy::Strategy strategy;
};

// One layer a virtual stage, a mixture in every second one when ep > 1.
Case small(PipelineSchedule schedule, int64_t pp, int64_t m, int64_t ep = 1,
           Recompute recompute = Recompute::kNone) {
  const int64_t layers = pp * chunks_of(schedule);
  std::vector<int64_t> experts(static_cast<size_t>(layers));
  for (size_t i = 0; i < experts.size(); ++i) experts[i] = ep > 1 && i % 2 == 0 ? 2 * ep : 0;
  Case c{example::model(experts),
         example::strategy({.pp = pp, .ep = ep, .dp = 2 * ep}, layers, m, schedule, recompute)};
  c.strategy.mesh.vpp = chunks_of(schedule);
  c.strategy.layers_per_stage.assign(static_cast<size_t>(layers), 1);
  return c;
}

StepGraph write(const Case& c) { return write_step(c.model, c.strategy); }

bool all_freed(const StepGraph& step) {
  std::vector<int> freed(step.graph.slots().size());
  for (const Task& task : step.graph.tasks())
    for (const graph::SlotId slot : step.graph.frees(task)) ++freed[slot.index()];
  return std::ranges::all_of(freed, [](int times) { return times == 1; });
}

}  // namespace

TEST_CASE("every schedule is written as a sound graph without deadlock, every slot freed once") {
  for (const PipelineSchedule schedule : strategy::kPipelineSchedules)
    for (const int64_t pp : {1, 2, 4})
      for (const int64_t m : {1, 4, 9})
        for (const int64_t ep : {1, 2})
          for (const Recompute recompute :
               {Recompute::kNone, Recompute::kExperts, Recompute::kFull}) {
            if (strategy::interleaves(schedule) && (pp == 1 || m % pp != 0)) continue;
            CAPTURE(std::string(strategy::name(schedule)));
            CAPTURE(pp);
            CAPTURE(m);
            CAPTURE(ep);
            const StepGraph step = write(small(schedule, pp, m, ep, recompute));
            CHECK(fmt::format("{}", fmt::join(graph::validate(step.graph), "\n")) == "");
            CHECK(graph::find_deadlock(step.graph).empty());
            CHECK(all_freed(step));
          }
}

TEST_CASE("modules of multi-token prediction run on the rank of the last virtual stage") {
  for (const PipelineSchedule schedule : {PipelineSchedule::kZbH1, PipelineSchedule::kZbV}) {
    Case c = small(schedule, 2, 4);
    c.model.layers.push_back({});
    c.model.mtp_depth = c.strategy.mtp_depth = 1;
    const StepGraph step = write(c);
    CHECK(fmt::format("{}", fmt::join(graph::validate(step.graph), "\n")) == "");
    CHECK(all_freed(step));
    for (const Task& task : step.graph.tasks())
      if (task.kind == graph::TaskKind::kCompute &&
          step.segment(task).kind == SegmentKind::kMtpProjection) {
        CHECK(task.rank.value / c.strategy.mesh.dp == (schedule == PipelineSchedule::kZbV ? 0 : 1));
      }
  }
}

TEST_CASE(
    "of a backward in two parts every segment with weights runs twice, a merge and a head once") {
  const StepGraph step = write(small(PipelineSchedule::kZbH1, 2, 3, 2));
  std::map<SegmentKind, std::array<int, 2>> tasks;
  for (const Task& task : step.graph.tasks()) {
    if (task.kind != graph::TaskKind::kCompute) continue;
    CHECK(task.phase != Phase::kBackward);
    if (task.phase == Phase::kBackwardInput) ++tasks[step.segment(task).kind][0];
    if (task.phase == Phase::kBackwardWeights) ++tasks[step.segment(task).kind][1];
  }
  const int once = 3 * 4;  // micro-batches, ranks of a stage
  using Times = std::array<int, 2>;
  CHECK(tasks[SegmentKind::kAttention] == Times{2 * once, 2 * once});
  CHECK(tasks[SegmentKind::kExperts] == Times{once, once});
  CHECK(tasks[SegmentKind::kGate] == Times{once, once});
  CHECK(tasks[SegmentKind::kUnpermute] == Times{once, 0});
  CHECK(tasks[SegmentKind::kHead] == Times{once, 0});
  CHECK(tasks[SegmentKind::kEmbedding] == Times{0, once});
}

TEST_CASE("a weights' part reads what its products do, and the input's frees all else") {
  const StepGraph step = write(small(PipelineSchedule::kZbH1, 2, 3, 2));
  CHECK(graph::validate(step.graph).empty());
  using Kinds = std::vector<SlotKind>;
  const std::map<SegmentKind, Kinds> expected = {
      {SegmentKind::kAttention,
       {SlotKind::kHiddenGradient, SlotKind::kHidden, SlotKind::kTape, SlotKind::kDeferred}},
      {SegmentKind::kDenseMlp,
       {SlotKind::kHiddenGradient, SlotKind::kHidden, SlotKind::kTape, SlotKind::kDeferred}},
      {SegmentKind::kGate, {SlotKind::kHidden, SlotKind::kTape, SlotKind::kDeferred}},
      {SegmentKind::kExperts,
       {SlotKind::kExpertRowsGradient, SlotKind::kReceived, SlotKind::kRouting, SlotKind::kTape,
        SlotKind::kDeferred}},
      {SegmentKind::kEmbedding, {SlotKind::kHiddenGradient}}};
  std::map<graph::SlotId, Phase> freed_in;
  for (const Task& task : step.graph.tasks()) {
    for (const graph::SlotId slot : step.graph.frees(task)) freed_in[slot] = task.phase;
    if (task.phase != Phase::kBackwardWeights || task.kind != graph::TaskKind::kCompute) continue;
    Kinds kinds;
    for (const graph::SlotId slot : step.graph.reads(task))
      kinds.push_back(step.meaning(slot).kind);
    CAPTURE(task_name(step, task));
    CHECK(kinds == expected.at(step.segment(task).kind));
    // x for the norm of the projections, not x1.
    if (step.segment(task).kind == SegmentKind::kAttention) {
      CHECK(step.meaning(step.graph.reads(task)[1]).segment.kind != SegmentKind::kAttention);
    }
  }
  for (const auto& [slot, phase] : freed_in) {
    const SlotKind kind = step.meaning(slot).kind;
    if (kind == SlotKind::kRowsGradient || kind == SlotKind::kRoutingGradient)
      CHECK(phase == Phase::kBackwardInput);
    if (kind == SlotKind::kDeferred) CHECK(phase == Phase::kBackwardWeights);
  }
}

TEST_CASE("gradients are reduced once, behind the last part that adds to them") {
  for (const PipelineSchedule schedule : strategy::kPipelineSchedules) {
    const Case c = small(schedule, 2, 4, 2);
    const StepGraph step = write(c);
    std::map<std::pair<SegmentKind, int32_t>, int> reduced;
    std::map<std::pair<Rank, int32_t>, graph::TaskId> last_backward;
    for (const Task& task : step.graph.tasks())
      if (task.kind == graph::TaskKind::kCompute &&
          step.segment(task).kind == SegmentKind::kAttention &&
          (task.phase == Phase::kBackward || task.phase == Phase::kBackwardWeights))
        last_backward[{task.rank, step.segment(task).layer}] = task.id;
    for (const Task& task : step.graph.tasks()) {
      if (task.kind != graph::TaskKind::kAllReduce) continue;
      const Segment& segment = step.segment(task);
      ++reduced[{segment.kind, segment.layer}];
      if (segment.layer >= 0) {
        CHECK(task.id > last_backward.at({task.rank, segment.layer}));
      }
    }
    for (int32_t layer = -2; layer < c.model.num_layers(); ++layer)
      CHECK(reduced[{SegmentKind::kDenseGradients, layer}] == c.strategy.mesh.dp);
  }
}

TEST_CASE("in a V the ends of the model share a rank, and a table that both use is there once") {
  Case c = small(PipelineSchedule::kZbV, 2, 4);
  c.model.tied_embeddings = true;
  for (const PipelineSchedule schedule : {PipelineSchedule::kZbV, PipelineSchedule::kInterleaved}) {
    c.strategy.schedule = schedule;
    const StepGraph step = write(c);
    const bool sums = std::ranges::any_of(step.graph.tasks(), [&](const Task& task) {
      return task.kind == graph::TaskKind::kAllReduce &&
             step.segment(task).kind == SegmentKind::kTiedEmbedding;
    });
    CHECK(sums == strategy::interleaves(schedule));
  }
}

TEST_CASE("a task's name says which part of the backward it is") {
  const StepGraph step = write(small(PipelineSchedule::kZbH1, 1, 1));
  std::vector<std::string> names;
  for (const Task& task : step.graph.tasks())
    if (task.rank == Rank(0) && task.micro_batch == 0) names.push_back(task_name(step, task));
  CHECK(names == std::vector<std::string>{"F0 embedding", "F0 L0 attention", "F0 L0 dense mlp",
                                          "F0 head", "I0 head", "I0 L0 dense mlp",
                                          "I0 L0 attention", "W0 L0 dense mlp", "W0 L0 attention",
                                          "W0 embedding"});
}

namespace {

std::vector<std::string> names_of_first(const StepGraph& step, Phase phase) {
  std::vector<std::string> names;
  for (const Task& task : step.graph.tasks())
    if (task.rank == Rank(0) && task.micro_batch == 0 && task.phase == phase)
      names.push_back(fmt::format("{}{}", task_name(step, task),
                                  task.kind == graph::TaskKind::kCompute
                                      ? ""
                                      : fmt::format(" {}", graph::name(task.kind))));
  return names;
}

}  // namespace

TEST_CASE("tensor and sequence parallelism: gathers before, sums behind what ranks share") {
  Case c{example::model({4}), example::strategy({.ep = 2, .dp = 2, .tp = 2}, 1, 1)};
  c.strategy.sequence_parallel = true;
  const StepGraph step = write(c);
  CHECK(names_of_first(step, Phase::kForward) ==
        std::vector<std::string>{
            "F0 embedding", "F0 L0 tensor collective all-gather", "F0 L0 attention",
            "F0 L0 tensor collective reduce-scatter", "F0 L0 gate",
            "F0 L0 sequence counts all-reduce", "F0 L0 counts counts", "F0 L0 dispatch all-to-all",
            "F0 L0 experts", "F0 L0 combine all-to-all", "F0 L0 merge", "F0 head"});
  CHECK(names_of_first(step, Phase::kBackward) ==
        std::vector<std::string>{"B0 head", "B0 L0 merge", "B0 L0 combine all-to-all",
                                 "B0 L0 experts", "B0 L0 dispatch all-to-all", "B0 L0 gate",
                                 "B0 L0 tensor collective all-gather", "B0 L0 attention",
                                 "B0 L0 tensor collective reduce-scatter", "B0 embedding"});
}

TEST_CASE("without sequence parallelism sums are all-reduces; etp and cp have theirs") {
  Case c{example::model({4}),
         example::strategy({.ep = 2, .dp = 2, .etp = 2, .tp = 2, .cp = 2}, 1, 1)};
  c.strategy.context_exchange = strategy::ContextExchange::kGather;
  CHECK(names_of_first(write(c), Phase::kForward) ==
        std::vector<std::string>{
            "F0 embedding", "F0 L0 projection", "F0 L0 keys and values all-gather",
            "F0 L0 attention", "F0 L0 tensor collective all-reduce", "F0 L0 gate",
            "F0 L0 sequence counts all-reduce", "F0 L0 counts counts", "F0 L0 dispatch all-to-all",
            "F0 L0 experts", "F0 L0 expert tensor collective all-reduce",
            "F0 L0 combine all-to-all", "F0 L0 merge", "F0 head"});
}

TEST_CASE(
    "a ring of three: a step with each rank's keys and values, its own last in the backward") {
  Case c{example::model({0}), example::strategy({.pp = 1, .ep = 1, .dp = 1, .cp = 3}, 1, 1)};
  c.strategy.sequence = 6;
  const StepGraph step = write(c);
  CHECK(names_of_first(step, Phase::kForward) ==
        std::vector<std::string>{
            "F0 embedding", "F0 L0 projection", "F0 L0 keys and values h1 ring",
            "F0 L0 ring step h0", "F0 L0 keys and values h2 ring", "F0 L0 ring step h1",
            "F0 L0 ring step h2", "F0 L0 attention", "F0 L0 dense mlp", "F0 head"});
  CHECK(names_of_first(step, Phase::kBackward) ==
        std::vector<std::string>{"B0 head", "B0 L0 dense mlp", "B0 L0 keys and values h1 ring",
                                 "B0 L0 attention", "B0 L0 keys and values h2 ring",
                                 "B0 L0 ring step h1", "B0 L0 keys and values gradient h1 ring",
                                 "B0 L0 ring step h2", "B0 L0 keys and values gradient h2 ring",
                                 "B0 L0 ring step h0", "B0 L0 projection", "B0 embedding"});
}

// Rows of two token groups, each of which two ranks send.
TEST_CASE("experts that more ranks share than hold the same tokens gather rows") {
  Case c{example::model({4}), example::strategy({.ep = 2, .dp = 4, .etp = 4, .tp = 2}, 1, 1)};
  CHECK(names_of_first(write(c), Phase::kForward) ==
        std::vector<std::string>{
            "F0 embedding", "F0 L0 attention", "F0 L0 tensor collective all-reduce", "F0 L0 gate",
            "F0 L0 counts counts", "F0 L0 shared counts counts", "F0 L0 dispatch all-to-all",
            "F0 L0 expert tensor collective all-gather", "F0 L0 experts",
            "F0 L0 expert tensor collective reduce-scatter", "F0 L0 combine all-to-all",
            "F0 L0 merge", "F0 head"});
}

TEST_CASE("Parm's S1: a mixture layer of own tokens, whose output and gradient are gathered") {
  Case c{example::model({4}), example::strategy({.ep = 2, .dp = 2, .tp = 2}, 1, 1)};
  c.strategy.moe_schedule = strategy::MoeSchedule::kParmS1;
  const StepGraph step = write(c);
  CHECK(names_of_first(step, Phase::kForward) ==
        std::vector<std::string>{
            "F0 embedding", "F0 L0 attention", "F0 L0 tensor collective all-reduce", "F0 L0 gate",
            "F0 L0 sequence counts all-reduce", "F0 L0 counts counts", "F0 L0 dispatch all-to-all",
            "F0 L0 experts", "F0 L0 combine all-to-all", "F0 L0 merge",
            "F0 L0 tensor collective all-gather", "F0 head"});
  CHECK(names_of_first(step, Phase::kBackward) ==
        std::vector<std::string>{"B0 head", "B0 tensor collective all-gather", "B0 L0 merge",
                                 "B0 L0 combine all-to-all", "B0 L0 experts",
                                 "B0 L0 dispatch all-to-all", "B0 L0 gate",
                                 "B0 L0 tensor collective all-gather", "B0 L0 attention",
                                 "B0 L0 tensor collective all-reduce", "B0 embedding"});
}

TEST_CASE("MoNTA's O1: the plain order, with the rows that came back and the gradients gathered") {
  Case c{example::model({4}), example::strategy({.ep = 2, .dp = 2, .etp = 2, .tp = 2}, 1, 1)};
  c.strategy.moe_schedule = strategy::MoeSchedule::kMontaO1;
  const StepGraph step = write(c);
  CHECK(names_of_first(step, Phase::kForward) ==
        std::vector<std::string>{
            "F0 embedding", "F0 L0 attention", "F0 L0 tensor collective all-reduce", "F0 L0 gate",
            "F0 L0 counts counts", "F0 L0 shared counts counts", "F0 L0 dispatch all-to-all",
            "F0 L0 expert tensor collective all-gather", "F0 L0 experts",
            "F0 L0 expert tensor collective reduce-scatter", "F0 L0 combine all-to-all",
            "F0 L0 divided rows all-gather", "F0 L0 merge", "F0 head"});
}

TEST_CASE(
    "Parm's S2 sends a row to all ranks that share its expert, and gathers and sums nothing") {
  Case c{example::model({4}), example::strategy({.ep = 2, .dp = 2, .etp = 2, .tp = 2}, 1, 1)};
  c.strategy.moe_schedule = strategy::MoeSchedule::kParmS2;
  const StepGraph step = write(c);
  CHECK(names_of_first(step, Phase::kForward) ==
        std::vector<std::string>{
            "F0 embedding", "F0 L0 attention", "F0 L0 tensor collective all-reduce", "F0 L0 gate",
            "F0 L0 counts counts", "F0 L0 dispatch all-to-all", "F0 L0 experts",
            "F0 L0 combine all-to-all", "F0 L0 divided rows all-gather", "F0 L0 merge", "F0 head"});
  for (const graph::Task& task : step.graph.tasks())
    if (task.kind == graph::TaskKind::kAllToAll) CHECK(step.graph.group(task.group).size() == 4);
}

TEST_CASE("ZeRO: what is gathered and scattered, and when") {
  const auto count = [](const StepGraph& step, SegmentKind kind, Phase phase) {
    return std::ranges::count_if(step.graph.tasks(), [&](const Task& task) {
      return task.rank == Rank(0) && task.phase == phase && step.segment(task).kind == kind;
    });
  };
  Case c{example::model({4, 0}), example::strategy({.ep = 2, .dp = 4}, 2, 3)};
  // Embedding, two layers, head.
  for (const int64_t zero : {0, 1, 2, 3}) {
    CAPTURE(zero);
    c.strategy.zero = zero;
    const StepGraph step = write(c);
    CHECK(fmt::format("{}", fmt::join(graph::validate(step.graph), "\n")) == "");
    CHECK(graph::find_deadlock(step.graph) == "");
    const bool always = zero >= 2;
    CHECK(count(step, SegmentKind::kDenseGradients, Phase::kUpdate) == (always ? 0 : 4));
    CHECK(count(step, SegmentKind::kDenseGradients, Phase::kBackward) == (always ? 12 : 0));
    CHECK(count(step, SegmentKind::kExpertGradients, Phase::kBackward) == (always ? 3 : 0));
    CHECK(count(step, SegmentKind::kDenseWeights, Phase::kForward) == (zero == 0   ? 0
                                                                       : zero == 3 ? 12
                                                                                   : 4));
    CHECK(count(step, SegmentKind::kExpertWeights, Phase::kBackward) == (zero == 3 ? 3 : 0));
  }
}
