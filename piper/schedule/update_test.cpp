#include <doctest/doctest.h>
#include <piper/schedule/step.h>
#include <testing/schedule/example_model.h>

#include <algorithm>
#include <map>

using namespace piper;
using namespace piper::schedule;
using graph::Phase;
using graph::Task;
using graph::TaskId;
using graph::TaskKind;

namespace {

using Names = std::vector<std::string>;

Names names_of(const StepGraph& step, int rank, TaskKind kind) {
  Names names;
  for (const Task& task : step.graph.tasks())
    if (task.rank == Rank(rank) && task.kind == kind) names.push_back(task_name(step, task));
  return names;
}

const Task& find(const StepGraph& step, int rank, const std::string& title) {
  const auto found = std::find_if(
      step.graph.tasks().begin(), step.graph.tasks().end(),
      [&](const Task& task) { return task.rank == Rank(rank) && task_name(step, task) == title; });
  REQUIRE(found != step.graph.tasks().end());
  return *found;
}

Names after(const StepGraph& step, const Task& task) {
  Names names;
  for (const TaskId id : step.graph.dependencies(task))
    names.push_back(task_name(step, step.graph.task(id)));
  return names;
}

}  // namespace

TEST_CASE(
    "gradients are reduced layer by layer behind the last backward, then come norm, statistics, "
    "optimizer") {
  const StepGraph step =
      write_step(example::model({4, 0}), example::strategy({.pp = 1, .ep = 2, .dp = 4}, 2, 3));
  CHECK(names_of(step, 3, TaskKind::kAllReduce) ==
        Names{"U head dense gradients", "U L1 dense gradients", "U L0 dense gradients",
              "U L0 expert gradients", "U embedding dense gradients", "U statistics"});
  CHECK(after(step, find(step, 3, "U L1 dense gradients")) == Names{"B2 L1 attention"});
  CHECK(after(step, find(step, 3, "U L0 expert gradients")) == Names{"B2 L0 attention"});
  CHECK(after(step, find(step, 3, "U gradient norm")).size() == 5);  // every reduction
  CHECK(after(step, find(step, 3, "U statistics")) == Names{"U gradient norm"});
  CHECK(after(step, find(step, 3, "U optimizer")) == Names{"U statistics"});
}

TEST_CASE("with ZeRO 1 gradients are scattered, and weights gathered ahead of who needs them") {
  strategy::Strategy s = example::strategy({.pp = 1, .ep = 2, .dp = 4}, 2, 3);
  s.zero = 1;
  const StepGraph step = write_step(example::model({4, 0}), s);
  CHECK(names_of(step, 3, TaskKind::kAllGather) ==
        Names{"F0 embedding dense weights", "F0 L0 dense weights", "F0 L0 expert weights",
              "F0 L1 dense weights", "F0 head dense weights"});
  CHECK(names_of(step, 3, TaskKind::kReduceScatter) ==
        Names{"U head dense gradients", "U L1 dense gradients", "U L0 dense gradients",
              "U L0 expert gradients", "U embedding dense gradients"});
  CHECK(names_of(step, 3, TaskKind::kAllReduce) == Names{"U statistics"});
  CHECK(after(step, find(step, 3, "F0 L1 dense weights")).empty());
  CHECK(after(step, find(step, 3, "F0 embedding")) == Names{"F0 embedding dense weights"});
  CHECK(after(step, find(step, 3, "F0 L0 attention")) ==
        Names{"F0 L0 dense weights", "F0 L0 expert weights"});
  CHECK(after(step, find(step, 3, "F1 L0 attention")).empty());
  CHECK(after(step, find(step, 3, "F0 head")) == Names{"F0 head dense weights"});
}

