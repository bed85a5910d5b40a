#include <doctest/doctest.h>
#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/graph/print.h>
#include <piper/schedule/step.h>
#include <piper/strategy/rank_layout.h>
#include <testing/schedule/example_model.h>

#include <algorithm>
#include <map>

using namespace piper;
using namespace piper::schedule;
using graph::Graph;
using graph::Task;
using graph::TaskId;
using strategy::Mesh;
using strategy::PipelineSchedule;
using strategy::Recompute;

namespace {

const char* short_name(SlotKind kind) {
  switch (kind) {
    case SlotKind::kHidden:
      return "x";
    case SlotKind::kTape:
      return "tape";
    case SlotKind::kRows:
      return "rows";
    case SlotKind::kRouting:
      return "routing";
    case SlotKind::kReceived:
      return "received";
    case SlotKind::kExpertRows:
      return "expert_rows";
    case SlotKind::kReturned:
      return "returned";
    case SlotKind::kHiddenGradient:
      return "g_x";
    case SlotKind::kRowsGradient:
      return "g_rows";
    case SlotKind::kReceivedGradient:
      return "g_received";
    case SlotKind::kExpertRowsGradient:
      return "g_expert_rows";
    case SlotKind::kReturnedGradient:
      return "g_returned";
    case SlotKind::kRoutingGradient:
      return "g_routing";
    case SlotKind::kGathered:
      return "gathered";
    case SlotKind::kPartial:
      return "partial";
    case SlotKind::kSequenceChoices:
      return "choices";
    case SlotKind::kTokenChoices:
      return "token_choices";
    case SlotKind::kQueries:
      return "queries";
    case SlotKind::kQueriesGradient:
      return "g_queries";
    case SlotKind::kKeysAndValues:
      return "keys_and_values";
    case SlotKind::kKeysAndValuesGradient:
      return "g_keys_and_values";
    case SlotKind::kHeadOutputs:
      return "head_outputs";
    case SlotKind::kHeadOutputsGradient:
      return "g_outputs";
    case SlotKind::kDeferred:
      return "deferred";
    case SlotKind::kExpertState:
      return "expert_state";
    case SlotKind::kGradients:
      return "gradients";
    case SlotKind::kOptimizerStates:
      return "optimizer_states";
    case SlotKind::kWeights:
      return "weights";
    case SlotKind::kKept:
      return "kept";
  }
  return "?";
}

// Tasks of one rank in the order of their ids: "F0 L0 gate: x:attention -> rows:gate ... | frees".
std::string lives(const StepGraph& step, Rank rank) {
  std::string text;
  const auto list = [&](std::span<const graph::SlotId> slots) {
    std::string out;
    for (const graph::SlotId slot : slots) {
      const SlotMeaning& meaning = step.meaning(slot);
      out += fmt::format(" {}:{}{}", short_name(meaning.kind), name(meaning.segment.kind),
                         meaning.segment.layer >= 0 ? std::to_string(meaning.segment.layer) : "");
    }
    return out;
  };
  for (const Task& task : step.graph.tasks()) {
    if (task.rank != rank) continue;
    text += fmt::format("{}:{} ->{} |{}\n", task_name(step, task), list(step.graph.reads(task)),
                        list(step.graph.writes(task)), list(step.graph.frees(task)));
  }
  return text;
}

// Counts the reductions of gradients.
int64_t num_sums(const StepGraph& step) {
  return std::ranges::count_if(step.graph.tasks(), [&](const graph::Task& task) {
    return task.group.valid() && (step.segment(task).kind == SegmentKind::kDenseGradients ||
                                  step.segment(task).kind == SegmentKind::kExpertGradients);
  });
}

}  // namespace

