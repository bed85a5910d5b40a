// The executor's central claim: whatever the mesh, the schedule and the recomputation, training is
// the same as on one rank. fp64, 3 steps of AdamW (20 with PIPER_FULL_COUNTS=1) with clipping
// and auxiliary loss; every parameter compared under its own name.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <piper/base/json.h>
#include <piper/strategy/rank_layout.h>
#include <testing/train/equivalence_run.h>

#include <cmath>
#include <map>
#include <span>
#include <string>
#include <vector>

using namespace piper;
using namespace piper::train::testing;

namespace {

const strategy::Mesh kMeshes[] = {{1, 1, 2}, {1, 1, 8}, {1, 2, 2}, {1, 2, 4}, {1, 4, 4},
                                  {1, 4, 8}, {2, 1, 1}, {2, 1, 4}, {2, 2, 2}, {2, 2, 4},
                                  {2, 4, 4}, {4, 1, 1}, {4, 1, 2}, {4, 2, 2}};
// Every pair of pp, ep and dp over ep that the fourteen have.
const strategy::Mesh kPairwise[] = {{1, 1, 8}, {1, 2, 4}, {1, 4, 4}, {2, 1, 1},
                                    {2, 2, 4}, {2, 4, 4}, {4, 1, 2}, {4, 2, 2}};

void check_equal(const Trained& reference, const Trained& sharded, const std::string& what) {
  INFO(what);
  CHECK(largest_difference(reference.values, sharded.values) <= 1e-9);
  CHECK(std::abs(reference.losses.back() - sharded.losses.back()) < 1e-9);
  CHECK(std::abs(reference.norms.back() - sharded.norms.back()) < 1e-9);
  CHECK(std::abs(reference.mtp_losses.back() - sharded.mtp_losses.back()) < 1e-9);
}

void check_meshes(std::span<const strategy::Mesh> meshes, const model::Model& model,
                  const std::function<void(nn::Stage&)>& prepare) {
  const auto one = strategy_for(model, {1, 1, 1}, PipelineSchedule::kGPipe, Recompute::kNone,
                                strategy::Precision::kFp64);
  const Trained reference = run_training(model, one, num_steps(), prepare);
  check_learned(reference);
  size_t num_runs = 0;
  for (size_t m = 0; m < meshes.size(); ++m)
    for (const PipelineSchedule schedule : {PipelineSchedule::kGPipe, PipelineSchedule::k1F1B}) {
      const strategy::Mesh& mesh = meshes[m];
      // One of the two schedules a mesh, in turn.
      if (!full_counts() && (schedule == PipelineSchedule::kGPipe) != (m % 2 == 0)) continue;
      // Every form of recomputation in turn.
      const Recompute recompute = strategy::kRecomputes[num_runs++ % strategy::kRecomputes.size()];
      const Trained sharded = run_training(
          model, strategy_for(model, mesh, schedule, recompute, strategy::Precision::kFp64),
          num_steps(), prepare);
      check_equal(reference, sharded,
                  fmt::format("pp {} ep {} dp {} {} recompute {}", mesh.pp, mesh.ep, mesh.dp,
                              strategy::name(schedule), strategy::name(recompute)));
    }
}

void check_all_meshes(const model::Model& model, const std::function<void(nn::Stage&)>& prepare) {
  check_meshes(kMeshes, model, prepare);
}

// Checks models that differ from the plain one in a way that few meshes touch.
void check_pairwise(const model::Model& model, const std::function<void(nn::Stage&)>& prepare) {
  check_meshes(full_counts() ? std::span<const strategy::Mesh>(kMeshes)
                             : std::span<const strategy::Mesh>(kPairwise),
               model, prepare);
}

}  // namespace