namespace {

// Where buffers of divided gradients begin (+) and end (-), in the order of the rank's tasks.
Names lives_of_gradients(const StepGraph& step, int rank) {
  Names lives;
  for (const Task& task : step.graph.tasks()) {
    if (task.rank != Rank(rank)) continue;
    std::string text;
    const auto add = [&](char sign, std::span<const graph::SlotId> slots) {
      for (const graph::SlotId slot : slots) {
        if (step.meaning(slot).kind != SlotKind::kGradients) continue;
        const Segment& buffer = step.meaning(slot).segment;
        text += std::string(" ") + sign + name(buffer.kind) + std::to_string(buffer.layer);
      }
    };
    add('+', step.graph.writes(task));
    add('-', step.graph.frees(task));
    if (!text.empty()) lives.push_back(task_name(step, task) + text);
  }
  return lives;
}

}  // namespace

TEST_CASE("with ZeRO 2 gradients live from what adds to them until they are kept") {
  strategy::Strategy s = example::strategy({.pp = 1, .ep = 2, .dp = 4}, 2, 2);
  s.zero = 2;
  const StepGraph step = write_step(example::model({4, 0}), s);
  // A layer's are kept behind the next layer, whichever way that goes; the ends are no layers.
  CHECK(lives_of_gradients(step, 3) ==
        Names{"F0 head +dense gradients-2", "B0 L1 dense mlp +dense gradients1",
              "B0 head keep gradients -dense gradients-2", "B0 L0 experts +expert gradients0",
              "B0 L0 gate +dense gradients0", "B0 L1 keep gradients -dense gradients1",
              "B0 embedding +dense gradients-1",
              "B0 L0 keep gradients -dense gradients0 -expert gradients0",
              "B0 embedding keep gradients -dense gradients-1", "F1 head +dense gradients-2",
              "B1 L1 dense mlp +dense gradients1", "B1 head keep gradients -dense gradients-2",
              "B1 L0 experts +expert gradients0", "B1 L0 gate +dense gradients0",
              "B1 L1 keep gradients -dense gradients1", "B1 embedding +dense gradients-1",
              "B1 L0 keep gradients -dense gradients0 -expert gradients0",
              "B1 embedding keep gradients -dense gradients-1"});
  CHECK(after(step, find(step, 3, "B0 L0 keep gradients")) ==
        Names{"B0 L0 dense gradients", "B0 L0 expert gradients"});
  const auto place = [&](const char* title) { return find(step, 3, title).id; };
  CHECK(place("B0 L0 dense gradients") < place("B0 L1 keep gradients"));
  CHECK(place("F1 L0 merge") < place("B0 L0 keep gradients"));
  CHECK(place("B0 embedding keep gradients") < place("F1 L1 attention"));
}