TEST_CASE("a dense layer that ranks share gathers tokens, and inputs again, as the contract says") {
  strategy::Strategy s = example::strategy({.dp = 2, .tp = 2}, 1, 1);
  s.sequence_parallel = true;
  s.micro_batch_sequences = 2;
  s.global_batch_sequences *= 2;
  const StepGraph step = write_step(example::model({0}), s);
  CHECK(example::first_problem(step.graph).empty());
  const std::string gathered = "gathered:tensor collective0", part = "partial:tensor collective0";
  CHECK(lives(step, Rank(1)) ==
        "F0 embedding: -> x:embedding |\n"
        "F0 L0 tensor collective: x:embedding -> " +
            gathered +
            " |\n"
            "F0 L0 attention: " +
            gathered + " -> " + part + " tape:attention0 | " + gathered +
            "\n"
            "F0 L0 tensor collective: " +
            part + " -> x:attention0 | " + part +
            "\n"
            "F0 L0 tensor collective: x:attention0 -> " +
            gathered +
            " |\n"
            "F0 L0 dense mlp: " +
            gathered + " -> " + part + " tape:dense mlp0 | " + gathered +
            "\n"
            "F0 L0 tensor collective: " +
            part + " -> x:dense mlp0 | " + part +
            "\n"
            "F0 head: x:dense mlp0 -> tape:head |\n"
            "B0 head: x:dense mlp0 tape:head -> g_x:head | x:dense mlp0 tape:head\n"
            "U head stage gradients: -> |\n"
            "B0 L0 tensor collective: g_x:head x:attention0 -> " +
            gathered + " " + gathered +
            " | g_x:head\n"
            "B0 L0 dense mlp: " +
            gathered + " " + gathered + " tape:dense mlp0 -> " + part + " | " + gathered + " " +
            gathered +
            " tape:dense mlp0\n"
            "B0 L0 tensor collective: " +
            part + " -> g_x:dense mlp0 | " + part +
            "\n"
            "B0 L0 tensor collective: g_x:dense mlp0 x:embedding -> " +
            gathered + " " + gathered +
            " | g_x:dense mlp0\n"
            "B0 L0 attention: " +
            gathered + " " + gathered + " x:attention0 tape:attention0 x:embedding -> " + part +
            " | " + gathered + " " + gathered +
            " x:attention0 tape:attention0 x:embedding\n"
            "B0 L0 tensor collective: " +
            part + " -> g_x:attention0 | " + part +
            "\n"
            "U L0 stage gradients: -> |\n"
            "U L0 dense gradients: -> |\n"
            "B0 embedding: g_x:attention0 -> | g_x:attention0\n"
            "U embedding stage gradients: -> |\n"
            "U gradient norm: -> |\n"
            "U statistics: -> |\n"
            "U optimizer: -> |\n");
}

TEST_CASE("layers that ranks share are sound with every recomputation") {
  using strategy::MoeSchedule;
  for (const Recompute recompute : strategy::kRecomputes)
    for (const int64_t micro_batch : {1, 2})
      for (const auto& [sequence_parallel, moe_schedule] : {std::pair{true, MoeSchedule::kPlain},
                                                            {false, MoeSchedule::kPlain},
                                                            {false, MoeSchedule::kMontaO1},
                                                            {false, MoeSchedule::kMontaO2},
                                                            {false, MoeSchedule::kParmS1}}) {
        strategy::Strategy s = example::strategy({.pp = 2, .ep = 2, .tp = 2}, 2, 2,
                                                 PipelineSchedule::k1F1B, recompute);
        s.sequence_parallel = sequence_parallel;
        s.moe_schedule = moe_schedule;
        if (moe_schedule == MoeSchedule::kMontaO2) s.moe_chunks = 3;
        s.micro_batch_sequences = micro_batch;
        s.global_batch_sequences *= micro_batch;
        CAPTURE(std::string(strategy::name(recompute)));
        const StepGraph step = write_step(example::model({4, 0}), s);
        CHECK(example::first_problem(step.graph) == "");
        CHECK(graph::find_deadlock(step.graph) == "");
      }
}

TEST_CASE("ranks that hold all tokens keep a mixture's x whole, and under S1 its parts divided") {
  strategy::Strategy s = example::strategy({.ep = 2, .tp = 2}, 1, 1);
  s.moe_schedule = strategy::MoeSchedule::kParmS1;
  const std::string text = lives(write_step(example::model({4}), s), Rank(0));
  for (const char* line :
       {"F0 L0 tensor collective: partial:tensor collective0 -> x:attention0 | "
        "partial:tensor collective0\n",
        "F0 L0 tensor collective: x:merge0 -> x:tensor collective0 | x:merge0\n",
        "B0 head: x:tensor collective0 tape:head -> g_x:head | x:tensor collective0 tape:head\n",
        "B0 tensor collective: g_x:head -> g_x:tensor collective | g_x:head\n",
        "B0 L0 tensor collective: g_x:gate0 -> g_x:tensor collective0 | g_x:gate0\n",
        "B0 L0 tensor collective: partial:tensor collective0 -> g_x:attention0 | "
        "partial:tensor collective0\n"})
    CHECK_MESSAGE(text.find(line) != std::string::npos, text);
}

TEST_CASE("ranks that divide rows gather those that come back, and the gradients of those sent") {
  strategy::Strategy s = example::strategy({.ep = 2, .tp = 2}, 1, 1);
  s.moe_schedule = strategy::MoeSchedule::kMontaO1;
  const std::string text = lives(write_step(example::model({4}), s), Rank(1));
  for (const char* line :
       {"F0 L0 divided rows: returned:experts0 routing:gate0 -> returned:divided rows0 | "
        "returned:experts0\n",
        "F0 L0 merge: returned:divided rows0 routing:gate0 x:attention0 -> x:merge0 |\n",
        "B0 L0 divided rows: g_rows:gate0 routing:gate0 -> g_rows:divided rows0 | g_rows:gate0\n"})
    CHECK_MESSAGE(text.find(line) != std::string::npos, text);
}

