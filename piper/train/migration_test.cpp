// Experts that move between steps change nothing of what is learnt.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <testing/train/equivalence_run.h>

#include <atomic>
#include <random>

using namespace piper;
using namespace piper::train::testing;
using balance::ExpertPlacement;
using balance::Placements;

namespace {

// Any order on any rank, a function of seed, step and layer.
ExpertPlacement drawn(const ExpertPlacement& now, uint64_t seed, int64_t number, int32_t layer) {
  std::mt19937_64 random(seed * 1000003 + static_cast<uint64_t>(number * 101 + layer));
  std::vector<int32_t> order(static_cast<size_t>(now.num_experts()));
  for (size_t e = 0; e < order.size(); ++e) order[e] = static_cast<int32_t>(e);
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random() % i]);
  const size_t each = order.size() / static_cast<size_t>(now.num_ranks());
  std::vector<std::vector<int32_t>> held;
  for (size_t i = 0; i < order.size(); i += each)
    held.emplace_back(order.begin() + static_cast<std::ptrdiff_t>(i),
                      order.begin() + static_cast<std::ptrdiff_t>(i + each));
  return {std::move(held), now.num_experts()};
}

struct Moved {
  std::atomic<int64_t> experts{0};
};

// Before every step but some, other placements of some layers.
auto moving(uint64_t seed, Moved& moved) {
  return [seed, &moved](train::RankTrainer& trainer, int64_t number) {
    std::mt19937_64 random(seed + static_cast<uint64_t>(number));
    Placements next;
    for (const auto& [layer, placement] : trainer.placements())
      if (random() % 4 != 0) next.emplace(layer, drawn(placement, seed, number, layer));
    if (next.empty()) return;
    if (trainer.rank() == Rank(0))
      for (const auto& [layer, placement] : next)
        moved.experts += balance::num_migrated(
            balance::moves_between(trainer.placements().at(layer), placement));
    trainer.migrate((int64_t{3} << 30) + number, next);
  };
}

void no_clipping(train::RunShared& shared) { shared.options.clip_norm = 0; }

}  // namespace

