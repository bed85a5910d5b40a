#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/cluster/cluster.h>
#include <piper/cost/executor_estimator.h>
#include <piper/cost/expert_rows.h>
#include <piper/cost/prices.h>
#include <piper/cost/segment_time.h>
#include <testing/cost/example_model.h>
#include <testing/cost/relative_approx.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace piper::cost {
namespace {

using schedule::SegmentKind;

struct Priced {
  schedule::StepGraph step;
  Prices prices;
};

Priced priced(const ExpertLoad& load, double capacity_factor = 0) {
  const model::Model model = example::mixture(2);
  strategy::Strategy s = example::strategy(model, 1, 2, 4, 1);
  s.capacity.factor = capacity_factor;
  Priced p{schedule::write_step(model, s), {}};
  p.prices = price(p.step, model, s, example::nodes(), load);
  return p;
}

// Sum of one rank's forward tasks of a kind.
double seconds(const Priced& p, Rank rank, graph::TaskKind kind, SegmentKind segment) {
  double sum = 0;
  for (const graph::Task& task : p.step.graph.tasks())
    if (task.rank == rank && task.kind == kind && task.phase == graph::Phase::kForward &&
        p.step.segment(task).kind == segment)
      sum += p.prices.seconds[task.id.index()];
  return sum;
}

}  // namespace

TEST_CASE("the bytes alone are those of the prices, of every kind of task") {
  const model::Model model = example::mixture(4);
  std::vector<strategy::Strategy> all;
  const auto add = [&](int64_t pp, int64_t ep, int64_t dp, int64_t m) -> strategy::Strategy& {
    return all.emplace_back(example::strategy(model, pp, ep, dp, m));
  };
  for (int64_t zero = 0; zero <= 3; ++zero) add(2, 2, 2, 2).zero = zero;
  add(1, 2, 4, 1).all_to_all = strategy::AllToAll::kHaloDedup;
  add(1, 4, 4, 2).capacity.factor = 1;
  add(2, 2, 2, 2).offload = strategy::Offload::kOptimizerAndActivations;
  add(1, 2, 4, 2).redundant_experts = 2;
  add(2, 1, 2, 2).schedule = strategy::PipelineSchedule::kZbH1;
  strategy::Strategy& compressed = add(1, 2, 4, 2);
  compressed.zero = 1, compressed.expert_compression = 10;
  strategy::Strategy& chunked = add(1, 2, 4, 2);
  chunked.moe_schedule = strategy::MoeSchedule::kChunked, chunked.moe_chunks = 2;
  strategy::Strategy& peers = add(1, 4, 4, 2);
  peers.moe_schedule = strategy::MoeSchedule::kFasterMoe, peers.moe_chunks = 2;
  for (const strategy::Strategy& s : all) {
    for (const strategy::Contradiction& c : strategy::contradictions(s, model)) FAIL(c.text);
    const schedule::StepGraph step = schedule::write_step(model, s);
    const Prices whole = price(step, model, s, example::nodes());
    const StepBytes alone = step_bytes(step, model, s, example::nodes());
    CHECK(alone.transient_bytes == whole.transient_bytes);
    CHECK(alone.slot_bytes == whole.slot_bytes);
  }
  // What was asked before changes no answer.
  const cluster::Cluster nodes = example::nodes();
  ExecutorEstimator kept(model, nodes, all.front().precision, all.front().sequence);
  for (int round = 0; round < 2; ++round)
    for (const strategy::Strategy& s : all) {
      ExecutorEstimator fresh(model, nodes, s.precision, s.sequence);
      const Estimate bytes = kept.bytes(s), estimate = kept.estimate(s);
      CHECK(bytes.peak_bytes == fresh.bytes(s).peak_bytes);
      CHECK(estimate.peak_bytes == bytes.peak_bytes);
      if (s.zero >= 2) continue;  // sums start when they are ready
      strategy::Strategy later = s;
      later.reduction_start = strategy::ReductionStart::kYielding;
      CHECK(kept.bytes(later).peak_bytes ==
            ExecutorEstimator(model, nodes, s.precision, s.sequence).bytes(later).peak_bytes);
    }
}

