// Ranks that share a layer's matrices train as one rank does, whether they divide its tokens
// (tensor with sequence parallelism) or hold all of them, alone and with every other axis: fp64, as
// in equivalence_test.cpp.
#include <doctest/doctest.h>
#include <testing/train/equivalence_mesh.h>

#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

using namespace piper;
using namespace piper::train::testing;

TEST_CASE("ranks that share matrices and tokens train as one rank does, in fp64") {
  const model::Model model = small_model();  // 2 key heads, norms of q and k, an auxiliary loss
  check_runs(model, {{.mesh = {.tp = 2}},
                     {.mesh = {.tp = 2}, .recompute = Recompute::kFull},
                     {.mesh = {.dp = 2, .tp = 2}, .recompute = Recompute::kAttentionAndExperts},
                     {.mesh = {.tp = 4}, .schedule = PipelineSchedule::kGPipe},  // a key head twice
                     {.mesh = {.pp = 2, .dp = 2, .tp = 2}, .recompute = Recompute::kAttention},
                     {.mesh = {.pp = 4, .tp = 4}, .recompute = Recompute::kExperts}});
}

TEST_CASE(
    "experts lie over the same ranks in a mesh of their own, more of them than ranks of data") {
  const model::Model model = small_model();
  check_runs(model, {{.mesh = {.ep = 2, .tp = 2}},
                     {.mesh = {.ep = 4, .dp = 2, .tp = 2}, .recompute = Recompute::kFull},
                     {.mesh = {.ep = 2, .dp = 4, .tp = 2}},
                     {.mesh = {.pp = 2, .ep = 4, .tp = 4}},
                     {.mesh = {.pp = 2, .ep = 2, .dp = 2, .tp = 4}}});
}

TEST_CASE("latent attention, biases, shared experts and tied tables are shared alike") {
  check_runs(deepseek_like(), {{.mesh = {.ep = 2, .tp = 2}},
                               {.mesh = {.tp = 4}, .recompute = Recompute::kFull},
                               {.mesh = {.pp = 2, .dp = 2, .tp = 2}}});
  check_runs(tied(qwen2_like()),
             {{.mesh = {.tp = 4}},
              {.mesh = {.pp = 2, .ep = 2, .tp = 2}},
              {.mesh = {.dp = 2, .tp = 2}, .recompute = Recompute::kAttention}});
}

TEST_CASE("whole sequences on every rank: capacity, z-loss, experts without a token") {
  model::Model model = small_model();
  model.router_z_coefficient = 0.01;
  for (const strategy::Drop drop : {strategy::Drop::kProbability, strategy::Drop::kPosition}) {
    const strategy::Capacity capacity{.factor = 1, .drop = drop};
    check_runs(model, {{.mesh = {.dp = 2, .tp = 2}, .micro_batch = 2, .capacity = capacity},
                       {.mesh = {.pp = 2, .ep = 4, .tp = 4},
                        .recompute = Recompute::kFull,
                        .micro_batch = 4,
                        .capacity = capacity}});
  }
  check_runs(model, {{.mesh = {.ep = 4, .dp = 2, .tp = 2}}}, tie);
}

TEST_CASE("chunks, divided backwards and divided optimizer states beside shared matrices") {
  using enum PipelineSchedule;
  for (const model::Model& model : {small_model(), deepseek_like(), tied(qwen2_like())})
    check_runs(model, {{.mesh = {.pp = 2, .ep = 2, .vpp = 2, .tp = 2}, .schedule = kInterleaved},
                       {.mesh = {.pp = 2, .dp = 2, .tp = 2}, .schedule = kZbH1, .zero = 1},
                       {.mesh = {.pp = 2, .ep = 4, .dp = 2, .vpp = 2, .tp = 2},
                        .schedule = kZbV,
                        .recompute = Recompute::kFull},
                       {.mesh = {.pp = 2, .ep = 2, .vpp = 2, .tp = 2},
                        .schedule = kDualPipeV,
                        .recompute = Recompute::kAttention,
                        .zero = 1},
                       {.mesh = {.ep = 4, .dp = 4, .tp = 4}, .zero = 1}});
}

