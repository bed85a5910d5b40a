// A mixture layer whose tokens are cut into chunks trains as the plain one does, on every mesh:
// fp64, as in equivalence_test.cpp.
#include <doctest/doctest.h>
#include <testing/train/equivalence_mesh.h>

#include <vector>

using namespace piper;
using namespace piper::train::testing;

namespace {

// Two chunks where a run does not say how many.
std::vector<MeshRun> in_chunks(std::vector<MeshRun> runs) {
  for (MeshRun& run : runs)
    if (run.chunks == 0) run.chunks = 2;
  return runs;
}

}  // namespace

// 8 tokens on a rank: 8 chunks are a token each, with rows for 2 of 4 experts; 3 are uneven.
TEST_CASE("chunks of tokens train as all tokens at once do, in fp64, whatever is recomputed") {
  const strategy::Mesh two{.ep = 2, .dp = 2};
  check_runs(
      small_model(),
      in_chunks(
          {{.mesh = two},
           {.mesh = two, .chunks = 3, .recompute = Recompute::kFull},
           {.mesh = two, .chunks = 8, .recompute = Recompute::kAttention},
           {.mesh = {.ep = 4, .dp = 4}, .chunks = 4, .recompute = Recompute::kAttentionAndExperts},
           {.mesh = {.ep = 2, .dp = 4},
            .chunks = 5,
            .recompute = Recompute::kExperts,
            .micro_batch = 2}}));
}

TEST_CASE("shared experts, biases and latent attention beside chunks") {
  for (const model::Model& model : {deepseek_like(), qwen2_like()})
    check_runs(model, in_chunks({{.mesh = {.ep = 2, .dp = 2}, .chunks = 3},
                                 {.mesh = {.ep = 2, .dp = 2}, .recompute = Recompute::kFull},
                                 {.mesh = {.ep = 2, .dp = 4}, .recompute = Recompute::kExperts}}));
}

TEST_CASE("every pipeline schedule, divided backwards and divided states with chunks") {
  using enum PipelineSchedule;
  for (const model::Model& model : {small_model(), deepseek_like()})
    check_runs(
        model,
        in_chunks(
            {{.mesh = {.pp = 2, .ep = 2, .dp = 2}, .schedule = kGPipe},
             {.mesh = {.pp = 2, .ep = 2, .dp = 2}, .chunks = 4, .recompute = Recompute::kFull},
             {.mesh = {.pp = 2, .ep = 2, .dp = 2, .vpp = 2}, .schedule = kInterleaved},
             {.mesh = {.pp = 2, .ep = 2, .dp = 2}, .chunks = 3, .schedule = kZbH1, .zero = 1},
             {.mesh = {.pp = 2, .ep = 2, .dp = 2, .vpp = 2},
              .schedule = kZbV,
              .recompute = Recompute::kFull},
             {.mesh = {.pp = 2, .ep = 2, .dp = 2, .vpp = 2}, .chunks = 4, .schedule = kDualPipeV},
             {.mesh = {.pp = 2, .ep = 2, .dp = 2, .vpp = 2},
              .schedule = kDualPipeV,
              .recompute = Recompute::kExperts,
              .zero = 1},
             {.mesh = {.ep = 2, .dp = 4}, .chunks = 3, .recompute = Recompute::kFull, .zero = 2},
             {.mesh = {.pp = 2, .ep = 2, .dp = 4, .vpp = 2},
              .chunks = 4,
              .schedule = kDualPipeV,
              .zero = 2}}));
}

TEST_CASE("ranks that share a layer's or an expert's matrices, with chunks") {
  using enum PipelineSchedule;
  check_runs(
      small_model(),
      in_chunks(
          {{.mesh = {.ep = 2, .tp = 2}},
           {.mesh = {.ep = 4, .dp = 2, .tp = 2}, .chunks = 4, .recompute = Recompute::kFull},
           {.mesh = {.dp = 2, .etp = 2}, .chunks = 3},
           {.mesh = {.ep = 2, .dp = 4, .etp = 2}, .recompute = Recompute::kFull},
           {.mesh = {.ep = 2, .dp = 4, .etp = 2}, .chunks = 8, .recompute = Recompute::kExperts},
           {.mesh = {.ep = 2, .dp = 2, .etp = 2, .tp = 2}},
           {.mesh = {.pp = 2, .ep = 2, .vpp = 2, .etp = 1, .tp = 2},
            .schedule = kDualPipeV,
            .recompute = Recompute::kAttention},
           {.mesh = {.pp = 2, .dp = 2, .etp = 2}, .schedule = kZbH1},
           {.mesh = {.ep = 2, .tp = 2}, .chunks = 3, .sequence_parallel = false},
           {.mesh = {.ep = 2, .dp = 2, .etp = 2, .tp = 2},
            .recompute = Recompute::kFull,
            .sequence_parallel = false}}));
}