TEST_CASE(
    "ranks that share sequences sum the choices of each, and the gate's backward waits for it") {
  strategy::Strategy s = example::strategy({.ep = 2, .tp = 2}, 1, 1);
  s.sequence_parallel = true;
  const auto counts = [&] {
    const StepGraph step = write_step(example::model({4}), s);
    CHECK(example::first_problem(step.graph).empty());
    CHECK(graph::find_deadlock(step.graph).empty());
    return lives(step, Rank(0));
  };
  const std::string shared = counts();
  CHECK(shared.find("F0 L0 sequence counts: routing:gate0 -> choices:sequence counts0 |") !=
        std::string::npos);
  CHECK(shared.find("routing:gate0 tape:gate0 choices:sequence counts0 -> g_x:gate0") !=
        std::string::npos);
  s.micro_batch_sequences = 2;
  s.global_batch_sequences *= 2;
  CHECK(counts().find("sequence counts") == std::string::npos);  // every rank has whole ones
}

TEST_CASE("a mixture layer with exchanges reads, writes and frees what the contract says") {
  const StepGraph step =
      write_step(example::model({4}), example::strategy({.pp = 1, .ep = 2, .dp = 2}, 1, 1));
  CHECK(lives(step, Rank(1)) ==
        "F0 embedding: -> x:embedding |\n"
        "F0 L0 attention: x:embedding -> x:attention0 tape:attention0 |\n"
        "F0 L0 gate: x:attention0 -> rows:gate0 routing:gate0 tape:gate0 |\n"
        "F0 L0 counts: routing:gate0 -> |\n"
        "F0 L0 dispatch: rows:gate0 routing:gate0 -> received:gate0 | rows:gate0\n"
        "F0 L0 experts: received:gate0 routing:gate0 -> expert_rows:experts0 tape:experts0 |\n"
        "F0 L0 combine: expert_rows:experts0 routing:gate0 -> returned:experts0 | "
        "expert_rows:experts0\n"
        "F0 L0 merge: returned:experts0 routing:gate0 x:attention0 -> x:merge0 |\n"
        "F0 head: x:merge0 -> tape:head |\n"
        "B0 head: x:merge0 tape:head -> g_x:head | x:merge0 tape:head\n"
        "U head dense gradients: -> |\n"
        "B0 L0 merge: g_x:head returned:experts0 routing:gate0 -> g_returned:merge0 "
        "g_routing:merge0 | "
        "returned:experts0\n"
        "B0 L0 combine: g_returned:merge0 routing:gate0 -> g_expert_rows:experts0 | "
        "g_returned:merge0\n"
        "B0 L0 experts: g_expert_rows:experts0 received:gate0 routing:gate0 tape:experts0 -> "
        "g_received:experts0 | "
        "g_expert_rows:experts0 received:gate0 tape:experts0\n"
        "B0 L0 dispatch: g_received:experts0 routing:gate0 -> g_rows:gate0 | g_received:experts0\n"
        "B0 L0 gate: g_rows:gate0 g_routing:merge0 g_x:head x:attention0 routing:gate0 tape:gate0 "
        "-> g_x:gate0 | "
        "g_rows:gate0 g_routing:merge0 g_x:head routing:gate0 tape:gate0\n"
        "B0 L0 attention: g_x:gate0 x:embedding x:attention0 tape:attention0 -> g_x:attention0 | "
        "g_x:gate0 "
        "x:embedding x:attention0 tape:attention0\n"
        "U L0 dense gradients: -> |\n"
        "B0 embedding: g_x:attention0 -> | g_x:attention0\n"
        "U embedding dense gradients: -> |\n"
        "U gradient norm: -> |\n"
        "U statistics: -> |\n"
        "U optimizer: -> |\n");
}

TEST_CASE("a mixture layer alone on its experts exchanges nothing") {
  const StepGraph step = write_step(example::model({4}), example::strategy({}, 1, 1));
  CHECK(lives(step, Rank(0)) ==
        "F0 embedding: -> x:embedding |\n"
        "F0 L0 attention: x:embedding -> x:attention0 tape:attention0 |\n"
        "F0 L0 gate: x:attention0 -> rows:gate0 routing:gate0 tape:gate0 |\n"
        "F0 L0 experts: rows:gate0 routing:gate0 -> expert_rows:experts0 tape:experts0 |\n"
        "F0 L0 merge: expert_rows:experts0 routing:gate0 x:attention0 -> x:merge0 |\n"
        "F0 head: x:merge0 -> tape:head |\n"
        "B0 head: x:merge0 tape:head -> g_x:head | x:merge0 tape:head\n"
        "B0 L0 merge: g_x:head expert_rows:experts0 routing:gate0 -> g_returned:merge0 "
        "g_routing:merge0 | "
        "expert_rows:experts0\n"
        "B0 L0 experts: g_returned:merge0 rows:gate0 routing:gate0 tape:experts0 -> "
        "g_rows:experts0 | "
        "g_returned:merge0 rows:gate0 tape:experts0\n"
        "B0 L0 gate: g_rows:experts0 g_routing:merge0 g_x:head x:attention0 routing:gate0 "
        "tape:gate0 -> g_x:gate0 | "
        "g_rows:experts0 g_routing:merge0 g_x:head routing:gate0 tape:gate0\n"
        "B0 L0 attention: g_x:gate0 x:embedding x:attention0 tape:attention0 -> g_x:attention0 | "
        "g_x:gate0 "
        "x:embedding x:attention0 tape:attention0\n"
        "B0 embedding: g_x:attention0 -> | g_x:attention0\n"
        "U gradient norm: -> |\n"
        "U optimizer: -> |\n");
}

