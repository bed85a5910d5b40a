#include <doctest/doctest.h>
#include <piper/cost/links.h>
#include <piper/cost/sent_bytes.h>
#include <piper/model/count.h>
#include <piper/placement/rank_traffic.h>
#include <piper/strategy/state_bytes.h>
#include <testing/cost/example_model.h>

#include <algorithm>
#include <map>

namespace piper::placement {
namespace {

namespace example = cost::example;

double sent(const std::vector<RankGroup>& groups, Axis axis) {
  double bytes = 0;
  for (const RankGroup& group : groups)
    if (group.axis == axis) bytes += group.sent();
  return bytes;
}

// What the executor sends, by the axis that it belongs to.
std::map<Axis, double> exact(const model::Model& model, const strategy::Strategy& s) {
  const schedule::StepGraph step = schedule::write_step(model, s);
  std::map<Axis, double> bytes;
  for (const cost::SentBytes& sent : cost::sent_bytes(
           step, model, s, cost::topology_of_ranks(example::nodes(), s.mesh.world()))) {
    const graph::Task& task = step.graph.task(sent.task);
    const auto n = static_cast<double>(sent.bytes);
    if (task.kind == graph::TaskKind::kAllToAll) bytes[Axis::kExpert] += n;
    if (task.kind == graph::TaskKind::kSend) bytes[Axis::kPipeline] += n;
    if (task.kind != graph::TaskKind::kAllReduce) continue;
    switch (step.segment(task).kind) {
      case schedule::SegmentKind::kDenseGradients:
        bytes[Axis::kData] += n;
        break;
      case schedule::SegmentKind::kExpertGradients:
        bytes[Axis::kExpertData] += n;
        break;
      case schedule::SegmentKind::kTiedEmbedding:
        bytes[Axis::kEmbeddingTable] += n;
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

// Bytes of the busiest group of an axis; 0 where no group of it sends anything.
double bytes_of(const model::Model& model, const strategy::Strategy& s, Axis axis) {
  double most = 0;
  for (const RankGroup& group : rank_traffic(model, s))
    if (group.axis == axis) most = std::max(most, group.bytes);
  return most;
}

}  // namespace

TEST_CASE("bytes of every axis are those that the executor sends") {
  for (const auto& [tied, mtp_depth] : {std::pair{false, 0}, {true, 0}, {false, 1}, {true, 2}})
    for (const auto& [pp, ep, dp] :
         {std::array<int64_t, 3>{1, 2, 4}, {2, 2, 4}, {4, 1, 2}, {2, 4, 4}, {3, 1, 1}}) {
      CAPTURE(pp);
      CAPTURE(ep);
      CAPTURE(mtp_depth);
      const model::Model model = model::with_mtp(example::mixture(5, tied), mtp_depth);
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
      case Axis::kTensor:  // attention alone: 2 gathers forward and backward, half of it a hop
        CHECK(group.bytes == doctest::Approx(4 * state / 2));
        CHECK(group.ranks.size() == 2);
        break;
      case Axis::kContext:  // 1 key head of 4 a rank, and values; three times the other half
        CHECK(group.bytes == doctest::Approx(3 * 16 * 8 * 2 * 4));
        break;
      case Axis::kExpert:  // 4 exchanges of 16 / 2 tokens x 2 rows, half of them
        CHECK(group.bytes == doctest::Approx(4 * 8 * 2 * 8 * 2 * 4 / 2.0));
        CHECK(group.ranks[1] - group.ranks[0] == 2);
        break;
      case Axis::kExpertTensor:  // rows of both, half a hop, gathered and scattered, twice
        CHECK(group.bytes == doctest::Approx(4 * (8 * 2 * 8 * 2 * 4) * 2 / 2.0));
        break;
      case Axis::kPipeline:
        CHECK(group.bytes == doctest::Approx(state));
        break;
      default:
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
    for (const Axis axis : {Axis::kExpert, Axis::kTensor, Axis::kContext, Axis::kExpertTensor,
                            Axis::kData, Axis::kExpertData, Axis::kPipeline})
      for (int32_t rank = 0; rank < s.mesh.world(); ++rank) CHECK(count[{axis, rank}] == 1);
  }
}

TEST_CASE("sequence parallelism: a half more of tensor bytes, and messages of its share") {
  const model::Model model = example::mixture(2);
  strategy::Strategy s = wide(model);
  const double tensor = bytes_of(model, s, Axis::kTensor);
  const double messages = bytes_of(model, s, Axis::kPipeline);
  s.sequence_parallel = true;
  CHECK(bytes_of(model, s, Axis::kTensor) == doctest::Approx(tensor * 5 / 4));
  CHECK(bytes_of(model, s, Axis::kPipeline) == doctest::Approx(messages / 2));
}

TEST_CASE("full recomputation says again what the forward said") {
  const model::Model model = example::mixture(2);
  const strategy::Strategy s = wide(model);
  strategy::Strategy again = s;
  again.recompute = strategy::Recompute::kFull;
  for (const auto& [axis, times] : {std::pair{Axis::kTensor, 6 / 4.0},
                                    {Axis::kContext, 4 / 3.0},
                                    {Axis::kExpert, 6 / 4.0},
                                    {Axis::kExpertTensor, 6 / 4.0},
                                    {Axis::kPipeline, 1.0}}) {
    CAPTURE(name(axis));
    CHECK(bytes_of(model, again, axis) == doctest::Approx(times * bytes_of(model, s, axis)));
  }
}

TEST_CASE("blocks that tensor parallelism divides: attention, shared experts by half, dense ones") {
  model::Model model = example::mixture(2);
  const strategy::Strategy s = wide(model);
  const double attention = bytes_of(model, s, Axis::kTensor);
  for (model::Layer& layer : model.layers) layer.feed_forward.shared_ffn = 16;
  CHECK(bytes_of(model, s, Axis::kTensor) == doctest::Approx(1.5 * attention));
  for (model::Layer& layer : model.layers) layer.feed_forward = {.ffn = 16};
  CHECK(bytes_of(model, s, Axis::kTensor) == doctest::Approx(2 * attention));
  CHECK(bytes_of(model, s, Axis::kExpert) == 0);
  CHECK(exchange_pair_bytes(model, s) == 0);
}

TEST_CASE(
    "gradients of a stage, counted by hand: what tp and etp divide, and over which replicas") {
  const model::Model model = example::mixture(2);
  const strategy::Strategy s = wide(model);  // the first stage: the table and one layer
  const model::LayerParameters n = model::count_layer(model, model.layers[0]);
  const auto gradient = static_cast<double>(strategy::state_bytes(s.precision).gradient);
  const double table = 32 * 8;
  const double dense =
      (table + static_cast<double>(n.attention)) / 2 + static_cast<double>(n.norms + n.router);
  const double experts = static_cast<double>(n.routed_experts) / 2 / 2;  // ep, etp
  double first_dense = 0, first_experts = 0;
  for (const RankGroup& group : rank_traffic(model, s)) {
    if (group.ranks.front() != 0) continue;
    if (group.axis == Axis::kData) first_dense = group.bytes;
    if (group.axis == Axis::kExpertData) first_experts = group.bytes;
  }
  const auto replicas = static_cast<double>(s.mesh.edp());
  REQUIRE(replicas > 1);
  CHECK(first_dense == doctest::Approx(2 * gradient * dense * 7 / 8));  // dp 4 x cp 2
  CHECK(first_experts == doctest::Approx(2 * gradient * experts * (replicas - 1) / replicas));
}

TEST_CASE("ZeRO scatters gradients and gathers weights, from 2 on with every micro-batch") {
  const model::Model model = example::mixture(2);
  strategy::Strategy s = wide(model);
  const auto gradient = static_cast<double>(strategy::state_bytes(s.precision).gradient);
  for (const Axis axis : {Axis::kData, Axis::kExpertData}) {
    CAPTURE(name(axis));
    s.zero = 0;
    const double parameters = bytes_of(model, s, axis) / (2 * gradient);
    s.zero = 1;
    CHECK(bytes_of(model, s, axis) == doctest::Approx(parameters * (gradient + 2)));
    s.zero = 2;  // 4 micro-batches
    CHECK(bytes_of(model, s, axis) == doctest::Approx(parameters * (4 * gradient + 2)));
    s.zero = 3;  // weights of 2 bytes for forward and backward
    CHECK(bytes_of(model, s, axis) == doctest::Approx(parameters * (4 * gradient + 4 * 2 * 2)));
  }
}

TEST_CASE("what exceeds the capacity is not sent, and a capacity beyond all sends no more") {
  const model::Model model = example::mixture(2);
  strategy::Strategy s = wide(model);
  const double all = bytes_of(model, s, Axis::kExpert);
  s.capacity.factor = 0.5;
  CHECK(bytes_of(model, s, Axis::kExpert) == doctest::Approx(all / 2));
  s.capacity.factor = 2;
  CHECK(bytes_of(model, s, Axis::kExpert) == doctest::Approx(all));
}

TEST_CASE("latent attention's keys and values travel with both of their parts") {
  model::Model model = example::mixture(2);
  for (model::Layer& layer : model.layers) {
    layer.attention.kind = model::AttentionKind::kLatent;
    layer.attention.latent = {
        .key_value_rank = 4, .nope_head_dim = 4, .rope_head_dim = 2, .value_head_dim = 3};
  }
  // 2 heads on 2 ranks: 4 + 2 + 3 elements of 16 tokens, three times the other half.
  CHECK(bytes_of(model, wide(model), Axis::kContext) == doctest::Approx(3 * 16 * 9 * 2 * 4));
}

TEST_CASE("ends hold a tied table together, each rank its share of it") {
  const model::Model model = example::mixture(2, true);
  const strategy::Strategy s = wide(model);
  const auto gradient = static_cast<double>(strategy::state_bytes(s.precision).gradient);
  CHECK(bytes_of(model, s, Axis::kEmbeddingTable) == doctest::Approx(32 * 8 / 2.0 * gradient));
}

TEST_CASE("a V sends between neighbours twice, and nothing in its turn") {
  const model::Model model = example::mixture(4);
  strategy::Strategy s = example::strategy(model, 2, 1, 1);
  s.mesh.vpp = 2;
  s.schedule = strategy::PipelineSchedule::kZbV;
  s.layers_per_stage = {1, 1, 1, 1};
  const std::vector<RankGroup> groups = rank_traffic(model, s);
  REQUIRE(groups.size() == 1);
  CHECK(groups[0].axis == Axis::kPipeline);
  CHECK(groups[0].bytes == doctest::Approx(2.0 * 32 * 8 * 4 * 4));
}

}  // namespace piper::placement