TEST_CASE("the experts beside the largest are counted by size, each with rows of its own") {
  const model::Model model = example::mixture(1);
  const strategy::Strategy s = example::strategy(model, 1, 1, 1, 1);
  const auto others = [&](const std::vector<double>& share) {
    ExpertLoad load;
    load.share = {share};
    std::vector<int64_t> numbers;  // of experts, then rows
    for (const ExpertsOfSize& alike : ExpertRows(model, s, load).work(0, 0).other_experts)
      if (alike.num_experts > 0)
        numbers.insert(numbers.end(), {int64_t{alike.num_experts}, alike.rows});
    return numbers;
  };
  const int64_t rows = balanced_work(model, 0, s.micro_batch_sequences, s.sequence, 1, 4).rows;
  using Numbers = std::vector<int64_t>;
  CHECK(others({0.5, 0.5, 0, 0}) ==
        Numbers{1, rows / 2});  // a router that always chooses the same two
  CHECK(others({0.5, 0, 0.25, 0.25}) == Numbers{2, rows / 2});
  CHECK(others({0.25, 0.25, 0.25, 0.25}) == Numbers{3, 3 * rows / 4});
  CHECK(others({0.75, 0, 0.125, 0.125}) == Numbers{2, rows / 4});
  CHECK(others({0.5, 0.25, 0.125, 0.125}) == Numbers{1, rows / 4, 2, rows / 4});
  CHECK(others({1, 0, 0, 0}).empty());
}

// A layer has many experts: with few rows each expert takes what reading its weights takes,
// whichever rank has the rows.
TEST_CASE("a skewed load does not merge thin experts into thick ones") {
  model::Model model = example::mixture(1);
  model.hidden = 2048;
  model.layers[0].feed_forward = {.ffn = 768, .num_experts = 256, .top_k = 8};
  cluster::Cluster machine = cluster::load_cluster("dgx-h100");
  strategy::Strategy s = example::strategy(model, 1, 1, 1, 1);
  s.precision = strategy::Precision::kBf16;
  s.sequence = 4096;
  const auto seconds = [&](double exponent) {
    ExpertLoad load;
    load.share.resize(1);
    double sum = 0;
    for (int e = 1; e <= 256; ++e) sum += std::pow(e, -exponent);
    for (int e = 1; e <= 256; ++e) load.share[0].push_back(std::pow(e, -exponent) / sum);
    const SegmentWork work = ExpertRows(model, s, load).work(0, 0);
    return segment_seconds(model, {SegmentKind::kExperts, 0}, graph::Phase::kForward, work, machine,
                           strategy::Precision::kBf16);
  };
  const double even = seconds(0);
  for (const double exponent : {0.25, 0.5, 0.75}) CHECK(seconds(exponent) >= 0.9 * even);
}

TEST_CASE("equal shares cost what a balanced load costs, task by task and slot by slot") {
  const Priced balanced = priced({});
  const Priced equal = priced({{{0.25, 0.25, 0.25, 0.25}, {}}});
  REQUIRE(balanced.prices.seconds.size() == equal.prices.seconds.size());
  for (size_t i = 0; i < equal.prices.seconds.size(); ++i)
    CHECK(equal.prices.seconds[i] == near(balanced.prices.seconds[i]));
  CHECK(equal.prices.slot_bytes == balanced.prices.slot_bytes);
}

TEST_CASE(
    "a hot expert costs its own rank compute, everyone the exchange, and the others nothing") {
  const Priced balanced = priced({});
  const Priced hot = priced({{{1, 0, 0, 0}, {1, 0, 0, 0}}});  // expert 0 is on ep index 0
  const auto experts = [](const Priced& p, int64_t rank) {
    return seconds(p, Rank(rank), graph::TaskKind::kCompute, SegmentKind::kExperts);
  };
  CHECK(experts(hot, 0) > 1.5 * experts(balanced, 0));
  CHECK(experts(hot, 1) == 0);
  CHECK(experts(hot, 2) == experts(hot, 0));  // the replica
  CHECK(seconds(hot, Rank(1), graph::TaskKind::kAllToAll, SegmentKind::kGate) >
        seconds(balanced, Rank(1), graph::TaskKind::kAllToAll, SegmentKind::kGate));
}