TEST_CASE("with recomputation a layer keeps its input only, and runs again before its backward") {
  const StepGraph step = write_step(example::model({0, 4}),
                                    example::strategy({.pp = 1, .ep = 2, .dp = 2}, 2, 1,
                                                      PipelineSchedule::k1F1B, Recompute::kFull));
  const std::string text = lives(step, Rank(0));
  CHECK(text.find(
            "F0 L0 attention: x:embedding -> x:attention0 |\n"
            "F0 L0 dense mlp: x:attention0 -> x:dense mlp0 | x:attention0\n"
            "F0 L1 attention: x:dense mlp0 -> x:attention1 |\n"
            "F0 L1 gate: x:attention1 -> rows:gate1 routing:gate1 |\n"
            "F0 L1 counts: routing:gate1 -> |\n"
            "F0 L1 dispatch: rows:gate1 routing:gate1 -> received:gate1 | rows:gate1\n"
            "F0 L1 experts: received:gate1 routing:gate1 -> expert_rows:experts1 | received:gate1\n"
            "F0 L1 combine: expert_rows:experts1 routing:gate1 -> returned:experts1 | "
            "expert_rows:experts1\n"
            "F0 L1 merge: returned:experts1 routing:gate1 x:attention1 -> x:merge1 | "
            "returned:experts1 "
            "routing:gate1 x:attention1\n") != std::string::npos);
  CHECK(text.find(
            "R0 L1 attention: x:dense mlp0 -> x:attention1 tape:attention1 |\n"
            "R0 L1 gate: x:attention1 -> rows:gate1 routing:gate1 tape:gate1 |\n"
            "R0 L1 dispatch: rows:gate1 routing:gate1 -> received:gate1 | rows:gate1\n"
            "R0 L1 experts: received:gate1 routing:gate1 -> expert_rows:experts1 tape:experts1 |\n"
            "R0 L1 combine: expert_rows:experts1 routing:gate1 -> returned:experts1 | "
            "expert_rows:experts1\n"
            "B0 L1 merge:") != std::string::npos);
  CHECK(text.find("R0 L0 attention: x:embedding -> x:attention0 tape:attention0 |\n"
                  "R0 L0 dense mlp: x:attention0 -> x:dense mlp0 tape:dense mlp0 | x:dense mlp0\n"
                  "B0 L0 dense mlp: g_x:attention1 x:attention0 tape:dense mlp0 -> g_x:dense mlp0 "
                  "| g_x:attention1 "
                  "tape:dense mlp0\n"
                  "B0 L0 attention:") != std::string::npos);
}