TEST_CASE("capacity, experts without rows and exchanges that know nodes, with chunks") {
  model::Model model = small_model();
  model.router_z_coefficient = 0.01;
  for (const strategy::Drop drop : {strategy::Drop::kProbability, strategy::Drop::kPosition}) {
    const strategy::Capacity capacity{.factor = 0.75, .drop = drop};
    check_runs(model, in_chunks({{.mesh = {.ep = 2, .dp = 2}, .chunks = 8, .capacity = capacity},
                                 {.mesh = {.ep = 4, .dp = 2, .tp = 2},
                                  .chunks = 3,
                                  .recompute = Recompute::kFull,
                                  .micro_batch = 2,
                                  .capacity = capacity}}));
  }
  check_runs(model, in_chunks({{.mesh = {.ep = 4, .dp = 4}, .chunks = 4}}), tie);
  using enum strategy::AllToAll;
  for (const strategy::AllToAll algorithm : {kBruck, kHalo, kTwoD})
    check_runs(small_model(), in_chunks({{.mesh = {.ep = 4, .dp = 4},
                                          .chunks = 3,
                                          .recompute = Recompute::kFull,
                                          .all_to_all = algorithm}}));
}

TEST_CASE("groups of peers (FasterMoE) train as all peers at once do, on every kind of mesh") {
  using enum PipelineSchedule;
  const auto in_groups = [](std::vector<MeshRun> runs) {
    for (MeshRun& run : runs) {
      run.moe_schedule = strategy::MoeSchedule::kFasterMoe;
      if (run.chunks == 0) run.chunks = 2;
    }
    return runs;
  };
  const strategy::Capacity capacity{.factor = 0.75};
  model::Model model = small_model();
  model.router_z_coefficient = 0.01;
  check_runs(model,
             in_groups({{.mesh = {.ep = 2, .dp = 2}},
                        {.mesh = {.ep = 4, .dp = 4}, .chunks = 3, .recompute = Recompute::kFull},
                        {.mesh = {.ep = 4, .dp = 4},
                         .chunks = 4,
                         .recompute = Recompute::kExperts,
                         .all_to_all = strategy::AllToAll::kPairwise,
                         .redundant = 4},
                        {.mesh = {.ep = 2, .tp = 2}, .sequence_parallel = false},
                        {.mesh = {.ep = 4, .dp = 2, .tp = 2}, .chunks = 4},
                        {.mesh = {.ep = 2, .dp = 4, .etp = 2}, .recompute = Recompute::kExperts},
                        {.mesh = {.pp = 2, .ep = 2, .dp = 2, .vpp = 2}, .schedule = kDualPipeV},
                        {.mesh = {.pp = 2, .ep = 4, .dp = 4}, .chunks = 3, .schedule = kZbH1}}));
  check_runs(model, in_groups({{.mesh = {.ep = 4, .dp = 4}, .chunks = 4, .capacity = capacity},
                               {.mesh = {.ep = 2, .dp = 4}, .capacity = capacity}}));
  check_runs(model, in_groups({{.mesh = {.ep = 4, .dp = 4}, .chunks = 4}}), tie);
  check_runs(deepseek_like(), in_groups({{.mesh = {.ep = 4, .dp = 4}, .chunks = 2},
                                         {.mesh = {.ep = 2, .dp = 2}, .zero = 2}}));
}

TEST_CASE("one chunk gives the losses of the plain layer, bit by bit") {
  const model::Model model = small_model();
  const strategy::Mesh mesh{.ep = 2, .dp = 2};
  const Trained a = trained(model, {.mesh = mesh}), b = trained(model, {.mesh = mesh, .chunks = 1});
  CHECK(a.losses == b.losses);
  CHECK(a.norms == b.norms);
}