namespace {

// What a schedule of its own adds to the plain ones.
struct Placed {
  PipelineSchedule schedule;
  strategy::Mesh mesh;
  std::vector<int64_t> layers_per_stage;       // empty: even
  std::vector<Recompute> recompute_per_stage;  // empty: none
  strategy::AllToAll all_to_all = strategy::AllToAll::kFlat;
};

const Placed kPlaced[] = {
    {PipelineSchedule::kInterleaved, {.pp = 2, .ep = 1, .dp = 1, .vpp = 2}, {}, {}},
    {PipelineSchedule::kInterleaved,
     {.pp = 2, .ep = 2, .dp = 2, .vpp = 2},
     {1, 2, 1, 0},
     {Recompute::kFull, Recompute::kAttention}},
    {PipelineSchedule::k1F1B,
     {.pp = 2, .ep = 2, .dp = 4},
     {4, 0},
     {Recompute::kExperts, Recompute::kNone}},
    {PipelineSchedule::kZbH1, {.pp = 2, .ep = 2, .dp = 2}, {1, 3}, {}},
    {PipelineSchedule::kZbH1,
     {.pp = 4, .ep = 1, .dp = 1},
     {},
     {Recompute::kNone, Recompute::kFull, Recompute::kExperts, Recompute::kAttention}},
    {PipelineSchedule::kZbV,
     {.pp = 2, .ep = 2, .dp = 2, .vpp = 2},
     {},
     {},
     strategy::AllToAll::kHaloDedup},
    {PipelineSchedule::kZbV,
     {.pp = 2, .ep = 1, .dp = 2, .vpp = 2},
     {1, 1, 2, 0},
     {Recompute::kAttentionAndExperts, Recompute::kFull}},
    {PipelineSchedule::kDualPipeV, {.pp = 2, .ep = 2, .dp = 4, .vpp = 2}, {2, 1, 1, 0}, {}},
    {PipelineSchedule::kDualPipeV,
     {.pp = 2, .ep = 4, .dp = 4, .vpp = 2},
     {},
     {Recompute::kExperts, Recompute::kFull}},
    {PipelineSchedule::k1F1BPairs, {.pp = 1, .ep = 2, .dp = 2}, {}, {}},
    {PipelineSchedule::k1F1BPairs, {.pp = 1, .ep = 1, .dp = 2}, {}, {}},
    {PipelineSchedule::k1F1BPairs,
     {.pp = 2, .ep = 2, .dp = 4},
     {1, 3},
     {Recompute::kFull, Recompute::kAttention},
     strategy::AllToAll::kHaloDedup},
    {PipelineSchedule::k1F1BPairs, {.pp = 4, .ep = 1, .dp = 1}, {2, 1, 1, 0}, {}},
    {PipelineSchedule::kInterleavedPairs,
     {.pp = 2, .ep = 2, .dp = 2, .vpp = 2},
     {1, 2, 1, 0},
     {Recompute::kExperts, Recompute::kFull}},
};

strategy::Strategy placed_strategy(const model::Model& model, const Placed& placed) {
  strategy::Strategy s = strategy_for(model, placed.mesh, placed.schedule, Recompute::kNone,
                                      strategy::Precision::kFp64);
  if (!placed.layers_per_stage.empty()) s.layers_per_stage = placed.layers_per_stage;
  s.recompute_per_stage = placed.recompute_per_stage;
  s.all_to_all = placed.all_to_all;
  return s;
}

TEST_CASE("with the stages of a replica on neighbouring ranks a run is the same") {
  for (const strategy::Mesh& mesh : {strategy::Mesh{.pp = 2, .ep = 2, .dp = 4},
                                     strategy::Mesh{.pp = 2, .ep = 2, .dp = 2, .tp = 2},
                                     strategy::Mesh{.pp = 2, .dp = 4, .cp = 2}}) {
    const model::Model model = small_model();
    strategy::Strategy s = strategy_for(model, mesh, PipelineSchedule::k1F1B, Recompute::kNone,
                                        strategy::Precision::kFp64);
    s.zero = 1;
    const Trained inside = run_training(model, s, 3);
    s.placement = strategy::Placement::kPipelineInside;
    REQUIRE(strategy::RankLayout(s).num_together() < mesh.ranks_per_stage());
    const Trained around = run_training(model, s, 3);
    // The world sums the norm rank by rank, and the norm clips: equal but for rounding.
    CHECK(largest_difference(inside.values, around.values) < 1e-12);
    REQUIRE(inside.losses.size() == around.losses.size());
    for (size_t step = 0; step < inside.losses.size(); ++step)
      CHECK(std::abs(inside.losses[step] - around.losses[step]) < 1e-12);
  }
}

}  // namespace

TEST_CASE(
    "several chunks a rank, divided backwards, uneven and empty stages and recomputation by stage "
    "change nothing") {
  model::Model tied = small_model();
  tied.tied_embeddings = true;
  const model::Model models[] = {small_model(), model::with_mtp(tied, 1), deepseek_like(),
                                 qwen2_like()};
  for (const model::Model& model : models) {
    const Trained reference =
        run_training(model,
                     strategy_for(model, {1, 1, 1}, PipelineSchedule::kGPipe, Recompute::kNone,
                                  strategy::Precision::kFp64),
                     num_steps());
    check_learned(reference);
    for (const Placed& placed : kPlaced) {
      const strategy::Strategy s = placed_strategy(model, placed);
      check_equal(reference, run_training(model, s, num_steps()),
                  fmt::format("{} {} {}", model.name, strategy::name(s.schedule),
                              strategy::to_json(s)["mesh"].dump()));
    }
  }
}