TEST_CASE("modules of multi-token prediction follow the head, and go back before it") {
  strategy::Strategy s = example::strategy({}, 1, 1);
  s.mtp_depth = 2;
  const StepGraph step = write_step(model::with_mtp(example::model({0}), 2), s);
  CHECK(lives(step, Rank(0)) ==
        "F0 embedding: -> x:embedding |\n"
        "F0 L0 attention: x:embedding -> x:attention0 tape:attention0 |\n"
        "F0 L0 dense mlp: x:attention0 -> x:dense mlp0 tape:dense mlp0 |\n"
        "F0 head: x:dense mlp0 -> tape:head |\n"
        "F0 L1 mtp join: x:dense mlp0 -> x:mtp join1 |\n"
        "F0 L1 attention: x:mtp join1 -> x:attention1 tape:attention1 |\n"
        "F0 L1 dense mlp: x:attention1 -> x:dense mlp1 tape:dense mlp1 |\n"
        "F0 L1 head: x:dense mlp1 -> tape:head1 |\n"
        "F0 L2 mtp join: x:dense mlp1 -> x:mtp join2 |\n"
        "F0 L2 attention: x:mtp join2 -> x:attention2 tape:attention2 |\n"
        "F0 L2 dense mlp: x:attention2 -> x:dense mlp2 tape:dense mlp2 |\n"
        "F0 L2 head: x:dense mlp2 -> tape:head2 |\n"
        "B0 L2 head: x:dense mlp2 tape:head2 -> g_x:head2 | x:dense mlp2 tape:head2\n"
        "B0 L2 dense mlp: g_x:head2 x:attention2 tape:dense mlp2 -> g_x:dense mlp2 | g_x:head2 "
        "tape:dense mlp2\n"
        "B0 L2 attention: g_x:dense mlp2 x:mtp join2 x:attention2 tape:attention2 -> "
        "g_x:attention2 | g_x:dense mlp2 x:mtp join2 x:attention2 tape:attention2\n"
        "B0 L1 head: x:dense mlp1 tape:head1 -> g_x:head1 | tape:head1\n"
        "B0 L2 mtp join: g_x:attention2 g_x:head1 x:dense mlp1 -> g_x:mtp join2 | "
        "g_x:attention2 g_x:head1 x:dense mlp1\n"
        "B0 L1 dense mlp: g_x:mtp join2 x:attention1 tape:dense mlp1 -> g_x:dense mlp1 | g_x:mtp "
        "join2 tape:dense mlp1\n"
        "B0 L1 attention: g_x:dense mlp1 x:mtp join1 x:attention1 tape:attention1 -> "
        "g_x:attention1 | g_x:dense mlp1 x:mtp join1 x:attention1 tape:attention1\n"
        "B0 head: x:dense mlp0 tape:head -> g_x:head | tape:head\n"
        "B0 L1 mtp join: g_x:attention1 g_x:head x:dense mlp0 -> g_x:mtp join1 | g_x:attention1 "
        "g_x:head x:dense mlp0\n"
        "B0 L0 dense mlp: g_x:mtp join1 x:attention0 tape:dense mlp0 -> g_x:dense mlp0 | g_x:mtp "
        "join1 tape:dense mlp0\n"
        "B0 L0 attention: g_x:dense mlp0 x:embedding x:attention0 tape:attention0 -> "
        "g_x:attention0 | g_x:dense mlp0 x:embedding x:attention0 tape:attention0\n"
        "B0 embedding: g_x:attention0 -> | g_x:attention0\n"
        "U gradient norm: -> |\n"
        "U optimizer: -> |\n");
}

TEST_CASE("modules give sound graphs on every mesh, schedule and recomputation") {
  for (const bool tied : {false, true})
    for (const int64_t pp : {1, 2, 3})
      for (const int64_t ep : {1, 2})
        for (const PipelineSchedule schedule : {PipelineSchedule::kGPipe, PipelineSchedule::k1F1B})
          for (const Recompute recompute : {Recompute::kNone, Recompute::kFull}) {
            CAPTURE(pp);
            CAPTURE(ep);
            strategy::Strategy s =
                example::strategy({.pp = pp, .ep = ep, .dp = 2 * ep}, 3, 4, schedule, recompute);
            s.mtp_depth = 2;
            const StepGraph step =
                write_step(model::with_mtp(example::model({4, 0, 4}, tied), 2), s);
            CHECK(example::first_problem(step.graph) == "");
            CHECK(graph::find_deadlock(step.graph) == "");
          }
}

TEST_CASE("two stages of one rank each: the graph as it stands") {
  const StepGraph step =
      write_step(example::model({0, 0}), example::strategy({.pp = 2, .ep = 1, .dp = 1}, 2, 1));
  CHECK(graph::print(step.graph, [&](const Task& task) { return task_name(step, task); }) ==
        "rank 0\n"
        "  compute\n"
        "    #1 F0 embedding writes 1\n"
        "    #2 F0 L0 attention reads 1 writes 2 3\n"
        "    #3 F0 L0 dense mlp reads 2 writes 4 5\n"
        "    #5 B0 L0 dense mlp after #0 reads 0 2 5 writes 6 frees 0 5\n"
        "    #6 B0 L0 attention reads 6 1 2 3 writes 7 frees 6 1 2 3\n"
        "    #7 B0 embedding reads 7 frees 7\n"
        "    #8 U gradient norm\n"
        "    #10 U optimizer after #9\n"
        "  exchange\n"
        "    #9 U statistics after #8\n"
        "  send\n"
        "    #4 F0 send -> 1 after #3 reads 4 frees 4\n"
        "  receive\n"
        "    #0 B0 receive <- 1 writes 0\n"
        "rank 1\n"
        "  compute\n"
        "    #12 F0 L1 attention after #11 reads 8 writes 9 10\n"
        "    #13 F0 L1 dense mlp reads 9 writes 11 12\n"
        "    #14 F0 head reads 11 writes 13\n"
        "    #15 B0 head reads 11 13 writes 14 frees 11 13\n"
        "    #16 B0 L1 dense mlp reads 14 9 12 writes 15 frees 14 12\n"
        "    #17 B0 L1 attention after #11 reads 15 8 9 10 writes 16 frees 15 8 9 10\n"
        "    #19 U gradient norm\n"
        "    #21 U optimizer after #20\n"
        "  exchange\n"
        "    #20 U statistics after #19\n"
        "  send\n"
        "    #18 B0 send -> 0 after #17 reads 16 frees 16\n"
        "  receive\n"
        "    #11 F0 receive <- 0 writes 8\n");
}

