#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/cluster/cluster.h>
#include <piper/cost/executor_estimator.h>
#include <piper/model/import.h>
#include <piper/strategy/strategy.h>
#include <piper/train/memory_check.h>

#include <string>

namespace piper::train {
namespace {

strategy::Strategy memory_strategy(const model::Model& model, int64_t pp, int64_t dp) {
  strategy::Strategy s;
  s.mesh = {.pp = pp, .ep = dp, .dp = dp};
  s.precision = strategy::Precision::kBf16;
  s.layers_per_stage = strategy::even_split(model.num_layers(), pp);
  s.sequence = 64;
  s.micro_batch_sequences = 2;
  s.num_micro_batches = 4;
  s.global_batch_sequences = dp * 8;
  return s;
}

std::vector<Rank> first_ranks(int64_t count) {
  std::vector<Rank> ranks;
  for (int64_t r = 0; r < count; ++r) ranks.emplace_back(r);
  return ranks;
}

std::string problem(const model::Model& model, const strategy::Strategy& s, int64_t ranks,
                    int64_t available) {
  try {
    require_memory(model, s, first_ranks(ranks), available);
  } catch (const InvalidInput& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("what ranks need is what `estimate` says of their stages, on whatever cluster") {
  const model::Model model = model::load_model("piper-10m");
  for (const auto& [pp, dp] : {std::pair{1, 1}, std::pair{2, 2}, std::pair{3, 1}}) {
    const strategy::Strategy s = memory_strategy(model, pp, dp);
    int64_t state = 0, all = 0;
    for (const char* name : {"frontier", "dgx-h100"}) {
      const cluster::Cluster cluster = cluster::load_cluster(name);
      cost::ExecutorEstimator estimator(model, cluster, s.precision, s.sequence);
      state = all = 0;
      for (const cost::StageMemory& stage : estimator.memory(s)) {
        state += stage.state() * dp;
        all += stage.total() * dp;
      }
      const NeededMemory needed = needed_memory(model, s, first_ranks(s.mesh.world()));
      CHECK(needed.state == state);
      CHECK(needed.total() == all);
    }
  }
}

TEST_CASE("a run that does not fit is refused by what it needs, activations included") {
  const model::Model model = model::load_model("piper-10m");
  const strategy::Strategy s = memory_strategy(model, 2, 2);
  const NeededMemory needed = needed_memory(model, s, first_ranks(4));
  CHECK(needed.activations > 0);
  CHECK(problem(model, s, 4, needed.total()) == "");
  const std::string activations = problem(model, s, 4, needed.total() - 1);
  CHECK(activations.find("piper-10m on 4 ranks of this machine needs") != std::string::npos);
  CHECK(activations.find("--recompute full") != std::string::npos);
  // Each of two processes asks for its own ranks.
  CHECK(problem(model, s, 2, needed.total() * 3 / 4) == "");
  const std::string state = problem(model, s, 4, needed.state - 1);
  CHECK(state.find("for weights, gradients and optimizer") != std::string::npos);
  CHECK(state.find("--recompute full") == std::string::npos);
}

TEST_CASE("what is left with the host has room there, or the run says what it needs") {
  const model::Model model = model::load_model("piper-10m");
  strategy::Strategy s = memory_strategy(model, 2, 2);
  const std::vector<Rank> ranks = first_ranks(4);
  CHECK_THROWS_WITH_AS(require_host_memory(model, s, ranks, "/disk", 1 << 30),
                       doctest::Contains("--host-folder"), InvalidInput);
  s.offload = strategy::Offload::kOptimizer;
  // Two moments and a master copy of every parameter.
  const NeededMemory kept = needed_memory(model, memory_strategy(model, 2, 2), ranks),
                     needed = needed_memory(model, s, ranks);
  CHECK(kept.host == 0);
  CHECK(needed.host == kept.state - needed.state);
  CHECK_NOTHROW(require_host_memory(model, s, ranks, "/disk", needed.host));
  CHECK_THROWS_WITH_AS(require_host_memory(model, s, ranks, "/disk", needed.host - 1),
                       doctest::Contains("is free in /disk"), InvalidInput);
  CHECK_THROWS_WITH_AS(require_host_memory(model, s, ranks, "", -1),
                       doctest::Contains("--host-folder on a disk with room"), InvalidInput);
  s.offload = strategy::Offload::kActivations;
  s.schedule = strategy::PipelineSchedule::kGPipe;
  s.num_micro_batches = 8;
  s.global_batch_sequences = 32;
  CHECK(needed_memory(model, s, ranks).host > 0);
}

}  // namespace piper::train
