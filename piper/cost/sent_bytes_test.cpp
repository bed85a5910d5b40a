#include <doctest/doctest.h>
#include <piper/cost/example_model.h>
#include <piper/cost/sent_bytes.h>
#include <piper/cost/shard.h>

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
  // 2 x 16 tokens, top 2, half of the rows to the peer, 8 values of 4 bytes; 2 layers, 3 micro-batches; dispatch and combine.
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

TEST_CASE("stages send hidden rows, and an all-reduce a share out and a share back") {
  const model::Model model = example::mixture(2);
  const Sent s = sent(example::strategy(model, 2, 1, 2, 3), model);
  CHECK(total(s, Rank(0), Rank(2), graph::TaskKind::kSend, graph::Phase::kForward) ==
        2 * 16 * 8 * 4 * 3);
  CHECK(total(s, Rank(2), Rank(0), graph::TaskKind::kSend, graph::Phase::kBackward) ==
        2 * 16 * 8 * 4 * 3);
  // Rank 0: embedding 32 x 8, layer 0 dense and experts: with two members half of each goes out and half comes back, so
  // that every value crosses once each way; and the 7 + 2 x 4 statistics of 8 bytes: 4 of 15 to each of three, 3 or 4 of theirs.
  const int64_t layer = dense_parameters(model, 0, 2) + expert_parameters(model, 0, 1);
  CHECK(total(s, Rank(0), Rank(1), graph::TaskKind::kAllReduce, graph::Phase::kUpdate) ==
        (32 * 8 + layer) * 4 + (4 + 4) * 8);
  CHECK(total(s, Rank(0), Rank(3), graph::TaskKind::kAllReduce, graph::Phase::kUpdate) ==
        (4 + 3) * 8);
}

}  // namespace piper::cost
