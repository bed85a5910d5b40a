// A mixture layer whose tokens are cut into chunks trains as the plain one does, on every mesh:
// fp64, as in equivalence_test.cpp.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <piper/train/equivalence_run.h>

#include <string>
#include <vector>

using namespace piper;
using namespace piper::train::testing;

namespace {

struct Run {
  strategy::Mesh mesh;
  int64_t chunks = 2;
  PipelineSchedule schedule = PipelineSchedule::k1F1B;
  Recompute recompute = Recompute::kNone;
  int64_t micro_batch = 1;
  strategy::Capacity capacity = {};
  strategy::AllToAll all_to_all = strategy::AllToAll::kFlat;
  int64_t zero = 0;
  bool sequence_parallel = true;  // beside tp
};

std::string text(const Run& run) {
  const strategy::Mesh& m = run.mesh;
  return fmt::format(
      "chunks {} pp {} vpp {} tp {} ep {} etp {} dp {} {} recompute {} micro-batch {} {} capacity "
      "{} zero {}",
      run.chunks, m.pp, m.vpp, m.tp, m.ep, m.etp, m.dp, strategy::name(run.schedule),
      strategy::name(run.recompute), run.micro_batch, strategy::name(run.all_to_all),
      run.capacity.factor, run.zero);
}

strategy::Strategy strategy_of(const model::Model& model, const Run& run) {
  strategy::Strategy s =
      strategy_for(model, run.mesh, run.schedule, run.recompute, strategy::Precision::kFp64);
  s.micro_batch_sequences = run.micro_batch;
  s.num_micro_batches /= run.micro_batch;
  s.capacity = run.capacity;
  s.all_to_all = run.all_to_all;
  s.zero = run.zero;
  s.sequence_parallel &= run.sequence_parallel;
  if (run.chunks > 0) {
    s.moe_schedule = strategy::MoeSchedule::kChunked;
    s.moe_chunks = run.chunks;
  }
  return s;
}

Trained trained(const model::Model& model, const Run& run,
                const std::function<void(nn::Stage&)>& prepare) {
  const int64_t world = run.mesh.world();
  return run_training(
      model, strategy_of(model, run), num_steps(), prepare, 0.3,
      world % 2 == 0 ? collective::even_nodes(world / 2, 2) : collective::apart(world));
}

void check_runs(const model::Model& model, const std::vector<Run>& runs,
                const std::function<void(nn::Stage&)>& prepare = {}) {
  const Trained one =
      trained(model, {.mesh = {}, .chunks = 0, .capacity = runs.front().capacity}, prepare);
  check_learned(one);
  for (const Run& run : runs) {
    INFO(model.name, ": ", text(run));
    const Trained many = trained(model, run, prepare);
    CHECK(largest_difference(one.values, many.values) <= 1e-9);
    if (run.zero == 0) CHECK(largest_difference(one.gradients, many.gradients) <= 1e-9);
    CHECK(std::abs(one.losses.back() - many.losses.back()) < 1e-9);
    CHECK(std::abs(one.norms.back() - many.norms.back()) < 1e-9);
    CHECK(std::abs(one.auxiliary - many.auxiliary) < 1e-9);
    CHECK(std::abs(one.z_loss - many.z_loss) < 1e-9);
    CHECK(one.imbalance == many.imbalance);
    CHECK(one.dropped == many.dropped);
  }
}

}  // namespace

// 8 tokens on a rank: 8 chunks are a token each, with rows for 2 of 4 experts; 3 are uneven.
TEST_CASE("chunks of tokens train as all tokens at once do, in fp64, whatever is recomputed") {
  const strategy::Mesh two{.ep = 2, .dp = 2};
  check_runs(
      small_model(),
      {{.mesh = two},
       {.mesh = two, .chunks = 3, .recompute = Recompute::kFull},
       {.mesh = two, .chunks = 8, .recompute = Recompute::kAttention},
       {.mesh = {.ep = 4, .dp = 4}, .chunks = 4, .recompute = Recompute::kAttentionAndExperts},
       {.mesh = {.ep = 2, .dp = 4},
        .chunks = 5,
        .recompute = Recompute::kExperts,
        .micro_batch = 2}});
}

TEST_CASE("shared experts, biases and latent attention beside chunks") {
  for (const model::Model& model : {deepseek_like(), qwen2_like()})
    check_runs(model, {{.mesh = {.ep = 2, .dp = 2}, .chunks = 3},
                       {.mesh = {.ep = 2, .dp = 2}, .recompute = Recompute::kFull},
                       {.mesh = {.ep = 2, .dp = 4}, .recompute = Recompute::kExperts}});
}

TEST_CASE("every pipeline schedule, divided backwards and divided states with chunks") {
  using enum PipelineSchedule;
  for (const model::Model& model : {small_model(), deepseek_like()})
    check_runs(
        model,
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
          .zero = 1}});
}

TEST_CASE("ranks that share a layer's or an expert's matrices, with chunks") {
  using enum PipelineSchedule;
  check_runs(small_model(),
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
               .sequence_parallel = false}});
}

TEST_CASE("capacity, experts without rows and exchanges that know nodes, with chunks") {
  model::Model model = small_model();
  model.router_z_coefficient = 0.01;
  for (const strategy::Drop drop : {strategy::Drop::kProbability, strategy::Drop::kPosition}) {
    const strategy::Capacity capacity{.factor = 0.75, .drop = drop};
    check_runs(model, {{.mesh = {.ep = 2, .dp = 2}, .chunks = 8, .capacity = capacity},
                       {.mesh = {.ep = 4, .dp = 2, .tp = 2},
                        .chunks = 3,
                        .recompute = Recompute::kFull,
                        .micro_batch = 2,
                        .capacity = capacity}});
  }
  // All choose the first experts: the others have no rows, and one rank all of them.
  const auto tie = [](nn::Stage& stage) {
    for (const nn::NamedPiece& piece : stage.named_pieces())
      if (piece.name.find("mlp.gate.weight") != std::string::npos)
        const_cast<at::Tensor&>(piece.value).zero_();
  };
  check_runs(model, {{.mesh = {.ep = 4, .dp = 4}, .chunks = 4}}, tie);
  using enum strategy::AllToAll;
  for (const strategy::AllToAll algorithm : {kBruck, kHalo, kTwoD})
    check_runs(small_model(), {{.mesh = {.ep = 4, .dp = 4},
                                .chunks = 3,
                                .recompute = Recompute::kFull,
                                .all_to_all = algorithm}});
}

TEST_CASE("one chunk gives the losses of the plain layer, bit by bit") {
  const model::Model model = small_model();
  const Run run{.mesh = {.ep = 2, .dp = 2}, .chunks = 1};
  Run plain = run;
  plain.chunks = 0;
  const Trained a = trained(model, plain, {}), b = trained(model, run, {});
  CHECK(a.losses == b.losses);
  CHECK(a.norms == b.norms);
}