// 2 sequences of 16 tokens, top 2 of 4 experts: 64 copies, 8 an expert and sequence when balanced.
TEST_CASE("a capacity lowers what is sent, computed and kept, as far as it drops") {
  const auto rows = [](const Priced& p, schedule::SlotKind kind, int64_t rank) {
    for (size_t i = 0; i < p.step.graph.slots().size(); ++i) {
      const graph::Slot& slot = p.step.graph.slots()[i];
      if (slot.rank == Rank(rank) && p.step.slots[slot.shape.index()].kind == kind)
        return p.prices.slot_bytes[i] / (8 * 4);  // rows of d 8, fp32
    }
    return int64_t{-1};
  };
  using schedule::SlotKind;
  const auto experts = [](const Priced& p, int64_t rank) {
    return seconds(p, Rank(rank), graph::TaskKind::kCompute, SegmentKind::kExperts);
  };
  const auto exchange = [](const Priced& p) {
    return seconds(p, Rank(0), graph::TaskKind::kAllToAll, SegmentKind::kGate);
  };
  const Priced dropless = priced({}), enough = priced({}, 1), half = priced({}, 0.5);
  CHECK(enough.prices.slot_bytes == dropless.prices.slot_bytes);
  for (const graph::Task& task : dropless.step.graph.tasks())
    if (task.kind != graph::TaskKind::kAllReduce)  // statistics: rows beside choices
      CHECK(enough.prices.seconds[task.id.index()] == dropless.prices.seconds[task.id.index()]);
  CHECK(rows(dropless, SlotKind::kRows, 0) == 64);
  CHECK(rows(half, SlotKind::kRows, 0) == 32);
  CHECK(rows(half, SlotKind::kReceived, 0) == 32);
  CHECK(experts(half, 0) < 0.8 * experts(dropless, 0));
  CHECK(exchange(half) < exchange(dropless));
  // A hot expert receives no more than its capacity: 2 ranks x 2 sequences x 8.
  const Priced hot = priced({{{1, 0, 0, 0}, {1, 0, 0, 0}}}, 1);
  CHECK(rows(hot, SlotKind::kRows, 0) == 16);
  CHECK(rows(hot, SlotKind::kReceived, 0) == 32);
  CHECK(rows(hot, SlotKind::kReceived, 1) == 0);
  // What a run kept counts, where it is known: 3/8 of 64 copies, half of them for expert 0.
  const Priced run =
      priced({.share = {{0.5, 0.5, 0, 0}, {0.5, 0.5, 0, 0}}, .kept = {0.375, 0.375}}, 1);
  CHECK(rows(run, SlotKind::kRows, 0) == 24);
  CHECK(rows(run, SlotKind::kReceived, 0) == 48);
}

TEST_CASE("rows known by micro-batch and rank price each alone, and even ones as a balanced load") {
  RoutedRows even;
  for (const int32_t layer : {0, 1})
    for (int64_t dp = 0; dp < 4; ++dp) even[{layer, 0, dp}] = {16, 16, 16, 16};
  const Priced balanced = priced({}), same = priced({.routed = even});
  CHECK(same.prices.slot_bytes == balanced.prices.slot_bytes);
  CHECK(same.prices.transient_bytes == balanced.prices.transient_bytes);
  // Rank 2 sends all its 64 rows of layer 1 to expert 3, which rank 3 holds.
  RoutedRows hot = even;
  hot[{1, 0, 2}] = {0, 0, 0, 64};
  const Priced skewed = priced({.routed = hot});
  int64_t moved = 0;
  for (size_t i = 0; i < skewed.step.graph.slots().size(); ++i) {
    const graph::Slot& slot = skewed.step.graph.slots()[i];
    const schedule::SlotMeaning& meaning =
        skewed.step.meaning(graph::SlotId(static_cast<int64_t>(i)));
    const int64_t bytes = skewed.prices.slot_bytes[i];
    if (slot.rank < Rank(2) || meaning.segment.layer != 1) {
      CHECK(bytes == balanced.prices.slot_bytes[i]);
    } else if (meaning.kind == schedule::SlotKind::kReceived) {
      ++moved;
      CHECK(bytes / (8 * 4) == (slot.rank == Rank(2) ? 32 : 32 + 64));
    }
  }
  CHECK(moved == 2);
  hot.erase({1, 0, 2});
  CHECK_THROWS_AS(priced({.routed = hot}), InvalidInput);
}

