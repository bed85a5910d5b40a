// Copies of experts on other ranks change nothing of what is learnt: their rows are divided among
// them, their gradients go home. fp64, as in equivalence_test.cpp.
#include <doctest/doctest.h>
#include <testing/train/equivalence_mesh.h>

#include <random>
#include <vector>

using namespace piper;
using namespace piper::train::testing;
using balance::ExpertPlacement;

namespace {

// Homes in any order on any rank, copies of any experts of the other ranks: a function of the seed
// and of what is placed.
ExpertPlacement drawn(const ExpertPlacement& now, uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto shuffled = [&](std::vector<int32_t> list) {
    for (size_t i = list.size(); i > 1; --i) std::swap(list[i - 1], list[random() % i]);
    return list;
  };
  std::vector<int32_t> all;
  for (int32_t e = 0; e < now.num_experts(); ++e) all.push_back(e);
  const auto num_ranks = static_cast<size_t>(now.num_ranks());
  const size_t homes = all.size() / num_ranks,
               copies = static_cast<size_t>(now.num_places()) / num_ranks - homes;
  const std::vector<int32_t> order = shuffled(all);
  std::vector<std::vector<int32_t>> held;
  for (size_t rank = 0; rank < num_ranks; ++rank) {
    const auto begin = order.begin() + static_cast<std::ptrdiff_t>(rank * homes);
    std::vector<int32_t> here(begin, begin + static_cast<std::ptrdiff_t>(homes));
    for (const int32_t e : shuffled(all))
      if (here.size() < homes + copies && std::ranges::find(here, e) == here.end())
        here.push_back(e);
    held.push_back(here);
  }
  return {std::move(held), now.num_experts()};
}

// Before every step but the first, other copies, and in some other homes as well.
void place_again(train::RankTrainer& trainer, int64_t number) {
  if (number == 1) return;
  balance::Placements next;
  for (const auto& [layer, placement] : trainer.placements()) {
    ExpertPlacement other = drawn(placement, static_cast<uint64_t>(number * 101 + layer));
    if (number % 2 == 0) {  // copies alone
      std::vector<std::vector<int32_t>> copies;
      for (int64_t rank = 0; rank < placement.num_ranks(); ++rank) {
        copies.emplace_back();
        const std::vector<int32_t> homes = placement.homes().held(rank);
        for (const int32_t e : other.held(rank))
          if (std::ranges::find(homes, e) == homes.end() &&
              std::ssize(copies.back()) <
                  (placement.num_places() - placement.num_experts()) / placement.num_ranks())
            copies.back().push_back(e);
        for (int32_t e = 0;
             std::ssize(copies.back()) <
             (placement.num_places() - placement.num_experts()) / placement.num_ranks();
             ++e)
          if (std::ranges::find(homes, e) == homes.end() &&
              std::ranges::find(copies.back(), e) == copies.back().end())
            copies.back().push_back(e);
      }
      other = placement.with_copies(copies);
    }
    next.emplace(layer, other);
  }
  trainer.migrate((int64_t{3} << 30) + number, next);
}

}  // namespace

TEST_CASE("copies of experts train as the experts alone do, whatever is recomputed") {
  const strategy::Mesh two{.ep = 2, .dp = 2};
  check_runs(small_model(),
             {{.mesh = two, .redundant = 2},
              {.mesh = two, .redundant = 4},  // every rank has all
              {.mesh = {.ep = 4, .dp = 4}, .recompute = Recompute::kFull, .redundant = 4},
              {.mesh = {.ep = 4, .dp = 4}, .redundant = 12},
              {.mesh = {.ep = 2, .dp = 4}, .recompute = Recompute::kExperts, .redundant = 2},
              {.mesh = {.ep = 2, .dp = 4},
               .recompute = Recompute::kAttentionAndExperts,
               .micro_batch = 2,
               .zero = 1,
               .redundant = 2}});
}

TEST_CASE("copies under every pipeline schedule, with divided states") {
  using enum PipelineSchedule;
  for (const model::Model& model : {small_model(), deepseek_like()})
    check_runs(
        model,
        {{.mesh = {.pp = 2, .ep = 2, .dp = 2}, .redundant = 2},
         {.mesh = {.pp = 2, .ep = 2, .dp = 2, .vpp = 2}, .schedule = kInterleaved, .redundant = 2},
         {.mesh = {.pp = 2, .ep = 2, .dp = 4}, .schedule = kZbH1, .zero = 1, .redundant = 4},
         {.mesh = {.pp = 2, .ep = 2, .dp = 2, .vpp = 2},
          .schedule = kZbV,
          .recompute = Recompute::kFull,
          .redundant = 2},
         {.mesh = {.pp = 2, .ep = 2, .dp = 2, .vpp = 2}, .schedule = kDualPipeV, .redundant = 2}});
}