TEST_CASE("what is sharded elsewhere learns on one rank") {
  for (const model::Model& model : {small_model(), deepseek_like(), qwen2_like()}) {
    CAPTURE(model.name);
    const Trained run = run_training(model,
                                     strategy_for(model, {1, 1, 1}, PipelineSchedule::kGPipe,
                                                  Recompute::kNone, strategy::Precision::kFp64),
                                     steps_to_learn());
    CHECK(run.losses.back() < run.losses.front());
  }
}

TEST_CASE("on one mesh every schedule gives the same bits of every gradient") {
  // On a rank each chunk takes its micro-batches in ascending order, whatever stands between them;
  // without clipping no sum over the mesh enters.
  const model::Model model = small_model();
  for (const int64_t tp : {1, 2}) {
    std::map<std::string, at::Tensor> gradients;
    for (const PipelineSchedule schedule : strategy::kPipelineSchedules) {
      const bool is_chunked = strategy::is_v(schedule) || strategy::interleaves(schedule);
      const strategy::Mesh mesh{.pp = 2, .ep = 2, .dp = 2, .vpp = is_chunked ? 2 : 1, .tp = tp};
      const Trained run = run_training(
          model, strategy_for(model, mesh, schedule, Recompute::kNone, strategy::Precision::kFp32),
          1);
      if (gradients.empty()) gradients = run.gradients;
      CAPTURE(tp);
      CAPTURE(std::string(strategy::name(schedule)));
      REQUIRE(run.gradients.size() == gradients.size());
      for (const auto& [name, gradient] : gradients) {
        CAPTURE(name);
        CHECK(at::equal(gradient, run.gradients.at(name)));
      }
    }
  }
}

TEST_CASE("latent attention, shared experts and biased gates shard as the plain ones do") {
  const strategy::Mesh meshes[] = {{1, 2, 2}, {1, 4, 4}, {2, 1, 2}, {2, 2, 4}, {4, 2, 2}};
  // The bias that chooses is not zero in a trained model.
  const auto bias = [](nn::Stage& stage) {
    for (const nn::NamedPiece& piece : stage.named_pieces())
      if (piece.name.find("e_score_correction_bias") != std::string::npos)
        const_cast<at::Tensor&>(piece.value).copy_(at::tensor({0.2, -0.1, 0.05, 0.3}));
  };
  check_meshes(meshes, deepseek_like(), bias);
  check_meshes(meshes, qwen2_like(), {});
}

TEST_CASE("modules of multi-token prediction shard as the model does, and learn") {
  const strategy::Mesh meshes[] = {{1, 2, 2}, {2, 1, 1}, {2, 2, 2}};
  model::Model tied = small_model();
  tied.tied_embeddings = true;
  for (const model::Model& model :
       {model::with_mtp(deepseek_like(), 2), model::with_mtp(tied, 1)}) {
    check_meshes(meshes, model, {});
    const Trained one = run_training(model,
                                     strategy_for(model, {1, 1, 1}, PipelineSchedule::kGPipe,
                                                  Recompute::kFull, strategy::Precision::kFp64),
                                     steps_to_learn());
    CHECK(one.mtp_losses.back() < one.mtp_losses.front() - (full_counts() ? 0.15 : 0));
  }
}

TEST_CASE("modules that count nothing leave every loss, gradient and parameter as it is") {
  const model::Model plain = small_model(), model = model::with_mtp(plain, 2);
  const auto train = [](const model::Model& m, strategy::Mesh mesh) {
    return run_training(m,
                        strategy_for(m, mesh, PipelineSchedule::k1F1B, Recompute::kNone,
                                     strategy::Precision::kFp64),
                        5, {}, 0);
  };
  for (const strategy::Mesh mesh : {strategy::Mesh{1, 1, 1}, {2, 2, 2}}) {
    const Trained without = train(plain, mesh), with = train(model, mesh);
    CHECK(with.losses == without.losses);
    CHECK(with.norms == without.norms);
    for (const auto& [name, value] : without.values) {
      CAPTURE(name);
      CHECK(at::equal(value, with.values.at(name)));
    }
  }
}

TEST_CASE("sharded training equals unsharded training on every mesh and schedule, in fp64") {
  check_all_meshes(small_model(), {});
}