TEST_CASE("with ZeRO 2 no buffer of gradients has memory twice at a time, under any schedule") {
  for (const strategy::PipelineSchedule schedule : strategy::kPipelineSchedules)
    for (const strategy::Recompute recompute :
         {strategy::Recompute::kNone, strategy::Recompute::kFull})
      for (const auto& [tied, modules, uneven] : {std::tuple{false, 0, false},
                                                  {true, 0, false},
                                                  {false, 2, false},
                                                  {true, 1, true},
                                                  {true, 2, true}}) {
        const bool has_chunks = strategy::is_v(schedule) || strategy::interleaves(schedule);
        strategy::Strategy s = example::strategy({.pp = 2, .ep = 2, .dp = 4}, 4, 4);
        s.mesh.vpp = has_chunks ? 2 : 1;
        s.layers_per_stage = strategy::even_split(4, s.mesh.num_virtual_stages());
        // Turns of a long first chunk's backward end between those of the last one's modules.
        if (uneven && has_chunks) s.layers_per_stage = {1, 2, 1, 0};
        s.schedule = schedule;
        s.recompute = recompute;
        s.zero = 2;
        s.mtp_depth = modules;
        CAPTURE(strategy::name(schedule));
        CAPTURE(tied);
        CAPTURE(modules);
        CAPTURE(uneven);
        const model::Model model = model::with_mtp(example::model({4, 0, 4, 4}, tied), modules);
        REQUIRE(strategy::contradictions(s, model).empty());
        const StepGraph step = write_step(model, s);
        CHECK(graph::validate(step.graph).empty());
        CHECK(graph::find_deadlock(step.graph) == "");
        int64_t num_lives = 0;
        for (int rank = 0; rank < 8; ++rank) {
          std::map<std::pair<SegmentKind, int32_t>, int> live;
          for (const Task& task : step.graph.tasks()) {
            if (task.rank != Rank(rank)) continue;
            const auto count = [&](std::span<const graph::SlotId> slots, int by) {
              for (const graph::SlotId slot : slots) {
                if (step.meaning(slot).kind != SlotKind::kGradients) continue;
                const Segment& buffer = step.meaning(slot).segment;
                const int now = live[{buffer.kind, buffer.layer}] += by;
                CHECK(now >= 0);
                CHECK(now <= 1);
                num_lives += by > 0;
              }
            };
            count(step.graph.writes(task), 1);
            count(step.graph.frees(task), -1);
          }
        }
        // Four micro-batches of four layers and the modules, and of two ends unless both hold the
        // table, which is the embedding's where a module copies it; experts of three layers and of
        // the modules.
        const int64_t ends = !strategy::ends_apart(s) ? 2 : tied ? 0 : modules > 0 ? 1 : 2;
        const int64_t lives = 4 * 4 * (4 + modules + ends + 3 + modules);
        if (!uneven) CHECK(num_lives == lives);
        CHECK(num_lives >= lives);  // a table that both ends' chunks add to may have more
      }
}

TEST_CASE(
    "with ZeRO 1 a table of both ends is reduced in full, and what modules read is gathered") {
  for (const bool tied : {false, true}) {
    CAPTURE(tied);
    model::Model model = example::model({4, 0});
    model.tied_embeddings = tied;
    model = model::with_mtp(model, 1);
    strategy::Strategy s = example::strategy({.pp = 2, .ep = 1, .dp = 2}, 2, 1);
    s.mtp_depth = 1;
    s.zero = 1;
    const StepGraph step = write_step(model, s);
    const Names first = names_of(step, 0, TaskKind::kAllReduce),
                last = names_of(step, 2, TaskKind::kAllReduce);
    CHECK(first == Names{"U embedding dense gradients", "U tied embedding", "U statistics"});
    CHECK(last == Names{tied ? "U head dense gradients" : "U embedding dense gradients",
                        "U tied embedding", "U statistics"});
    const Names gathered = names_of(step, 2, TaskKind::kAllGather);
    CHECK(std::ranges::count(gathered, "F0 L2 dense weights") == 1);
    CHECK(std::ranges::count(gathered, "F0 embedding dense weights") == (tied ? 0 : 1));
    const Names waited = after(step, find(step, 2, "F0 L2 mtp join"));
    CHECK(std::ranges::count(waited, "F0 L2 dense weights") == 1);
    CHECK(std::ranges::count(waited, "F0 embedding dense weights") == (tied ? 0 : 1));
  }
}

TEST_CASE("each reduction is over the ranks that hold the same parameters") {
  const StepGraph step =
      write_step(example::model({4}), example::strategy({.pp = 1, .ep = 2, .dp = 4}, 1, 1));
  const auto group = [&](const char* title) {
    return step.graph.group(find(step, 1, title).group);
  };
  CHECK(group("U L0 dense gradients") == std::vector{Rank(0), Rank(1), Rank(2), Rank(3)});
  CHECK(group("U L0 expert gradients") == std::vector{Rank(1), Rank(3)});
  CHECK(group("F0 L0 dispatch") == std::vector{Rank(0), Rank(1)});
}