TEST_CASE("ranks that share an expert's matrices train as one rank does, in fp64") {
  using enum PipelineSchedule;
  const model::Model model = small_model();
  check_runs(model, {{.mesh = {.dp = 2, .etp = 2}},
                     {.mesh = {.ep = 2, .dp = 4, .etp = 2}, .recompute = Recompute::kFull},
                     {.mesh = {.ep = 2, .dp = 4, .etp = 2}, .recompute = Recompute::kExperts},
                     {.mesh = {.ep = 2, .dp = 2, .etp = 2, .tp = 2}},
                     // More ranks than experts.
                     {.mesh = {.ep = 4, .dp = 4, .etp = 2, .tp = 2},
                      .recompute = Recompute::kAttentionAndExperts,
                      .all_to_all = strategy::AllToAll::kHalo},
                     {.mesh = {.ep = 4, .dp = 16, .etp = 4}, .zero = 1},
                     {.mesh = {.pp = 2, .ep = 2, .dp = 4, .etp = 2}, .schedule = kZbH1, .zero = 1},
                     {.mesh = {.pp = 2, .ep = 2, .dp = 2, .vpp = 2, .etp = 2, .tp = 2},
                      .schedule = kDualPipeV},
                     {.mesh = {.dp = 4, .etp = 4, .tp = 2}, .zero = 1}});
  check_runs(deepseek_like(), {{.mesh = {.ep = 2, .dp = 2, .etp = 2, .tp = 2}, .zero = 1},
                               {.mesh = {.pp = 2, .ep = 2, .dp = 4, .vpp = 2, .etp = 2},
                                .schedule = kZbV,
                                .recompute = Recompute::kFull}});
  // Experts without a token, on some ranks or on all.
  check_runs(model, {{.mesh = {.ep = 4, .dp = 4, .etp = 2, .tp = 2}}}, tie);
  for (const strategy::Drop drop : {strategy::Drop::kProbability, strategy::Drop::kPosition})
    check_runs(model, {{.mesh = {.ep = 2, .dp = 4, .etp = 2},
                        .micro_batch = 2,
                        .capacity = {.factor = 1, .drop = drop}}});
}

TEST_CASE("ranks that share matrices and hold all tokens train as one rank does, in fp64") {
  using enum PipelineSchedule;
  check_runs(
      small_model(),
      with_all_tokens(
          {{.mesh = {.tp = 2}},
           {.mesh = {.tp = 4}, .schedule = kGPipe, .recompute = Recompute::kFull},
           {.mesh = {.dp = 2, .tp = 2}, .recompute = Recompute::kAttentionAndExperts, .zero = 1},
           {.mesh = {.pp = 2, .dp = 2, .tp = 2}, .recompute = Recompute::kAttention},
           {.mesh = {.pp = 4, .tp = 4}, .recompute = Recompute::kExperts},
           {.mesh = {.pp = 2, .ep = 2, .vpp = 2, .tp = 2}, .schedule = kDualPipeV, .zero = 1}}));
  check_runs(deepseek_like(),
             with_all_tokens({{.mesh = {.ep = 2, .etp = 2, .tp = 4}},
                              {.mesh = {.pp = 2, .ep = 2, .dp = 2, .etp = 2, .tp = 2},
                               .schedule = kZbH1,
                               .micro_batch = 2}}));
  check_runs(tied(qwen2_like()),
             with_all_tokens({{.mesh = {.tp = 4}, .recompute = Recompute::kExperts},
                              {.mesh = {.pp = 2, .ep = 4, .dp = 2, .vpp = 2, .tp = 2},
                               .schedule = kZbV,
                               .recompute = Recompute::kFull}}));
}

// The rows of one token group arrive once for each part of an expert, or tp times, or in between.
TEST_CASE("rows that several ranks send alike count once, whatever shares an expert") {
  const model::Model model = small_model();
  check_runs(
      model,
      with_all_tokens({{.mesh = {.ep = 2, .tp = 2}},  // every row twice
                       {.mesh = {.ep = 4, .dp = 2, .tp = 2}, .recompute = Recompute::kFull},
                       {.mesh = {.dp = 2, .etp = 2, .tp = 2}},  // each part of an expert once
                       {.mesh = {.ep = 2, .dp = 2, .etp = 2, .tp = 2},
                        .recompute = Recompute::kFull,
                        .all_to_all = strategy::AllToAll::kHalo},
                       {.mesh = {.ep = 2, .dp = 2, .etp = 4, .tp = 4}, .zero = 1},
                       {.mesh = {.ep = 2, .etp = 2, .tp = 4}},          // each part twice
                       {.mesh = {.ep = 2, .dp = 4, .etp = 4, .tp = 2},  // rows of two token groups
                        .recompute = Recompute::kExperts}}));
  check_runs(model, with_all_tokens({{.mesh = {.ep = 2, .dp = 2, .etp = 2, .tp = 2}}}), tie);
  for (const strategy::Drop drop : {strategy::Drop::kProbability, strategy::Drop::kPosition})
    check_runs(model, with_all_tokens({{.mesh = {.ep = 2, .dp = 2, .etp = 2, .tp = 2},
                                        .capacity = {.factor = 1, .drop = drop}}}));
}

