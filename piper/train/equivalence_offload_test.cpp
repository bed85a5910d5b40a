// Offload: with optimizer states, activations or both with the host a run is that of a run which
// keeps them, bit by bit.
#include <fmt/format.h>
#include <piper/executor/host_memory.h>
#include <testing/train/equivalence_run.h>
#include <tests/test_folder.h>

namespace piper::train::testing {
namespace {

using strategy::Offload;
using strategy::Precision;

using OffloadCase = std::pair<model::Model, strategy::Strategy>;

// Every schedule, precision, axis and form of a mixture layer, with what is recomputed.
std::vector<OffloadCase> cases() {
  using Schedule = PipelineSchedule;
  const model::Model plain = small_model();
  model::Model tied = plain;
  tied.tied_embeddings = true;
  std::vector<OffloadCase> cases;
  const auto add = [&](const model::Model& model, strategy::Mesh mesh,
                       Schedule schedule = Schedule::k1F1B, Precision precision = Precision::kFp64,
                       int64_t zero = 0) -> strategy::Strategy& {
    cases.emplace_back(model, strategy_for(model, mesh, schedule, Recompute::kNone, precision));
    cases.back().second.zero = zero;
    return cases.back().second;
  };
  add(plain, {}, Schedule::kGPipe, Precision::kFp32);
  add(tied, {.dp = 2}, Schedule::kGPipe, Precision::kBf16, 1);
  add(tied, {.pp = 2, .ep = 2, .dp = 2}, Schedule::kGPipe, Precision::kFp32, 3);
  add(plain, {.pp = 2, .ep = 2, .dp = 2, .vpp = 2}, Schedule::kInterleaved, Precision::kBf16, 2);
  add(plain, {.pp = 4, .dp = 2}, Schedule::kZbH1, Precision::kFp32, 1);
  add(model::with_mtp(plain, 2), {.pp = 2, .ep = 2, .dp = 4, .vpp = 2}, Schedule::kZbV,
      Precision::kFp32, 1);
  add(tied, {.pp = 2, .ep = 2, .dp = 2, .vpp = 2}, Schedule::kDualPipeV);
  add(tied, {.pp = 2, .ep = 2, .dp = 2}, Schedule::k1F1BPairs, Precision::kFp32, 2);
  add(plain, {.pp = 2, .ep = 2, .dp = 2, .vpp = 2}, Schedule::kInterleavedPairs);
  add(deepseek_like(), {.pp = 4, .ep = 2, .dp = 2}).recompute = Recompute::kExperts;
  add(qwen2_like(), {.pp = 2, .ep = 2, .dp = 2}, Schedule::kGPipe).recompute = Recompute::kFull;
  add(plain, {.pp = 2, .ep = 4, .dp = 2, .tp = 2}, Schedule::kGPipe, Precision::kFp32, 2);
  strategy::Strategy& chunked = add(plain, {.pp = 2, .ep = 2, .dp = 2, .tp = 2}, Schedule::kGPipe);
  chunked.sequence_parallel = false;
  chunked.moe_schedule = strategy::MoeSchedule::kMontaO2;
  chunked.moe_chunks = 2;
  add(deepseek_like(), {.pp = 2, .dp = 2, .cp = 2}, Schedule::kGPipe);
  add(plain, {.pp = 2, .ep = 2, .dp = 2, .etp = 2, .tp = 2}, Schedule::kGPipe);
  add(plain, {.pp = 2, .ep = 2, .dp = 2}, Schedule::kGPipe).all_to_all =
      strategy::AllToAll::kHaloDedup;
  return cases;
}

int64_t num_copies(const model::Model& model, const strategy::Strategy& s, bool of_states) {
  const schedule::StepGraph step = schedule::write_step(model, s);
  return std::ranges::count_if(step.graph.tasks(), [&](const graph::Task& task) {
    return task.kind == graph::TaskKind::kHostCopy &&
           (task.phase == graph::Phase::kUpdate) == of_states;
  });
}

}  // namespace

TEST_CASE("what lives with the host changes no weight, loss or norm by a bit") {
  const piper::testing::TestFolder folder;
  for (const auto& [model, kept] : cases()) {
    const Trained plain = run_training(model, kept, 3);
    CHECK(plain.losses.back() != plain.losses.front());
    for (const Offload offload :
         {Offload::kOptimizer, Offload::kActivations, Offload::kOptimizerAndActivations}) {
      strategy::Strategy s = kept;
      s.offload = offload;
      CAPTURE(s.model);
      CAPTURE(strategy::name(s.schedule));
      CAPTURE(strategy::name(offload));
      CHECK((num_copies(model, s, true) > 0) == strategy::offloads_optimizer(offload));
      CHECK((num_copies(model, s, false) > 0) == strategy::offloads_activations(offload));
      const Trained away =
          run_training(model, s, 3, {}, 0.3, collective::apart(1), [&](RunShared& shared) {
            if (offload == Offload::kOptimizer) shared.host_folder = folder.path();
          });
      CHECK(num_differing(plain, away) == 0);
      CHECK(plain.losses == away.losses);
      CHECK(plain.norms == away.norms);
      CHECK(plain.mtp_losses == away.mtp_losses);
    }
  }
}

}  // namespace piper::train::testing