TEST_CASE("a receive waits for the action before the last") {
  const StepGraph step =
      write_step(example::model({0, 0}), example::strategy({.pp = 2, .ep = 1, .dp = 1}, 2, 4));
  std::map<std::string, std::string> after;
  for (const TaskId id : step.graph.stream(Rank(1), graph::Stream::kReceive)) {
    const Task& task = step.graph.task(id);
    const auto dependencies = step.graph.dependencies(task);
    after[task_name(step, task)] =
        dependencies.empty() ? "" : task_name(step, step.graph.task(dependencies.front()));
  }
  // Actions of the last stage: F0 B0 F1 B1 F2 B2 ...
  CHECK(after == std::map<std::string, std::string>{{"F0 receive <- 0", ""},
                                                    {"F1 receive <- 0", "F0 head"},
                                                    {"F2 receive <- 0", "F1 head"},
                                                    {"F3 receive <- 0", "F2 head"}});
}

TEST_CASE("every mesh, schedule and recomputation gives a sound graph without deadlock") {
  for (const int64_t pp : {1, 2, 4})
    for (const int64_t ep : {1, 2, 4})
      for (const int64_t edp : {1, 2})
        for (const int64_t m : {1, 3, 8})
          for (const PipelineSchedule schedule :
               {PipelineSchedule::kGPipe, PipelineSchedule::k1F1B})
            for (const Recompute recompute : strategy::kRecomputes) {
              CAPTURE(pp);
              CAPTURE(ep);
              CAPTURE(edp);
              CAPTURE(m);
              CAPTURE(strategy::name(schedule));
              CAPTURE(strategy::name(recompute));
              const Mesh mesh{.pp = pp, .ep = ep, .dp = ep * edp};
              const StepGraph step = write_step(example::model({4, 0, 4, 8, 4}, true),
                                                example::strategy(mesh, 5, m, schedule, recompute));
              CHECK(example::first_problem(step.graph) == "");
              CHECK(graph::find_deadlock(step.graph) == "");
            }
}

// Where a layer moves nothing else (one that is dense, or whose experts all are here), nothing but
// keys and values is on the exchange stream, and the backward's gather of them comes next.
TEST_CASE("gathered keys and values give sound graphs on every mesh, schedule and recomputation") {
  for (const Mesh& mesh :
       {Mesh{.pp = 1, .cp = 2}, Mesh{.pp = 2, .cp = 2}, Mesh{.pp = 2, .tp = 2, .cp = 2},
        Mesh{.pp = 2, .dp = 4, .etp = 2, .cp = 2}, Mesh{.pp = 2, .ep = 2, .dp = 2, .cp = 2}})
    for (const int64_t m : {1, 3})
      for (const PipelineSchedule schedule : strategy::kPipelineSchedules)
        for (const Recompute recompute : strategy::kRecomputes) {
          if (mesh.pp == 1 && strategy::is_v(schedule)) continue;
          if (strategy::interleaves(schedule)) continue;
          CAPTURE(strategy::name(schedule));
          CAPTURE(strategy::name(recompute));
          CAPTURE(m);
          Mesh of = mesh;
          if (strategy::is_v(schedule)) of.vpp = 2;
          strategy::Strategy s = example::strategy(of, 5, m, schedule, recompute);
          s.layers_per_stage = strategy::even_split(5, of.num_virtual_stages());
          s.context_exchange = strategy::ContextExchange::kGather;
          const StepGraph step = write_step(example::model({4, 0, 4, 8, 4}, true), s);
          CHECK(example::first_problem(step.graph) == "");
          CHECK(graph::find_deadlock(step.graph) == "");
        }
}

// Sums of dense parts and of experts, over every axis that may let one pass.
TEST_CASE("reductions that yield or come last give sound graphs on every mesh and schedule") {
  for (const Mesh& mesh : {Mesh{.pp = 1, .ep = 2, .dp = 4}, Mesh{.pp = 2, .ep = 2, .dp = 4},
                           Mesh{.pp = 2, .dp = 2}, Mesh{.pp = 2, .ep = 2, .dp = 2, .cp = 2},
                           Mesh{.pp = 2, .ep = 2, .dp = 4, .etp = 2, .tp = 2}})
    for (const strategy::ReductionStart start : strategy::kReductionStarts)
      for (const PipelineSchedule schedule : strategy::kPipelineSchedules)
        for (const int64_t zero : {0, 1}) {
          if (mesh.pp == 1 && strategy::is_v(schedule)) continue;
          if (strategy::interleaves(schedule)) continue;
          CAPTURE(strategy::name(start));
          CAPTURE(strategy::name(schedule));
          CAPTURE(zero);
          Mesh of = mesh;
          if (strategy::is_v(schedule)) of.vpp = 2;
          strategy::Strategy s = example::strategy(of, 5, 3, schedule);
          s.layers_per_stage = strategy::even_split(5, of.num_virtual_stages());
          s.sequence = 4;
          s.zero = zero;
          s.reduction_start = start;
          const StepGraph step = write_step(example::model({4, 0, 4, 8, 4}, true), s);
          CHECK(example::first_problem(step.graph) == "");
          CHECK(graph::find_deadlock(step.graph) == "");
          s.reduction_start = strategy::ReductionStart::kReady;
          CHECK(num_sums(step) == num_sums(write_step(example::model({4, 0, 4, 8, 4}, true), s)));
        }
}