// Copies of the same tokens, tokens of several groups, and both; whole sequences that a capacity
// drops from; losses that the router has of its own.
TEST_CASE("Parm's baseline trains as one rank does, in fp64") {
  using enum PipelineSchedule;
  constexpr auto kBaseline = strategy::MoeSchedule::kParmBaseline;
  model::Model model = small_model();
  model.router_z_coefficient = 0.01;
  check_runs(model, with_all_tokens(
                        {{.mesh = {.dp = 2, .etp = 2}},
                         {.mesh = {.ep = 2, .dp = 4, .etp = 2},
                          .recompute = Recompute::kFull,
                          .all_to_all = strategy::AllToAll::kHalo},
                         {.mesh = {.ep = 2, .etp = 2, .tp = 4}, .recompute = Recompute::kExperts},
                         {.mesh = {.ep = 2, .dp = 4, .etp = 4, .tp = 2},
                          .recompute = Recompute::kAttentionAndExperts},
                         {.mesh = {.pp = 2, .ep = 2, .dp = 2, .etp = 2, .tp = 2},
                          .schedule = kZbH1,
                          .micro_batch = 2,
                          .zero = 1},
                         {.mesh = {.ep = 2, .dp = 2, .etp = 2, .tp = 2}, .zero = 3},
                         {.mesh = {.ep = 2, .etp = 2, .tp = 2, .cp = 2}}},
                        kBaseline));
  check_runs(deepseek_like(), with_all_tokens({{.mesh = {.ep = 4, .dp = 2, .etp = 2, .tp = 4}},
                                               {.mesh = {.pp = 2, .dp = 2, .vpp = 2, .etp = 2},
                                                .schedule = kDualPipeV,
                                                .recompute = Recompute::kAttention}},
                                              kBaseline));
  check_runs(
      tied(qwen2_like()),
      with_all_tokens({{.mesh = {.dp = 2, .etp = 2, .tp = 2}, .recompute = Recompute::kExperts},
                       {.mesh = {.ep = 2, .dp = 4, .etp = 2}, .zero = 2}},
                      kBaseline));
  check_runs(small_model(),
             with_all_tokens({{.mesh = {.ep = 2, .dp = 2, .etp = 2, .tp = 2}}}, kBaseline), tie);
  for (const strategy::Drop drop : {strategy::Drop::kProbability, strategy::Drop::kPosition})
    check_runs(small_model(), with_all_tokens({{.mesh = {.ep = 2, .dp = 2, .etp = 2, .tp = 2},
                                                .capacity = {.factor = 1, .drop = drop}},
                                               {.mesh = {.ep = 2, .dp = 4, .etp = 2},
                                                .micro_batch = 2,
                                                .capacity = {.factor = 1, .drop = drop}}},
                                              kBaseline));
}

TEST_CASE("Parm's schedule S1 trains as one rank does, in fp64") {
  using enum PipelineSchedule;
  constexpr auto kS1 = strategy::MoeSchedule::kParmS1;
  model::Model model = small_model();
  model.router_z_coefficient = 0.01;
  check_runs(
      model,
      with_all_tokens(
          {{.mesh = {.tp = 2}},
           {.mesh = {.ep = 2, .tp = 2}, .recompute = Recompute::kFull},
           {.mesh = {.ep = 2, .dp = 2, .etp = 2, .tp = 2}},
           {.mesh = {.ep = 2, .etp = 2, .tp = 4},
            .recompute = Recompute::kExperts,
            .all_to_all = strategy::AllToAll::kHalo},
           {.mesh = {.pp = 2, .ep = 2, .dp = 2, .etp = 2, .tp = 2},
            .schedule = kZbH1,
            .micro_batch = 2,
            .zero = 1},
           {.mesh = {.ep = 4, .dp = 2, .tp = 2}, .recompute = Recompute::kAttention, .zero = 2},
           {.mesh = {.ep = 4, .dp = 2, .tp = 2}, .all_to_all = strategy::AllToAll::kHaloDedup}},
          kS1));
  check_runs(deepseek_like(), with_all_tokens({{.mesh = {.ep = 4, .dp = 2, .etp = 2, .tp = 4}},
                                               {.mesh = {.pp = 2, .ep = 2, .vpp = 2, .tp = 2},
                                                .schedule = kDualPipeV,
                                                .recompute = Recompute::kAttention}},
                                              kS1));
  check_runs(tied(qwen2_like()),
             with_all_tokens({{.mesh = {.dp = 2, .tp = 2}, .recompute = Recompute::kExperts},
                              {.mesh = {.ep = 4, .tp = 4}}},
                             kS1));
  check_runs(small_model(), with_all_tokens({{.mesh = {.ep = 4, .dp = 2, .tp = 2}}}, kS1), tie);
  check_runs(small_model(),
             with_all_tokens(
                 {{.mesh = {.dp = 2, .tp = 2}, .micro_batch = 2, .capacity = {.factor = 1}}}, kS1));
}

