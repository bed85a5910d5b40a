// Ranks that share sequences train as one rank does, alone and with every other axis: fp64, as in
// equivalence_test.cpp.
#include <doctest/doctest.h>
#include <testing/train/equivalence_mesh.h>

#include <vector>

using namespace piper;
using namespace piper::train::testing;

namespace {

using enum PipelineSchedule;

std::vector<MeshRun> gathered(std::vector<MeshRun> runs) {
  for (MeshRun& run : runs) run.context_exchange = strategy::ContextExchange::kGather;
  return runs;
}

}  // namespace

TEST_CASE("ranks that share sequences train as one rank does, in fp64") {
  model::Model model = small_model();  // norms of q and k, an auxiliary loss by sequence
  model.router_z_coefficient = 0.01;
  const std::vector<MeshRun> runs{
      {.mesh = {.cp = 2}},
      {.mesh = {.cp = 4}, .schedule = kGPipe},
      {.mesh = {.dp = 2, .cp = 2}, .recompute = Recompute::kAttention},
      {.mesh = {.cp = 2}, .recompute = Recompute::kFull, .micro_batch = 2},
      {.mesh = {.ep = 2, .cp = 2}, .recompute = Recompute::kExperts},
      {.mesh = {.ep = 4, .dp = 2, .cp = 2}, .zero = 1},
      {.mesh = {.pp = 2, .ep = 2, .etp = 2, .cp = 4},
       .recompute = Recompute::kAttentionAndExperts}};
  check_runs(model, runs);
  check_runs(model, gathered(runs));
}

TEST_CASE("rings of two and four, for every kind of attention") {
  const std::vector<MeshRun> runs{
      {.mesh = {.dp = 2, .cp = 2}, .recompute = Recompute::kAttention, .micro_batch = 2},
      {.mesh = {.cp = 4}, .recompute = Recompute::kAttention},
      {.mesh = {.cp = 4}, .recompute = Recompute::kFull, .micro_batch = 2},
      {.mesh = {.ep = 4, .dp = 2, .cp = 4}, .zero = 1}};
  check_runs_of({small_model(), deepseek_like(), qwen2_like()}, runs);
}

TEST_CASE("every schedule of the pipeline beside shared sequences") {
  const std::vector<MeshRun> ring{
      {.mesh = {.pp = 2, .ep = 2, .vpp = 2, .cp = 2}, .schedule = kInterleaved},
      {.mesh = {.pp = 2, .cp = 4}, .schedule = kZbH1, .zero = 2},
      {.mesh = {.pp = 2, .ep = 2, .vpp = 2, .cp = 4},
       .schedule = kZbV,
       .recompute = Recompute::kAttention},
      {.mesh = {.pp = 2, .ep = 2, .vpp = 2, .tp = 2, .cp = 2}, .schedule = kDualPipeV, .zero = 1},
      {.mesh = {.ep = 2, .tp = 2, .cp = 4}, .zero = 3}};
  const std::vector<MeshRun> gather{
      {.mesh = {.pp = 2, .cp = 2}, .schedule = kGPipe, .recompute = Recompute::kFull},
      {.mesh = {.pp = 2, .dp = 2, .cp = 2}, .schedule = kZbH1, .zero = 1},
      {.mesh = {.pp = 2, .ep = 2, .vpp = 2, .cp = 2},
       .schedule = kZbV,
       .recompute = Recompute::kFull},
      {.mesh = {.pp = 2, .ep = 2, .vpp = 2, .cp = 2},
       .schedule = kDualPipeV,
       .recompute = Recompute::kAttention,
       .zero = 1}};
  check_runs_of({small_model(), deepseek_like(), qwen2_like()}, joined(ring, gathered(gather)));
}

TEST_CASE("ranks that share matrices beside ranks that share sequences") {
  const std::vector<MeshRun> runs{
      {.mesh = {.tp = 2, .cp = 2}},
      {.mesh = {.ep = 2, .tp = 2, .cp = 2}, .recompute = Recompute::kFull, .micro_batch = 2},
      {.mesh = {.tp = 4, .cp = 2}, .recompute = Recompute::kAttention},
      {.mesh = {.pp = 2, .ep = 2, .etp = 2, .tp = 2, .cp = 2}, .schedule = kZbH1, .zero = 1},
      {.mesh = {.ep = 4, .tp = 2, .cp = 4}, .recompute = Recompute::kExperts}};
  check_runs_of({small_model(), deepseek_like(), qwen2_like()},
                joined(joined(runs, with_all_tokens(runs)), gathered(with_all_tokens(runs))));
}