TEST_CASE("a run whose experts move at random steps is bit-equal to one whose experts stay") {
  struct Case {
    strategy::Mesh mesh;
    PipelineSchedule schedule = PipelineSchedule::k1F1B;
    Recompute recompute = Recompute::kNone;
    strategy::Precision precision = strategy::Precision::kFp32;
    double capacity = 0;
    int model = 0;
    int64_t zero = 0;
    strategy::MoeSchedule moe_schedule = strategy::MoeSchedule::kPlain;
    int64_t chunks = 1;
  };
  const Case cases[] = {
      {.mesh = {.pp = 1, .ep = 2, .dp = 2}},
      // States divided over the replicas of an expert: two, four that cut inside an expert, one.
      {.mesh = {.pp = 1, .ep = 2, .dp = 4}, .zero = 1},
      {.mesh = {.pp = 1, .ep = 2, .dp = 8}, .precision = strategy::Precision::kBf16, .zero = 1},
      {.mesh = {.pp = 2, .ep = 2, .dp = 4, .vpp = 2},
       .schedule = PipelineSchedule::kDualPipeV,
       .precision = strategy::Precision::kFp64,
       .zero = 1},
      {.mesh = {.ep = 2, .dp = 4}, .zero = 2},
      {.mesh = {.ep = 2, .dp = 4}, .zero = 3},
      {.mesh = {.pp = 2, .ep = 2, .dp = 8}, .precision = strategy::Precision::kBf16, .zero = 3},
      {.mesh = {.pp = 2, .ep = 2, .dp = 4},
       .schedule = PipelineSchedule::kZbH1,
       .precision = strategy::Precision::kBf16,
       .zero = 2},
      {.mesh = {.ep = 2, .dp = 2, .tp = 2}, .zero = 1},
      {.mesh = {.ep = 2, .dp = 2, .cp = 2}, .zero = 1},
      // Other schedules of the mixture layer.
      {.mesh = {.ep = 2, .dp = 2},
       .recompute = Recompute::kFull,
       .moe_schedule = strategy::MoeSchedule::kChunked,
       .chunks = 3},
      {.mesh = {.ep = 4, .dp = 2, .tp = 2}, .moe_schedule = strategy::MoeSchedule::kParmS1},
      // Ranks that share the matrices of an expert, each with its part.
      {.mesh = {.ep = 2, .dp = 4, .etp = 2}},
      {.mesh = {.ep = 2, .dp = 8, .etp = 2},
       .recompute = Recompute::kFull,
       .precision = strategy::Precision::kBf16,
       .zero = 1},
      {.mesh = {.pp = 1, .ep = 4, .dp = 4}, .model = 1, .zero = 1},
      {.mesh = {.pp = 1, .ep = 4, .dp = 4}, .recompute = Recompute::kFull},
      {.mesh = {.pp = 1, .ep = 2, .dp = 4}, .precision = strategy::Precision::kBf16},
      {.mesh = {.pp = 2, .ep = 2, .dp = 4},
       .schedule = PipelineSchedule::kGPipe,
       .recompute = Recompute::kExperts,
       .precision = strategy::Precision::kFp64},
      {.mesh = {.pp = 2, .ep = 4, .dp = 4},
       .recompute = Recompute::kAttentionAndExperts,
       .capacity = 1,
       .model = 1},
      {.mesh = {.pp = 1, .ep = 2, .dp = 2},
       .precision = strategy::Precision::kBf16,
       .capacity = 0.7,
       .model = 1},
      {.mesh = {.pp = 1, .ep = 1, .dp = 2}},  // an order on the rank alone
      {.mesh = {.pp = 2, .ep = 2, .dp = 2}, .model = 2},
      {.mesh = {.pp = 2, .ep = 2, .dp = 2, .vpp = 2}, .schedule = PipelineSchedule::kInterleaved},
      {.mesh = {.pp = 2, .ep = 2, .dp = 4}, .schedule = PipelineSchedule::kZbH1},
      {.mesh = {.pp = 2, .ep = 2, .dp = 2, .vpp = 2}, .schedule = PipelineSchedule::kZbV},
      {.mesh = {.pp = 2, .ep = 2, .dp = 2, .vpp = 2}, .schedule = PipelineSchedule::kDualPipeV},
      {.mesh = {.pp = 2, .ep = 2, .dp = 4}, .schedule = PipelineSchedule::k1F1BPairs, .zero = 1},
      {.mesh = {.pp = 2, .ep = 2, .dp = 2, .vpp = 2},
       .schedule = PipelineSchedule::kInterleavedPairs},
      // The expert group lies across the ranks that share the matrices of attention.
      {.mesh = {.ep = 2, .tp = 2}},
      {.mesh = {.ep = 4, .dp = 2, .tp = 2}, .precision = strategy::Precision::kBf16},
      {.mesh = {.pp = 2, .ep = 2, .dp = 2, .vpp = 2, .tp = 2},
       .schedule = PipelineSchedule::kZbV,
       .recompute = Recompute::kFull}};
  const model::Model models[] = {small_model(), deepseek_like(),
                                 model::with_mtp(deepseek_like(), 1)};
  for (const Case& c : cases) {
    CAPTURE(fmt::format("pp {} ep {} dp {} tp {}, {}, {}, {}, zero {}, {}", c.mesh.pp, c.mesh.ep,
                        c.mesh.dp, c.mesh.tp, strategy::name(c.schedule),
                        strategy::name(c.recompute), strategy::name(c.precision), c.zero,
                        strategy::name(c.moe_schedule)));
    const model::Model& model = models[c.model];
    strategy::Strategy s = strategy_for(model, c.mesh, c.schedule, c.recompute, c.precision);
    s.capacity.factor = c.capacity;
    s.zero = c.zero;
    s.moe_schedule = c.moe_schedule;
    s.moe_chunks = c.chunks;
    s.sequence_parallel &= c.moe_schedule != strategy::MoeSchedule::kParmS1;
    const Trained still =
        run_training(model, s, num_steps(), {}, 0.3, collective::apart(1), no_clipping);
    Moved moved;
    const Trained other = run_training(model, s, num_steps(), {}, 0.3, collective::apart(1),
                                       no_clipping, moving(7, moved));
    CHECK((moved.experts > 0) == (c.mesh.ep > 1));
    CHECK(other.losses == still.losses);
    CHECK(other.imbalance == still.imbalance);
    CHECK(other.dropped == still.dropped);
    CHECK(largest_difference(other.values, still.values) == 0);
    // Under ZeRO a rank has sums of its own share alone.
    if (c.zero == 0) CHECK(largest_difference(other.gradients, still.gradients) == 0);
  }
}