// Every row is sent once, whatever shares an expert: no exchange, one rank's experts, parts of
// experts inside and across the groups that hold the same tokens.
TEST_CASE("rows that ranks with the same tokens divide behind the gate train as one rank does") {
  using enum PipelineSchedule;
  using enum strategy::MoeSchedule;
  model::Model model = small_model();
  model.router_z_coefficient = 0.01;
  check_runs(model, with_all_tokens({{.mesh = {.tp = 2}},
                                     {.mesh = {.ep = 2, .tp = 2}, .recompute = Recompute::kFull},
                                     {.mesh = {.ep = 2, .dp = 2, .etp = 2, .tp = 2}},
                                     {.mesh = {.ep = 2, .etp = 2, .tp = 4},
                                      .recompute = Recompute::kExperts,
                                      .all_to_all = strategy::AllToAll::kHalo},
                                     {.mesh = {.ep = 2, .dp = 4, .etp = 4, .tp = 2},
                                      .recompute = Recompute::kAttentionAndExperts},
                                     {.mesh = {.pp = 2, .ep = 2, .dp = 2, .etp = 2, .tp = 2},
                                      .schedule = kZbH1,
                                      .micro_batch = 2,
                                      .zero = 1},
                                     {.mesh = {.ep = 2, .tp = 2, .cp = 2}}},
                                    kMontaO1));
  check_runs(model, with_all_tokens({{.mesh = {.ep = 4, .tp = 4}, .chunks = 3},
                                     {.mesh = {.ep = 2, .dp = 2, .etp = 2, .tp = 2},
                                      .chunks = 4,
                                      .recompute = Recompute::kFull},
                                     {.mesh = {.pp = 2, .ep = 2, .dp = 2, .etp = 2, .tp = 2},
                                      .chunks = 2,
                                      .schedule = kZbH1,
                                      .recompute = Recompute::kExperts,
                                      .zero = 1}},
                                    kMontaO2));
  check_runs(deepseek_like(), with_all_tokens({{.mesh = {.ep = 4, .dp = 2, .etp = 2, .tp = 4}},
                                               {.mesh = {.pp = 2, .ep = 2, .vpp = 2, .tp = 2},
                                                .chunks = 2,
                                                .schedule = kDualPipeV,
                                                .recompute = Recompute::kAttention}},
                                              kParmS2));
  check_runs(tied(qwen2_like()),
             with_all_tokens({{.mesh = {.dp = 2, .tp = 2}, .recompute = Recompute::kExperts},
                              {.mesh = {.ep = 4, .tp = 4}, .chunks = 2}},
                             kParmS2));
  // Experts without a token, and those that have all.
  for (const auto schedule : {kMontaO1, kMontaO2})
    check_runs(small_model(),
               with_all_tokens({{.mesh = {.ep = 4, .dp = 2, .tp = 2}},
                                {.mesh = {.ep = 2, .dp = 2, .etp = 2, .tp = 2}}},
                               schedule),
               tie);
  for (const strategy::Drop drop : {strategy::Drop::kProbability, strategy::Drop::kPosition})
    check_runs(small_model(), with_all_tokens({{.mesh = {.ep = 2, .dp = 2, .etp = 2, .tp = 2},
                                                .capacity = {.factor = 1, .drop = drop}},
                                               {.mesh = {.ep = 4, .tp = 4},
                                                .chunks = 2,
                                                .micro_batch = 2,
                                                .capacity = {.factor = 1, .drop = drop}}},
                                              kParmS2));
}

TEST_CASE("a random mesh, schedules, recomputation, micro-batch, exchange and division of states") {
  const auto seed = full_counts() ? std::random_device{}() : 27u;
  MESSAGE("seed ", seed);
  std::mt19937 random(seed);
  const std::vector<model::Model> models = models_of_random_runs();
  std::map<std::pair<size_t, size_t>, Trained> alone;  // by model and capacity
  const int64_t count = repetitions({.usual = 6, .full = 300});
  for (int64_t i = 0; i < count; ++i) {
    const size_t which = random() % models.size();
    const size_t limit = random() % 2 == 0 ? 0 : random() % std::size(kCapacities);
    const model::Model& model = models[which];
    const MeshRun run = random_run(random, model, kCapacities[limit]);
    const auto [found, is_new] = alone.try_emplace({which, limit});
    if (is_new) found->second = trained(model, {.mesh = {}, .capacity = run.capacity});
    check_same(model, found->second, run);
  }
}
