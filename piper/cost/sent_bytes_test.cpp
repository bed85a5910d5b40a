#include <doctest/doctest.h>
#include <piper/cost/rank_parameters.h>
#include <piper/cost/sent_bytes.h>
#include <testing/cost/example_model.h>

#include <algorithm>

namespace piper::cost {
namespace {

struct Sent {
  schedule::StepGraph step;
  std::vector<SentBytes> bytes;
};

Sent sent(const strategy::Strategy& s, const model::Model& model, const ExpertLoad& load = {}) {
  Sent result{schedule::write_step(model, s), {}};
  result.bytes =
      sent_bytes(result.step, model, s, topology_of_ranks(example::nodes(), s.mesh.world()), load);
  return result;
}

// From one rank to another, all tasks of a kind and phase together.
int64_t total(const Sent& sent, Rank from, Rank to, graph::TaskKind kind, graph::Phase phase) {
  int64_t bytes = 0;
  for (const SentBytes& s : sent.bytes) {
    const graph::Task& task = sent.step.graph.task(s.task);
    if (task.rank == from && s.to == to && task.kind == kind && task.phase == phase)
      bytes += s.bytes;
  }
  return bytes;
}

}  // namespace

TEST_CASE("a balanced exchange sends every other member the same rows, and counts beside") {
  const model::Model model = example::mixture(2);
  const Sent s = sent(example::strategy(model, 1, 2, 2, 3), model);
  // 2 x 16 tokens, top 2, half of the rows to the peer, 8 values of 4 bytes; 2 layers, 3
  // micro-batches; dispatch and combine.
  const int64_t rows = 2 * 16 * 2 / 2;
  for (const graph::Phase phase : {graph::Phase::kForward, graph::Phase::kBackward})
    CHECK(total(s, Rank(0), Rank(1), graph::TaskKind::kAllToAll, phase) == rows * 32 * 2 * 3 * 2);
  // 2 experts of the peer, 8 bytes each.
  CHECK(total(s, Rank(1), Rank(0), graph::TaskKind::kExchangeCounts, graph::Phase::kForward) ==
        2 * 8 * 2 * 3);
}

TEST_CASE(
    "routed rows decide, pair by pair: what goes out in the dispatch comes back in the combine") {
  const model::Model model = example::mixture(1);
  const strategy::Strategy strategy = example::strategy(model, 1, 2, 2, 1);
  ExpertLoad load;
  load.routed[{0, 0, 0}] = {10, 20, 30, 4};  // rank 0 sends 34 rows to rank 1
  load.routed[{0, 0, 1}] = {1, 2, 30, 31};   // rank 1 sends 3 rows to rank 0
  const Sent s = sent(strategy, model, load);
  const int64_t row = 8 * 4;
  // Out (dispatch) and back (combine): each direction carries both.
  CHECK(total(s, Rank(0), Rank(1), graph::TaskKind::kAllToAll, graph::Phase::kForward) ==
        (34 + 3) * row);
  CHECK(total(s, Rank(1), Rank(0), graph::TaskKind::kAllToAll, graph::Phase::kForward) ==
        (3 + 34) * row);
  int64_t largest = 0;
  for (const SentBytes& b : s.bytes)
    if (s.step.graph.task(b.task).kind == graph::TaskKind::kAllToAll)
      largest = std::max(largest, b.bytes);
  CHECK(largest == 34 * row);
}

TEST_CASE("a group of peers is sent its rows in its chunk, and nothing in any other") {
  const model::Model model = example::mixture(1);
  strategy::Strategy strategy = example::strategy(model, 1, 4, 4, 1);
  const Sent whole = sent(strategy, model);
  strategy.moe_schedule = strategy::MoeSchedule::kFasterMoe;
  strategy.moe_chunks = 3;  // distances 0; 1; 2 and 3
  const Sent groups = sent(strategy, model);
  using graph::Phase;
  using graph::TaskKind;
  for (const Phase phase : {Phase::kForward, Phase::kBackward})
    for (int64_t from = 0; from < 4; ++from)
      for (int64_t to = 0; to < 4; ++to)
        CHECK(total(groups, Rank(from), Rank(to), TaskKind::kAllToAll, phase) ==
              total(whole, Rank(from), Rank(to), TaskKind::kAllToAll, phase));
  for (const SentBytes& bytes : groups.bytes) {
    const graph::Task& task = groups.step.graph.task(bytes.task);
    const schedule::Segment& segment = groups.step.segment(task);
    if (task.kind != TaskKind::kAllToAll) continue;
    const int64_t there = (bytes.to.value - task.rank.value + 4) % 4;
    // Rows and, in the backward, gradients of results go to the experts; results and gradients of
    // rows come back.
    const bool out =
        (segment.kind == schedule::SegmentKind::kGate) == (task.phase == Phase::kForward);
    const int64_t distance = out ? there : 4 - there;
    CHECK(segment.chunk == (distance == 1 ? 2 : 3));
  }
}

TEST_CASE(
    "where tokens travel in place of copies, tokens are counted, and a weight for each copy") {
  const model::Model model = example::mixture(1);
  strategy::Strategy strategy = example::strategy(model, 1, 2, 2, 1);
  strategy.all_to_all = strategy::AllToAll::kHaloDedup;
  const int64_t row = 8 * 4;
  using graph::Phase;
  using graph::TaskKind;

  // 2 experts drawn of 4: of 32 tokens 5/6 have one on the peer, 27. Half of 64 copies go there.
  const Sent balanced = sent(strategy, model);
  for (const Phase phase : {Phase::kForward, Phase::kBackward})
    CHECK(total(balanced, Rank(0), Rank(1), TaskKind::kAllToAll, phase) == 2 * 27 * row + 32 * 4);
  // A bit for each of 32 tokens and 2 experts; inside a node nothing else.
  CHECK(total(balanced, Rank(0), Rank(1), TaskKind::kExchangeCounts, Phase::kForward) == 8);

  ExpertLoad load;
  load.routed[{0, 0, 0}] = {10, 20, 30, 4};
  load.routed[{0, 0, 1}] = {1, 2, 30, 31};
  load.distinct[{0, 0, 0}] = {25, 31, 32};  // to rank 0, to rank 1, into the node
  load.distinct[{0, 0, 1}] = {3, 32, 32};
  const Sent s = sent(strategy, model, load);
  // Out: 31 tokens and 34 weights; back, of rank 1's tokens: 3.
  CHECK(total(s, Rank(0), Rank(1), TaskKind::kAllToAll, Phase::kForward) ==
        (31 + 3) * row + 34 * 4);
  // The gradients of the weights go the other way: rank 1 had 3 copies here.
  CHECK(total(s, Rank(0), Rank(1), TaskKind::kAllToAll, Phase::kBackward) ==
        (31 + 3) * row + 3 * 4);
}

TEST_CASE("stages send hidden rows, and an all-reduce a share out and a share back") {
  const model::Model model = example::mixture(2);
  const Sent s = sent(example::strategy(model, 2, 1, 2, 3), model);
  CHECK(total(s, Rank(0), Rank(2), graph::TaskKind::kSend, graph::Phase::kForward) ==
        2 * 16 * 8 * 4 * 3);
  CHECK(total(s, Rank(2), Rank(0), graph::TaskKind::kSend, graph::Phase::kBackward) ==
        2 * 16 * 8 * 4 * 3);
  // Rank 0: embedding 32 x 8, layer 0 dense and experts: with two members half of each goes out and
  // half comes back, so that every value crosses once each way; and the 7 + 2 x 4 statistics of 8
  // bytes: 4 of 15 to each of three, 3 or 4 of theirs.
  const int64_t layer = dense_parameters(model, 0, 2) + expert_parameters(model, 0, 1);
  CHECK(total(s, Rank(0), Rank(1), graph::TaskKind::kAllReduce, graph::Phase::kUpdate) ==
        (32 * 8 + layer) * 4 + (4 + 4) * 8);
  CHECK(total(s, Rank(0), Rank(3), graph::TaskKind::kAllReduce, graph::Phase::kUpdate) ==
        (4 + 3) * 8);
}

}  // namespace piper::cost