// The key of known prices once had three bits for a task's kind: a ring, the ninth kind, got the
// price of the computation of its segment.
TEST_CASE("a task does not take the price of another kind") {
  const model::Model model = example::mixture(2);
  const strategy::Strategy s = example::strategy(model, 1, 2, 4, 1);
  schedule::StepGraph step = schedule::write_step(model, s);
  const auto writes_a_tape = [&](const graph::Task& task) {
    return std::ranges::any_of(step.graph.writes(task), [&](graph::SlotId slot) {
      return step.meaning(slot).kind == schedule::SlotKind::kTape;
    });
  };
  const auto plain = std::ranges::find_if(step.graph.tasks(), [&](const graph::Task& task) {
    return task.kind == graph::TaskKind::kCompute && !writes_a_tape(task);
  });
  REQUIRE(plain != step.graph.tasks().end());
  const graph::Task known = *plain;
  step.graph.add({.rank = known.rank,
                  .kind = graph::TaskKind::kRing,
                  .phase = known.phase,
                  .segment = known.segment,
                  .operation = step.graph.new_operation(),
                  .group = graph::GroupId(0)});
  const cluster::Cluster cluster = example::nodes();
  const Prices prices = price(step, model, s, cluster);
  CHECK(prices.seconds.back() ==
        ring_hop_seconds(cluster, group_of(step.graph.group(graph::GroupId(0))), 0));
}

TEST_CASE("a hop of a ring is a gather's part, or one message where that is slower") {
  const cluster::Cluster cluster = example::nodes();
  for (const int64_t size : {2, 4})
    for (const double bytes : {0.0, 1e3, 1e8}) {
      const Group group{.size = size};
      const double hop = ring_hop_seconds(cluster, group, bytes);
      const double part = all_reduce_seconds(cluster, group, bytes * static_cast<double>(size)) /
                          2 / static_cast<double>(size - 1);
      CHECK(hop == std::max(part, point_to_point_seconds(cluster, 0, 1, bytes)));
    }
  CHECK(ring_hop_seconds(cluster, {.size = 1}, 1e8) == 0);
}

TEST_CASE("the closed form's memory is the simulation's rows under a capacity too") {
  const model::Model model = example::mixture(2);
  strategy::Strategy s = example::strategy(model, 1, 2, 4, 1);
  const cluster::Cluster cluster = example::nodes();
  ExecutorEstimator estimator(model, cluster, s.precision, s.sequence);
  const ExactEstimate dropless = estimator.exact(s);
  s.capacity.factor = 0.5;
  const ExactEstimate half = estimator.exact(s);  // not what was looked up before
  CHECK(half.peak_bytes < dropless.peak_bytes);
  CHECK(half.seconds < dropless.seconds);
  s.capacity.factor = 1;
  CHECK(estimator.exact(s).seconds == doctest::Approx(dropless.seconds).epsilon(1e-3));
  CHECK(estimator.exact(s).peak_bytes == dropless.peak_bytes);
  // Padded, an even load costs what its capacity is: as much as choices for so many experts.
  s.capacity = {.factor = 1, .pads = true};
  CHECK(estimator.exact(s).peak_bytes == dropless.peak_bytes);
  s.capacity.factor = 1.5;
  const ExactEstimate padded = estimator.exact(s);
  CHECK(padded.seconds > dropless.seconds);
  CHECK(padded.peak_bytes > dropless.peak_bytes);
}

TEST_CASE("where a capacity is padded no load is uneven") {
  const model::Model model = example::mixture(2);
  strategy::Strategy s = example::strategy(model, 1, 2, 4, 1);
  s.capacity = {.factor = 1.5, .pads = true};
  const ExpertLoad hot{.share = {{1, 0, 0, 0}, {0.25, 0.25, 0.5, 0}}};
  const ExpertRows even(model, s, {}), uneven(model, s, hot);
  const int64_t each = s.micro_batch_sequences * strategy::expert_capacity(1.5, s.sequence, 2, 4);
  for (const int32_t layer : {0, 1})
    for (const int64_t to : {0, 1}) {
      const SegmentWork work = uneven.work(layer, to), balanced = even.work(layer, to);
      CHECK(work.rows == 4 * each);
      CHECK(work.received_rows == 4 * each);
      CHECK(work.largest_expert_rows == 2 * each);
      CHECK(balanced.rows == work.rows);
      CHECK(balanced.received_rows == work.received_rows);
      CHECK(balanced.largest_expert_rows == work.largest_expert_rows);
      CHECK(uneven.rows_of_pair(layer, to) == even.rows_of_pair(layer, to));
    }
}

TEST_CASE("a load that does not fit the model is refused, all problems at once") {
  try {
    priced({{{0.5, 0.5}, {0.5, 0.5, 0.5, 0}}});
    FAIL("accepted");
  } catch (const InvalidInput& error) {
    CHECK(error.problems().size() == 2);
  }
}

}  // namespace piper::cost