TEST_CASE("reductions over one rank and exchanges with ep 1 are left out") {
  const StepGraph alone = write_step(example::model({4}), example::strategy({}, 1, 2));
  CHECK(std::all_of(alone.graph.tasks().begin(), alone.graph.tasks().end(),
                    [](const Task& task) { return task.kind == TaskKind::kCompute; }));
  const StepGraph sharded =
      write_step(example::model({4}), example::strategy({.pp = 1, .ep = 2, .dp = 2}, 1, 1));
  const Names reductions = names_of(sharded, 0, TaskKind::kAllReduce);
  CHECK(std::count(reductions.begin(), reductions.end(), "U L0 expert gradients") == 0);  // edp 1
  CHECK(names_of(sharded, 0, TaskKind::kExchangeCounts) == Names{"F0 L0 counts"});
}

TEST_CASE(
    "modules: their gradients end with their join, the last stage's embedding with the first") {
  strategy::Strategy s = example::strategy({.pp = 2, .ep = 2, .dp = 4}, 2, 3);
  s.mtp_depth = 1;
  const StepGraph step = write_step(model::with_mtp(example::model({4, 0}), 1), s);
  CHECK(names_of(step, 5, TaskKind::kAllReduce) ==
        Names{"U L2 dense gradients", "U head dense gradients", "U embedding dense gradients",
              "U L1 dense gradients", "U tied embedding", "U statistics"});
  CHECK(after(step, find(step, 5, "U L2 dense gradients")) == Names{"B2 L2 mtp join"});
  CHECK(after(step, find(step, 5, "U head dense gradients")) == Names{"B2 L2 mtp join"});
  CHECK(step.graph.group(find(step, 5, "U tied embedding").group) == std::vector{Rank(1), Rank(5)});
  const StepGraph tied = write_step(model::with_mtp(example::model({4, 0}, true), 1), s);
  CHECK(names_of(tied, 5, TaskKind::kAllReduce) ==
        Names{"U L2 dense gradients", "U head dense gradients", "U L1 dense gradients",
              "U tied embedding", "U statistics"});
}

TEST_CASE("a tied embedding is summed between the two ends of each pipeline") {
  const StepGraph step = write_step(example::model({4, 4, 4}, true),
                                    example::strategy({.pp = 3, .ep = 1, .dp = 2}, 3, 2));
  const Task& first = find(step, 1, "U tied embedding");
  CHECK(step.graph.group(first.group) == std::vector{Rank(1), Rank(5)});
  CHECK(find(step, 5, "U tied embedding").operation == first.operation);
  const Names middle = names_of(step, 3, TaskKind::kAllReduce);
  CHECK(std::count(middle.begin(), middle.end(), "U tied embedding") == 0);
  const Names waits = after(step, find(step, 5, "U tied embedding"));
  CHECK(std::count(waits.begin(), waits.end(), "U head dense gradients") == 1);
  const StepGraph one_stage =
      write_step(example::model({4}, true), example::strategy({.pp = 1, .ep = 1, .dp = 2}, 1, 1));
  const Names alone = names_of(one_stage, 0, TaskKind::kAllReduce);
  CHECK(std::count(alone.begin(), alone.end(), "U tied embedding") == 0);
}

TEST_CASE("offloaded optimizer states come layer by layer, two layers' at once") {
  strategy::Strategy s = example::strategy({.pp = 1, .ep = 2, .dp = 2}, 2, 3);
  s.offload = strategy::Offload::kOptimizer;
  const StepGraph step = write_step(example::model({4, 0}), s);
  CHECK(names_of(step, 1, TaskKind::kHostCopy) ==
        Names{"U embedding from the host", "U L0 from the host", "U embedding to the host",
              "U L1 from the host", "U L0 to the host", "U head from the host", "U L1 to the host",
              "U head to the host"});
  // The first ones travel while the world sums the statistics.
  CHECK(after(step, find(step, 1, "U embedding from the host")) == Names{"U gradient norm"});
  const Names update = after(step, find(step, 1, "U L1 update"));
  CHECK(std::ranges::count(update, "U L1 from the host") == 1);
  // A layer's place on the device is that of the layer before the last.
  const Names brought = after(step, find(step, 1, "U head from the host"));
  CHECK(std::ranges::count(brought, "U L0 to the host") == 1);
}