TEST_CASE("copies beside divided gradients and weights of their homes") {
  using enum PipelineSchedule;
  for (const int64_t zero : {2, 3})
    for (const model::Model& model : {small_model(), deepseek_like()})
      check_runs(
          model,
          {{.mesh = {.ep = 2, .dp = 2}, .zero = zero, .redundant = 2},  // homes are held once
           {.mesh = {.ep = 2, .dp = 4},
            .recompute = Recompute::kFull,
            .zero = zero,
            .redundant = 4},
           {.mesh = {.ep = 2, .dp = 2, .tp = 2}, .chunks = 2, .zero = zero, .redundant = 2},
           {.mesh = {.ep = 2, .dp = 4, .etp = 2}, .zero = zero, .redundant = 2},
           {.mesh = {.pp = 2, .ep = 2, .dp = 4}, .schedule = kZbH1, .zero = zero, .redundant = 2},
           {.mesh = {.pp = 2, .ep = 2, .dp = 4, .vpp = 2},
            .schedule = kInterleaved,
            .zero = zero,
            .redundant = 2},
           {.mesh = {.pp = 2, .ep = 2, .dp = 4, .vpp = 2},
            .schedule = kZbV,
            .recompute = Recompute::kExperts,
            .zero = zero,
            .redundant = 2},
           {.mesh = {.pp = 2, .ep = 2, .dp = 4, .vpp = 2},
            .schedule = kDualPipeV,
            .zero = zero,
            .redundant = 4}});
}

TEST_CASE("copies beside ranks that share matrices, sequences and experts, and other exchanges") {
  using strategy::AllToAll;
  using strategy::MoeSchedule;
  check_runs(
      small_model(),
      {{.mesh = {.ep = 2, .tp = 2}, .redundant = 2},
       {.mesh = {.ep = 4, .dp = 2, .tp = 2}, .sequence_parallel = false, .redundant = 4},
       {.mesh = {.ep = 2, .dp = 2, .cp = 2}, .zero = 1, .redundant = 2},
       {.mesh = {.ep = 2, .dp = 4, .etp = 2}, .redundant = 2},
       {.mesh = {.ep = 2, .dp = 2, .etp = 2, .tp = 2}, .sequence_parallel = false, .redundant = 2},
       {.mesh = {.ep = 2, .dp = 2}, .chunks = 3, .recompute = Recompute::kFull, .redundant = 2},
       {.mesh = {.ep = 4, .dp = 4}, .all_to_all = AllToAll::kNodeAware, .redundant = 4},
       {.mesh = {.ep = 4, .dp = 4}, .all_to_all = AllToAll::kHaloDedup, .redundant = 4},
       {.mesh = {.ep = 4, .dp = 2, .tp = 2},
        .sequence_parallel = false,
        .moe_schedule = MoeSchedule::kMontaO1,
        .redundant = 4},
       {.mesh = {.ep = 2, .dp = 2, .etp = 2, .tp = 2},
        .chunks = 2,
        .sequence_parallel = false,
        .moe_schedule = MoeSchedule::kParmS2,
        .redundant = 2},
       {.mesh = {.ep = 4, .dp = 2, .tp = 2},
        .sequence_parallel = false,
        .moe_schedule = MoeSchedule::kParmS1,
        .redundant = 4}});
}

TEST_CASE("copies of experts that have all rows or none, and under a capacity") {
  check_runs(small_model(),
             {{.mesh = {.ep = 2, .dp = 2}, .redundant = 2},
              {.mesh = {.ep = 4, .dp = 4}, .recompute = Recompute::kFull, .redundant = 8},
              {.mesh = {.ep = 2, .dp = 4}, .zero = 2, .redundant = 4}},
             tie);
  for (const strategy::Drop drop : {strategy::Drop::kPosition, strategy::Drop::kProbability})
    check_runs(
        small_model(),
        {{.mesh = {.ep = 2, .dp = 2}, .capacity = {.factor = 0.7, .drop = drop}, .redundant = 2},
         {.mesh = {.ep = 4, .dp = 4}, .capacity = {.factor = 0.7, .drop = drop}, .redundant = 4}});
}

TEST_CASE("copies of other experts in every step, and homes that move, change nothing") {
  const Trained one = trained(small_model(), {.mesh = {}});
  for (const MeshRun& run : {MeshRun{.mesh = {.ep = 2, .dp = 2}, .redundant = 2},
                             MeshRun{.mesh = {.ep = 4, .dp = 8}, .zero = 1, .redundant = 4},
                             MeshRun{.mesh = {.ep = 2, .dp = 4}, .zero = 2, .redundant = 4},
                             MeshRun{.mesh = {.ep = 2, .dp = 4}, .zero = 3, .redundant = 2},
                             MeshRun{.mesh = {.pp = 2, .ep = 4, .dp = 4},
                             .schedule = PipelineSchedule::kZbH1,
                             .recompute = Recompute::kFull,
                             .redundant = 8}}) {
    INFO(text(run));
    const strategy::Strategy s = strategy_of(small_model(), run);
    const Trained many =
        run_training(small_model(), s, num_steps(), {}, 0.3,
                     collective::even_nodes(s.mesh.world() / 2, 2), {}, place_again);
    CHECK(largest_difference(one.values, many.values) <= 1e-9);
    CHECK(std::abs(one.losses.back() - many.losses.back()) < 1e-9);
  }
}