// Layer 1's two sums wait for an exchange of layer 0's backward each. Layer 0's own start at once,
// since the embedding exchanges nothing; what is left comes behind all.
TEST_CASE("reductions that yield start behind exchanges, one after the other") {
  strategy::Strategy s = example::strategy({.pp = 1, .ep = 2, .dp = 4}, 2, 1);
  s.reduction_start = strategy::ReductionStart::kYielding;
  const StepGraph step = write_step(example::model({4, 4}), s);
  std::string lines;
  for (const graph::Task& task : step.graph.tasks()) {
    if (task.rank != Rank(0) || task.stream != graph::Stream::kStates) continue;
    std::string behind;
    for (const graph::TaskId id : step.graph.dependencies(task)) {
      const graph::Task& before = step.graph.task(id);
      if (before.kind == graph::TaskKind::kAllToAll || before.stream == graph::Stream::kStates)
        behind += " < " + task_name(step, before);
    }
    lines += task_name(step, task) + behind + "\n";
  }
  CHECK(lines ==
        "U head dense gradients < B0 L1 combine\n"
        "U L1 dense gradients < B0 L0 combine < U head dense gradients\n"
        "U L1 expert gradients < B0 L0 dispatch < U L1 dense gradients\n"
        "U L0 dense gradients\n"
        "U L0 expert gradients\n"
        "U embedding dense gradients < B0 L0 dispatch\n");
}

// A stage's message lets one pass, too; at the end nothing starts before the last backward's.
TEST_CASE("sums of a pipeline's stages wait for messages, and at the end for the last one") {
  strategy::Strategy s = example::strategy({.pp = 2, .ep = 2, .dp = 4}, 4, 2);
  for (const strategy::ReductionStart start :
       {strategy::ReductionStart::kYielding, strategy::ReductionStart::kEnd}) {
    s.reduction_start = start;
    const StepGraph step = write_step(example::model({4, 4, 4, 4}), s);
    const Rank last_stage = strategy::RankLayout(s).rank(1, 0);
    TaskId backward = TaskId::none(), message = TaskId::none();
    for (const Task& task : step.graph.tasks()) {
      if (task.rank != last_stage) continue;
      if (task.kind == graph::TaskKind::kCompute && graph::is_backward(task.phase))
        backward = task.id;
      if (task.kind == graph::TaskKind::kSend) message = task.id;
    }
    int behind_all = 0, num = 0;
    for (const TaskId id : step.graph.stream(last_stage, graph::Stream::kStates)) {
      const auto after = step.graph.dependencies(step.graph.task(id));
      ++num;
      behind_all +=
          std::ranges::count(after, backward) > 0 && std::ranges::count(after, message) > 0;
    }
    CHECK(num == 5);  // two layers' and the head's
    // Where they yield, only the last layer's wait: one for the message, one until nothing is left.
    CHECK(behind_all == (start == strategy::ReductionStart::kEnd ? 5 : 2));
  }
}

TEST_CASE("a ring gives sound graphs on every mesh, schedule and recomputation") {
  for (const Mesh& mesh :
       {Mesh{.pp = 1, .cp = 2}, Mesh{.pp = 1, .cp = 3}, Mesh{.pp = 2, .cp = 5},
        Mesh{.pp = 2, .tp = 2, .cp = 2}, Mesh{.pp = 2, .ep = 2, .dp = 2, .cp = 4}})
    for (const int64_t m : {1, 3})
      for (const PipelineSchedule schedule : strategy::kPipelineSchedules)
        for (const Recompute recompute : strategy::kRecomputes)
          for (const bool divided : {false, true}) {
            if (mesh.pp == 1 && strategy::is_v(schedule)) continue;
            if (strategy::interleaves(schedule)) continue;
            CAPTURE(strategy::name(schedule));
            CAPTURE(strategy::name(recompute));
            CAPTURE(mesh.cp);
            CAPTURE(m);
            Mesh of = mesh;
            if (strategy::is_v(schedule)) of.vpp = 2;
            strategy::Strategy s = example::strategy(of, 5, m, schedule, recompute);
            s.layers_per_stage = strategy::even_split(5, of.num_virtual_stages());
            s.sequence_parallel = divided && mesh.tp > 1;
            s.sequence = 2 * mesh.cp * mesh.tp;
            const StepGraph step = write_step(example::model({4, 0, 4, 8, 4}, true), s);
            CHECK(example::first_problem(step.graph) == "");
            CHECK(graph::find_deadlock(step.graph) == "");
          }
}

