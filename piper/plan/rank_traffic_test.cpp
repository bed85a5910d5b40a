#include <doctest/doctest.h>
#include <piper/cost/example_model.h>
#include <piper/cost/links.h>
#include <piper/cost/sent_bytes.h>
#include <piper/plan/rank_traffic.h>

#include <map>

namespace piper::plan {
namespace {

namespace example = cost::example;

double sent(const std::vector<RankGroup>& groups, Axis axis) {
  double bytes = 0;
  for (const RankGroup& group : groups)
    if (group.axis == axis) bytes += group.sent();
  return bytes;
}

// What the runtime sends, by the axis that it belongs to.
std::map<Axis, double> exact(const model::Model& model, const strategy::Strategy& s) {
  const schedule::StepGraph step = schedule::write_step(model, s);
  std::map<Axis, double> bytes;
  for (const cost::SentBytes& sent : cost::sent_bytes(
           step, model, s, cost::topology_of_ranks(example::nodes(), s.mesh.world()))) {
    const graph::Task& task = step.graph.task(sent.task);
    const auto n = static_cast<double>(sent.bytes);
    if (task.kind == graph::TaskKind::kAllToAll) bytes[Axis::kExperts] += n;
    if (task.kind == graph::TaskKind::kSend) bytes[Axis::kMessages] += n;
    if (task.kind != graph::TaskKind::kAllReduce) continue;
    switch (step.segment(task).kind) {
      case schedule::SegmentKind::kDenseGradients:
        bytes[Axis::kData] += n;
        break;
      case schedule::SegmentKind::kExpertGradients:
        bytes[Axis::kExpertData] += n;
        break;
      case schedule::SegmentKind::kTiedEmbedding:
        bytes[Axis::kEnds] += n;
        break;
      default:
        break;  // statistics
    }
  }
  return bytes;
}

strategy::Strategy wide(const model::Model& model) {
  strategy::Strategy s = example::strategy(model, 2, 2, 4);
  s.mesh.tp = 2;
  s.mesh.cp = 2;
  s.mesh.etp = 2;
  s.precision = strategy::Precision::kBf16;
  return s;
}

}  // namespace

TEST_CASE("bytes of every axis are those that the runtime sends") {
  for (const bool tied : {false, true})
    for (const auto& [pp, ep, dp] :
         {std::array<int64_t, 3>{1, 2, 4}, {2, 2, 4}, {4, 1, 2}, {2, 4, 4}, {3, 1, 1}}) {
      CAPTURE(pp);
      CAPTURE(ep);
      const model::Model model = example::mixture(5, tied);
      for (const strategy::Recompute recompute :
           {strategy::Recompute::kNone, strategy::Recompute::kFull}) {
        strategy::Strategy s = example::strategy(model, pp, ep, dp);
        s.recompute = recompute;
        const std::vector<RankGroup> groups = rank_traffic(model, s);
        std::map<Axis, double> runtime = exact(model, s);
        for (size_t i = 0; i < kNumAxes; ++i) {
          const auto axis = static_cast<Axis>(i);
          CAPTURE(name(axis));
          // Shares of a reduction are whole elements.
          CHECK(sent(groups, axis) == doctest::Approx(runtime[axis]).epsilon(1e-12));
        }
      }
    }
}

TEST_CASE("tensor, context and expert-tensor bytes, counted by hand") {
  const model::Model model = example::mixture(2);
  const strategy::Strategy s = wide(model);  // 32 ranks; 4 micro-batches of 2 x 16 / 2 tokens
  const std::vector<RankGroup> groups = rank_traffic(model, s);
  const double state = 16 * 8 * 2 * 4;  // tokens, hidden, bytes, micro-batches
  for (const RankGroup& group : groups) {
    CHECK(std::ranges::is_sorted(group.ranks));
    switch (group.axis) {
      case Axis::
          kTensor:  // attention alone: 2 gathers forward, 2 backward, half of the buffer a hop
        CHECK(group.bytes == doctest::Approx(4 * state / 2));
        CHECK(group.ranks.size() == 2);
        break;
      case Axis::kContext:  // 1 key head of 4 a rank, and values; three times the other half
        CHECK(group.bytes == doctest::Approx(3 * 16 * 8 * 2 * 4));
        break;
      case Axis::kExperts:  // 4 exchanges of 16 / 2 tokens x 2 rows, half of them
        CHECK(group.bytes == doctest::Approx(4 * 8 * 2 * 8 * 2 * 4 / 2.0));
        CHECK(group.ranks[1] - group.ranks[0] == 2);
        break;
      case Axis::kExpertTensor:  // rows of both, half a hop, gathered and scattered, twice
        CHECK(group.bytes == doctest::Approx(4 * (8 * 2 * 8 * 2 * 4) * 2 / 2.0));
        break;
      case Axis::kMessages:
        CHECK(group.bytes == doctest::Approx(state));
        break;
      case Axis::kData:
      case Axis::kExpertData:
      case Axis::kEnds:
        break;
    }
  }
  CHECK(exchange_pair_bytes(model, s) == doctest::Approx(8 * 2 * 8 * 2 / 2.0));
}

TEST_CASE("every rank is in one group of each axis that is larger than one") {
  const model::Model model = example::mixture(4);
  for (const strategy::Placement placement : strategy::kPlacements) {
    strategy::Strategy s = wide(model);
    s.placement = placement;
    std::map<std::pair<Axis, int32_t>, int> count;
    for (const RankGroup& group : rank_traffic(model, s))
      for (const int32_t rank : group.ranks) ++count[{group.axis, rank}];
    for (const Axis axis : {Axis::kExperts, Axis::kTensor, Axis::kContext, Axis::kExpertTensor,
                            Axis::kData, Axis::kExpertData, Axis::kMessages})
      for (int32_t rank = 0; rank < s.mesh.world(); ++rank) CHECK(count[{axis, rank}] == 1);
  }
}

TEST_CASE("a V sends between neighbours twice, and nothing in its turn") {
  const model::Model model = example::mixture(4);
  strategy::Strategy s = example::strategy(model, 2, 1, 1);
  s.mesh.vpp = 2;
  s.schedule = strategy::PipelineSchedule::kZbV;
  s.layers_per_stage = {1, 1, 1, 1};
  const std::vector<RankGroup> groups = rank_traffic(model, s);
  REQUIRE(groups.size() == 1);
  CHECK(groups[0].axis == Axis::kMessages);
  CHECK(groups[0].bytes == doctest::Approx(2.0 * 32 * 8 * 4 * 4));
}

}  // namespace piper::plan
