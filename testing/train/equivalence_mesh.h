// A run on a mesh against the same run on one rank, in fp64: what the tests of equivalence on many
// meshes share. For tests alone.
#pragma once

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <piper/strategy/runnable.h>
#include <testing/train/equivalence_run.h>
#include <tests/switches.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <vector>

namespace piper::train::testing {

struct MeshRun {
  strategy::Mesh mesh;
  int64_t chunks = 0;  // of a mixture layer's tokens, where moe_schedule has them, else of kChunked
  PipelineSchedule schedule = PipelineSchedule::k1F1B;
  Recompute recompute = Recompute::kNone;
  int64_t micro_batch = 1;
  strategy::Capacity capacity = {};
  strategy::AllToAll all_to_all = strategy::AllToAll::kFlat;
  int64_t zero = 0;
  bool sequence_parallel = true;  // beside tp
  strategy::MoeSchedule moe_schedule = strategy::MoeSchedule::kPlain;
  int64_t redundant = 0;  // experts
  strategy::ContextExchange context_exchange = strategy::ContextExchange::kRing;
  strategy::ReductionStart reduction_start = strategy::ReductionStart::kReady;
  strategy::Placement placement = strategy::Placement::kDataInside;
};

// The same of ranks that hold all tokens of a micro-batch; with another order of the mixture layer
// where one is given.
inline std::vector<MeshRun> with_all_tokens(std::vector<MeshRun> runs,
                                            std::optional<strategy::MoeSchedule> schedule = {}) {
  for (MeshRun& run : runs) {
    run.sequence_parallel = false;
    if (schedule) run.moe_schedule = *schedule;
  }
  return runs;
}

inline strategy::Strategy strategy_of(const model::Model& model, const MeshRun& run) {
  strategy::Strategy s =
      strategy_for(model, run.mesh, run.schedule, run.recompute, strategy::Precision::kFp64);
  s.micro_batch_sequences = run.micro_batch;
  s.num_micro_batches /= run.micro_batch;
  s.capacity = run.capacity;
  s.all_to_all = run.all_to_all;
  s.zero = run.zero;
  s.sequence_parallel = run.sequence_parallel && run.mesh.tp > 1;
  s.moe_schedule = run.chunks > 0 && !strategy::has_chunks(run.moe_schedule)
                       ? strategy::MoeSchedule::kChunked
                       : run.moe_schedule;
  if (run.chunks > 0) s.moe_chunks = run.chunks;
  s.redundant_experts = run.redundant;
  s.context_exchange = run.context_exchange;
  s.reduction_start = run.reduction_start;
  s.placement = run.placement;
  return s;
}

inline std::string text(const MeshRun& run) {
  const strategy::Mesh& m = run.mesh;
  return fmt::format(
      "pp {} vpp {} tp {}{} cp {} ep {} etp {} dp {} {} recompute {} micro-batch {} {} capacity "
      "{}{} "
      "zero "
      "{} {} chunks {} redundant {} {} {} reductions {}",
      m.pp, m.vpp, m.tp, run.sequence_parallel ? "+sp" : "", m.cp, m.ep, m.etp, m.dp,
      strategy::name(run.schedule), strategy::name(run.recompute), run.micro_batch,
      strategy::name(run.all_to_all), run.capacity.factor, run.capacity.pads ? " padded" : "",
      run.zero, strategy::name(run.moe_schedule), run.chunks, run.redundant,
      strategy::name(run.context_exchange), strategy::name(run.placement),
      strategy::name(run.reduction_start));
}

// Ranks of a node are two.
inline Trained trained(const model::Model& model, const MeshRun& run,
                       const std::function<void(nn::Stage&)>& prepare = {}) {
  const int64_t world = run.mesh.world();
  return run_training(
      model, strategy_of(model, run), num_steps(), prepare, 0.3,
      world % 2 == 0 ? collective::even_nodes(world / 2, 2) : collective::apart(world));
}

inline void check_same(const model::Model& model, const Trained& one, const MeshRun& run,
                       const std::function<void(nn::Stage&)>& prepare = {}) {
  INFO(model.name, ": ", text(run));
  const Trained many = trained(model, run, prepare);
  CHECK(largest_difference(one.values, many.values) <= 1e-9);
  if (run.zero == 0) CHECK(largest_difference(one.gradients, many.gradients) <= 1e-9);
  CHECK(std::abs(one.losses.back() - many.losses.back()) < 1e-9);
  CHECK(std::abs(one.norms.back() - many.norms.back()) < 1e-9);
  CHECK(std::abs(one.mtp_losses.back() - many.mtp_losses.back()) < 1e-9);
  CHECK(std::abs(one.auxiliary - many.auxiliary) < 1e-9);
  CHECK(std::abs(one.z_loss - many.z_loss) < 1e-9);
  CHECK(one.imbalance == many.imbalance);
  CHECK(one.dropped == many.dropped);
}

// All with the capacity of the first.
inline void check_runs(const model::Model& model, const std::vector<MeshRun>& runs,
                       const std::function<void(nn::Stage&)>& prepare = {}) {
  const Trained one = trained(model, {.mesh = {}, .capacity = runs.front().capacity}, prepare);
  check_learned(one);
  for (const MeshRun& run : runs) check_same(model, one, run, prepare);
}

// Every run with every model; in short counts each run with one of them, in turn.
inline void check_runs_of(const std::vector<model::Model>& models,
                          const std::vector<MeshRun>& runs) {
  for (size_t m = 0; m < models.size(); ++m) {
    std::vector<MeshRun> own;
    for (size_t i = 0; i < runs.size(); ++i)
      if (piper::testing::full_counts() || i % models.size() == m) own.push_back(runs[i]);
    if (!own.empty()) check_runs(models[m], own);
  }
}

inline std::vector<MeshRun> joined(std::vector<MeshRun> runs, const std::vector<MeshRun>& more) {
  runs.insert(runs.end(), more.begin(), more.end());
  return runs;
}

inline model::Model tied(model::Model model) {
  model.tied_embeddings = true;
  return model;
}

inline std::vector<model::Model> models_of_random_runs() {
  return {small_model(), deepseek_like(), tied(qwen2_like()),
          model::with_mtp(tied(small_model()), 1), model::with_mtp(deepseek_like(), 1)};
}
inline constexpr strategy::Capacity kCapacities[] = {
    {}, {.factor = 1}, {.factor = 0.8, .drop = strategy::Drop::kPosition}};

// Over every axis at once, of up to 16 ranks; drawn again until it runs.
inline MeshRun random_run(std::mt19937& random, const model::Model& model,
                          const strategy::Capacity& capacity) {
  constexpr int64_t kDegrees[] = {1, 2, 4}, kShares[] = {2, 4};
  const auto pick = [&](const auto& of) { return of[random() % std::size(of)]; };
  while (true) {
    MeshRun run{.mesh = {.pp = pick(kDegrees),
                         .ep = pick(kDegrees),
                         .dp = pick(kDegrees),
                         .tp = pick(kDegrees)},
                .capacity = capacity};
    if (random() % 2 == 0) run.mesh.cp = pick(kDegrees);
    if (run.mesh.cp > 1) run.context_exchange = pick(strategy::kContextExchanges);
    run.mesh.etp = run.mesh.tp == 1 ? pick(kShares) : pick(kDegrees);
    if (run.mesh.world() > 16 || run.mesh.ranks_per_stage() % run.mesh.ranks_per_expert_set() != 0)
      continue;
    run.schedule = pick(strategy::kPipelineSchedules);
    run.mesh.vpp = strategy::is_v(run.schedule) || strategy::interleaves(run.schedule) ? 2 : 1;
    if (run.mesh.num_virtual_stages() > model.num_layers()) continue;
    run.recompute = pick(strategy::kRecomputes);
    run.micro_batch = pick(kDegrees);
    run.zero = static_cast<int64_t>(random() % 4);
    if (run.mesh.ep > 1) run.all_to_all = pick(strategy::kAllToAlls);
    if (run.zero < 2) run.reduction_start = pick(strategy::kReductionStarts);
    run.sequence_parallel = random() % 2 == 0;
    if ((run.mesh.tp > 1 ? !run.sequence_parallel : run.mesh.etp > 1) && random() % 2 == 0)
      run.moe_schedule = pick(strategy::kMoeSchedules);
    if (random() % 3 == 0) run.chunks = pick(kShares);
    if (run.mesh.ep > 1 && run.moe_schedule == strategy::MoeSchedule::kPlain && random() % 4 == 0)
      run.moe_schedule = strategy::MoeSchedule::kFasterMoe;
    if (traits(run.moe_schedule).groups_peers) run.chunks = run.mesh.ep;
    if (run.mesh.pp > 1 && run.mesh.dp > 1) run.placement = pick(strategy::kPlacements);
    if (run.mesh.ep > 1 && random() % 3 == 0) run.redundant = run.mesh.ep;
    const strategy::Strategy s = strategy_of(model, run);
    if (strategy::contradictions(s, model).empty() && strategy::not_runnable(s, model).empty())
      return run;
  }
}

// Equal scores: the first experts have all tokens, the others none.
inline void tie(nn::Stage& stage) {
  for (const nn::NamedPiece& piece : stage.named_pieces())
    if (piece.name.find("mlp.gate.weight") != std::string::npos)
      const_cast<at::Tensor&>(piece.value).zero_();
}

}  // namespace piper::train::testing