TEST_CASE("sharded equals unsharded with experts that get no token and one that gets many") {
  // A router of zeros ties all experts: the same two win every token, the others get none.
  const auto tie = [](nn::Stage& stage) {
    for (const nn::NamedPiece& piece : stage.named_pieces())
      if (piece.name.find("mlp.gate.weight") != std::string::npos)
        const_cast<at::Tensor&>(piece.value).zero_();
  };
  const model::Model model = small_model();
  const auto one = strategy_for(model, {1, 1, 1}, PipelineSchedule::k1F1B, Recompute::kNone,
                                strategy::Precision::kFp64);
  CHECK(run_training(model, one, 1, tie).imbalance ==
        doctest::Approx(2.0));  // 2 of 4 experts take everything
  check_pairwise(model, tie);
}

TEST_CASE(
    "what a capacity drops, and the z-loss, depend on no mesh, schedule, recomputation or "
    "micro-batch") {
  model::Model model = small_model();
  model.router_z_coefficient = 0.01;
  struct Split {
    strategy::Mesh mesh;
    PipelineSchedule schedule;
    Recompute recompute;
    int64_t micro_batch;
  };
  const Split splits[] = {{{1, 1, 1}, PipelineSchedule::k1F1B, Recompute::kFull, 4},
                          {{1, 2, 4}, PipelineSchedule::k1F1B, Recompute::kNone, 1},
                          {{1, 4, 4}, PipelineSchedule::kGPipe, Recompute::kFull, 2},
                          {{2, 2, 2}, PipelineSchedule::k1F1B, Recompute::kFull, 1},
                          {{2, 4, 4}, PipelineSchedule::kGPipe, Recompute::kNone, 2},
                          {{4, 1, 2}, PipelineSchedule::k1F1B, Recompute::kNone, 4}};
  for (const strategy::Drop drop : {strategy::Drop::kProbability, strategy::Drop::kPosition}) {
    const auto train = [&](const Split& split) {
      strategy::Strategy s = strategy_for(model, split.mesh, split.schedule, split.recompute,
                                          strategy::Precision::kFp64);
      s.micro_batch_sequences = split.micro_batch;
      s.num_micro_batches /= split.micro_batch;
      s.capacity = {.factor = 1, .drop = drop};
      return run_training(model, s, num_steps());
    };
    const Trained reference = train({{1, 1, 1}, PipelineSchedule::kGPipe, Recompute::kNone, 1});
    check_learned(reference);
    CHECK(reference.dropped > 0.05 * num_steps());
    CHECK(reference.z_loss > 0);
    for (const Split& split : splits) {
      INFO("pp ", split.mesh.pp, " ep ", split.mesh.ep, " dp ", split.mesh.dp, " drop ",
           std::string(strategy::name(drop)));
      const Trained sharded = train(split);
      CHECK(largest_difference(reference.values, sharded.values) <= 1e-9);
      CHECK(std::abs(reference.losses.back() - sharded.losses.back()) < 1e-9);
      CHECK(reference.dropped == sharded.dropped);
      CHECK(std::abs(reference.z_loss - sharded.z_loss) < 1e-9);
    }
  }
}

TEST_CASE("tied embeddings on two ends of a pipeline stay equal and count once") {
  model::Model model = small_model();
  model.tied_embeddings = true;
  check_pairwise(model, {});
}

TEST_CASE("in fp32 the first step's gradients agree within 1e-5 of each tensor's norm") {
  const model::Model model = small_model();
  const auto one = strategy_for(model, {1, 1, 1}, PipelineSchedule::kGPipe, Recompute::kNone,
                                strategy::Precision::kFp32);
  const Trained reference = run_training(model, one, 1);
  for (const strategy::Mesh& mesh : kMeshes) {
    const Trained sharded = run_training(model,
                                         strategy_for(model, mesh, PipelineSchedule::k1F1B,
                                                      Recompute::kNone, strategy::Precision::kFp32),
                                         1);
    for (const auto& [name, gradient] : reference.gradients) {
      const double norm = gradient.norm().item<double>();
      const double difference = (gradient - sharded.gradients.at(name)).norm().item<double>();
      CHECK_MESSAGE(difference <= 1e-5 * norm,
                    fmt::format("{} on pp {} ep {} dp {}: {} of {}", name, mesh.pp, mesh.ep,
                                mesh.dp, difference, norm));
    }
  }
}

TEST_CASE("the same run twice gives the same bits") {
  const model::Model model = small_model();
  const auto s = strategy_for(model, {2, 2, 2}, PipelineSchedule::k1F1B, Recompute::kNone,
                              strategy::Precision::kFp32);
  const Trained first = run_training(model, s, 5), second = run_training(model, s, 5);
  for (const auto& [name, value] : first.values) CHECK(at::equal(value, second.values.at(name)));
  CHECK(first.losses == second.losses);
}