TEST_CASE("a run that begins with another placement is bit-equal to one that begins plain") {
  const model::Model model = deepseek_like();
  const strategy::Strategy s =
      strategy_for(model, {.pp = 1, .ep = 2, .dp = 4}, PipelineSchedule::k1F1B, Recompute::kNone,
                   strategy::Precision::kFp32);
  const Trained plain = run_training(model, s, 3, {}, 0.3, collective::apart(1), no_clipping);
  const Trained other =
      run_training(model, s, 3, {}, 0.3, collective::apart(1), [](train::RunShared& shared) {
        no_clipping(shared);
        for (const int32_t layer : {0, 3})
          shared.placements.emplace(layer, ExpertPlacement({{3, 0}, {2, 1}}, 4));
      });
  CHECK(other.losses == plain.losses);
  CHECK(largest_difference(other.values, plain.values) == 0);
}

TEST_CASE("where tokens travel in place of rows, experts that move change rounding alone") {
  const model::Model model = small_model();
  strategy::Strategy s = strategy_for(model, {.pp = 1, .ep = 4, .dp = 4}, PipelineSchedule::k1F1B,
                                      Recompute::kFull, strategy::Precision::kFp64);
  s.all_to_all = strategy::AllToAll::kHaloDedup;
  for (const collective::Topology& nodes :
       {collective::even_nodes(2, 2), collective::even_nodes(4, 1)}) {
    const Trained still = run_training(model, s, num_steps(), {}, 0.3, nodes);
    Moved moved;
    const Trained other = run_training(model, s, num_steps(), {}, 0.3, nodes, {}, moving(3, moved));
    CHECK(moved.experts > 0);
    for (size_t i = 0; i < still.losses.size(); ++i)
      CHECK(other.losses[i] == doctest::Approx(still.losses[i]).epsilon(1e-9));
    CHECK(largest_difference(other.values, still.values) < 1e-9);
  }
}

TEST_CASE("with every exchange of rows, experts that move change nothing") {
  const model::Model model = small_model();
  for (const strategy::AllToAll algorithm : strategy::kAllToAlls) {
    CAPTURE(strategy::name(algorithm));
    strategy::Strategy s = strategy_for(model, {.pp = 1, .ep = 4, .dp = 4}, PipelineSchedule::k1F1B,
                                        Recompute::kNone, strategy::Precision::kFp64);
    s.all_to_all = algorithm;
    s.all_to_all_chunk_bytes = 192;
    const collective::Topology nodes = collective::even_nodes(2, 2);
    const Trained still = run_training(model, s, 2, {}, 0, nodes, no_clipping);
    Moved moved;
    const Trained other = run_training(model, s, 2, {}, 0, nodes, no_clipping, moving(5, moved));
    CHECK(moved.experts > 0);
    CHECK(other.losses == still.losses);
    CHECK(largest_difference(other.values, still.values) == 0);
  }
}