TEST_CASE("chunks of tokens, tokens in place of copies and Parm's S1 beside shared sequences") {
  check_runs(small_model(),
             {{.mesh = {.ep = 2, .cp = 2}, .chunks = 2},
              {.mesh = {.ep = 4, .cp = 4}, .all_to_all = strategy::AllToAll::kHaloDedup},
              {.mesh = {.ep = 2, .tp = 2, .cp = 2},
               .sequence_parallel = false,
               .moe_schedule = strategy::MoeSchedule::kParmS1}});
  check_runs(small_model(), {{.mesh = {.ep = 4, .dp = 2, .cp = 2}}}, tie);
}

TEST_CASE("modules of multi-token prediction beside shared sequences and shared matrices") {
  model::Model tied = small_model();  // an auxiliary loss by sequence
  tied.tied_embeddings = true;
  tied.router_z_coefficient = 0.01;
  const std::vector<MeshRun> runs{
      {.mesh = {.cp = 2}},
      {.mesh = {.ep = 2, .tp = 2}, .recompute = Recompute::kAttention, .micro_batch = 2},
      {.mesh = {.pp = 2, .ep = 2, .tp = 2, .cp = 2}, .schedule = kZbH1, .zero = 1},
      {.mesh = {.pp = 2, .ep = 2, .vpp = 2, .tp = 2}, .schedule = kDualPipeV},
      {.mesh = {.pp = 2, .ep = 2, .dp = 2, .vpp = 2, .etp = 2, .cp = 2},
       .chunks = 2,
       .schedule = kZbV}};
  check_runs_of({model::with_mtp(deepseek_like(), 2), model::with_mtp(tied, 1)},
                joined(joined(runs, with_all_tokens(runs)), gathered({runs[0], runs[2]})));
  // Parts of one token.
  check_runs(model::with_mtp(tied, 1),
             {{.mesh = {.ep = 4, .cp = 4}, .recompute = Recompute::kFull, .micro_batch = 2},
              {.mesh = {.pp = 2, .tp = 2, .cp = 4}, .sequence_parallel = false}});
}

TEST_CASE("a capacity drops the same copies of sequences that ranks share") {
  model::Model plain = small_model();
  plain.router_z_coefficient = 0.01;
  for (const strategy::Drop drop : {strategy::Drop::kProbability, strategy::Drop::kPosition}) {
    const strategy::Capacity capacity{.factor = 1, .drop = drop};
    std::vector<MeshRun> runs{
        {.mesh = {.cp = 2}},
        {.mesh = {.ep = 2, .cp = 4}, .recompute = Recompute::kFull, .micro_batch = 2},
        {.mesh = {.ep = 2, .tp = 2}, .recompute = Recompute::kExperts},
        {.mesh = {.ep = 2, .tp = 2, .cp = 2}, .micro_batch = 2},
        {.mesh = {.pp = 2, .ep = 2, .tp = 2, .cp = 2}, .schedule = kZbH1, .zero = 1},
        {.mesh = {.ep = 2, .tp = 2, .cp = 2},
         .sequence_parallel = false,
         .moe_schedule = strategy::MoeSchedule::kParmS1},
        {.mesh = {.pp = 2, .ep = 2, .vpp = 2, .tp = 2}, .chunks = 2, .schedule = kDualPipeV},
        {.mesh = {.ep = 2, .tp = 2, .cp = 2}, .sequence_parallel = false},
        {.mesh = {.ep = 4, .cp = 4}, .all_to_all = strategy::AllToAll::kHaloDedup}};
    for (MeshRun& run : runs) run.capacity = capacity;
    for (const model::Model& model : {plain, deepseek_like()})
      CHECK(trained(model, {.mesh = {}, .capacity = capacity}).dropped > 0);
    check_runs_of({plain, deepseek_like()}, runs);
    check_runs(model::with_mtp(plain, 1), {runs[0], runs[2], runs[4]});
  }
}
