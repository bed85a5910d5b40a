// Experts that are sent their whole capacity against experts that are sent what was kept of it:
// fp64, as in equivalence_test.cpp.
#include <doctest/doctest.h>
#include <testing/train/equivalence_mesh.h>

#include <vector>

using namespace piper;
using namespace piper::train::testing;

TEST_CASE("rows that fill a capacity up change nothing of what is learnt") {
  using enum PipelineSchedule;
  model::Model plain = small_model();
  plain.router_z_coefficient = 0.01;
  const std::vector<MeshRun> runs{
      {.mesh = {}},
      {.mesh = {.dp = 2}, .micro_batch = 2},
      {.mesh = {.ep = 2, .dp = 2}, .recompute = Recompute::kFull, .micro_batch = 2},
      {.mesh = {.ep = 4, .dp = 4}, .all_to_all = strategy::AllToAll::kHalo, .zero = 2},
      {.mesh = {.ep = 2, .dp = 4, .etp = 2}, .recompute = Recompute::kExperts},
      {.mesh = {.ep = 2, .tp = 2}, .sequence_parallel = false},
      {.mesh = {.ep = 2, .dp = 2, .etp = 2, .tp = 2}, .zero = 1, .sequence_parallel = false},
      {.mesh = {.pp = 2, .ep = 2, .dp = 2}, .schedule = kZbH1, .zero = 3},
      {.mesh = {.pp = 2, .ep = 2, .dp = 2, .vpp = 2},
       .schedule = kDualPipeV,
       .recompute = Recompute::kAttention}};
  for (const double factor : {0.5, 1.5})
    for (const strategy::Drop drop : {strategy::Drop::kProbability, strategy::Drop::kPosition})
      for (const model::Model& model :
           {plain, deepseek_like(), model::with_mtp(small_model(), 1)}) {
        const strategy::Capacity capacity{.factor = factor, .drop = drop};
        const Trained one = trained(model, {.mesh = {}, .capacity = capacity});
        CHECK(one.dropped > 0);
        size_t i = factor < 1 ? 0 : 1;
        for (MeshRun run : runs) {
          if (i++ % 2 != 0 && !piper::testing::full_counts()) continue;
          run.capacity = capacity;
          run.capacity.pads = true;
          check_same(model, one, run);
        }
      }
}