TEST_CASE("a mixture layer in chunks reads, writes and frees what the contract says") {
  strategy::Strategy s = example::strategy({.pp = 1, .ep = 2, .dp = 2}, 1, 1);
  s.moe_schedule = strategy::MoeSchedule::kChunked;
  s.moe_chunks = 2;
  const StepGraph step = write_step(example::model({4}), s);
  std::string names;
  for (const graph::Task& task : step.graph.tasks()) {
    if (task.rank != Rank(1) || !task.segment.valid() || step.segment(task).layer != 0) continue;
    names += task_name(step, task) + "\n";
    // A chunk's tasks read the slots of its own rows alone.
    for (const graph::SlotId slot : step.graph.reads(task))
      if (step.segment(task).chunk > 0)
        CHECK(step.meaning(slot).segment.chunk == step.segment(task).chunk);
  }
  CHECK(names ==
        "F0 L0 attention\nF0 L0 gate\nF0 L0 counts\nF0 L0 dispatch c1\nF0 L0 dispatch c2\n"
        "F0 L0 experts c1\nF0 L0 combine c1\nF0 L0 experts c2\nF0 L0 combine c2\nF0 L0 merge\n"
        "B0 L0 merge\nB0 L0 combine c1\nB0 L0 combine c2\nB0 L0 experts c1\nB0 L0 dispatch c1\n"
        "B0 L0 experts c2\nB0 L0 dispatch c2\nB0 L0 gate\nB0 L0 attention\n"
        "U L0 dense gradients\n");
}

TEST_CASE("chunks give sound graphs on every mesh, schedule and recomputation") {
  for (const Mesh& mesh :
       {Mesh{.pp = 1, .ep = 2, .dp = 2}, Mesh{.pp = 2, .ep = 2, .dp = 4},
        Mesh{.pp = 2, .ep = 2, .dp = 2, .vpp = 2}, Mesh{.pp = 2, .ep = 2, .dp = 4, .etp = 2},
        Mesh{.pp = 2, .ep = 2, .dp = 2, .vpp = 2, .tp = 2},
        Mesh{.pp = 2, .ep = 2, .vpp = 2, .tp = 2, .cp = 2}})
    for (const PipelineSchedule schedule : strategy::kPipelineSchedules)
      for (const Recompute recompute : strategy::kRecomputes)
        for (const int64_t chunks : {2, 5}) {
          strategy::Strategy s = example::strategy(mesh, 5, 4, schedule, recompute);
          s.sequence_parallel = mesh.tp > 1;
          s.moe_schedule = strategy::MoeSchedule::kChunked;
          s.moe_chunks = chunks;
          const model::Model model = example::model({4, 0, 4, 8, 4}, true);
          if (!strategy::contradictions(s, model).empty()) continue;
          CAPTURE(strategy::name(schedule));
          CAPTURE(strategy::name(recompute));
          const StepGraph step = write_step(model, s);
          CHECK(example::first_problem(step.graph) == "");
          CHECK(graph::find_deadlock(step.graph) == "");
        }
}

TEST_CASE("odd sizes give sound graphs too") {
  const StepGraph step = write_step(example::model({7, 7, 7, 7, 7, 7, 7}),
                                    example::strategy({.pp = 7, .ep = 7, .dp = 7}, 7, 3));
  CHECK(example::first_problem(step.graph) == "");
  CHECK(graph::find_deadlock(step.graph) == "");
}

TEST_CASE("a subset of the ranks is written with the same tasks, and is sound without the others") {
  const model::Model model = example::model({4, 4, 4, 4});
  const strategy::Strategy strategy = example::strategy({.pp = 4, .ep = 2, .dp = 4}, 4, 8);
  const std::vector<Rank> pipeline =
      strategy::RankLayout(strategy).group(strategy::Axis::kPipeline, Rank(1));
  const StepGraph whole = write_step(model, strategy);
  const StepGraph part = write_step(model, strategy, pipeline);
  CHECK(part.graph.tasks().size() * 4 == whole.graph.tasks().size());
  for (const Rank rank : pipeline) CHECK(lives(part, rank) == lives(whole, rank));
  CHECK_FALSE(part.graph.takes_part(Rank(0)));
  CHECK(example::first_problem(part.graph) == "");
  CHECK(graph::find_deadlock(part.graph) == "");
}

TEST_CASE("a strategy that does not fit its model is refused") {
  CHECK_THROWS_AS(
      write_step(example::model({4}), example::strategy({.pp = 2, .ep = 1, .dp = 1}, 2, 1)),
      InternalError);
}

TEST_CASE("a large step is sound") {
  const strategy::Strategy strategy = example::strategy({.pp = 16, .ep = 8, .dp = 8}, 61, 16);
  const StepGraph step = write_step(example::model(std::vector<int64_t>(61, 64)), strategy);
  CHECK(step.graph.tasks().size() > 100'000);
  CHECK(example::first_problem(step.graph) == "");
  CHECK(graph::find_deadlock(step.graph) == "");
}
