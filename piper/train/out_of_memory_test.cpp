#include <doctest/doctest.h>
#include <piper/cluster/cluster.h>
#include <piper/cost/executor_estimator.h>
#include <piper/model/import.h>
#include <piper/strategy/strategy.h>
#include <piper/train/out_of_memory.h>

#include <algorithm>
#include <limits>
#include <string>

namespace piper::train {
namespace {

strategy::Strategy strategy_of(const model::Model& model) {
  strategy::Strategy s;
  s.layers_per_stage = strategy::even_split(model.num_layers(), 1);
  s.sequence = 64;
  s.micro_batch_sequences = s.num_micro_batches = s.global_batch_sequences = 1;
  return s;
}

int64_t needed(const model::Model& model, const strategy::Strategy& s,
               const cluster::Cluster& cluster) {
  cost::ExecutorEstimator estimator(model, cluster, s.precision, s.sequence);
  return estimator.memory(s).front().total();
}

bool names(const std::vector<std::string>& lines, const std::string& flags) {
  return std::ranges::any_of(
      lines, [&](const std::string& line) { return line.starts_with(flags + " (needs "); });
}

}  // namespace

TEST_CASE("a device's allocator says in words how much was wanted") {
  const auto wanted = [](const char* said) {
    const nn::OutOfMemory error = out_of_device_memory(said, Rank(3), 5000);
    CHECK(error.rank == Rank(3));
    CHECK(error.live_bytes == 5000);
    return error.wanted_bytes;
  };
  CHECK(wanted("CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total") == 5LL << 29);
  CHECK(wanted("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has") == 20 << 20);
  CHECK(wanted("CUDA out of memory. Tried to allocate 512 bytes. GPU 0 has") == 512);
  CHECK(wanted("HIP error") == 0);
}

TEST_CASE("what would help is what fits, to the byte, the gentlest first") {
  const model::Model model = model::load_model("piper-10m");
  const cluster::Cluster cluster = cluster::load_cluster("rtx4090x8");
  const strategy::Strategy s = strategy_of(model);
  strategy::Strategy attention = s, full = s;
  attention.recompute = strategy::Recompute::kAttention;
  full.recompute = strategy::Recompute::kFull;
  const int64_t gentle = needed(model, attention, cluster), most = needed(model, full, cluster);
  REQUIRE(most < gentle);
  REQUIRE(gentle < needed(model, s, cluster));
  const auto fitting = [&](int64_t limit) { return changes_that_fit(model, s, cluster, limit); };
  CHECK(fitting(std::numeric_limits<int64_t>::max()).size() == 3);
  CHECK(fitting(gentle).front().starts_with("--recompute attention (needs "));
  CHECK(!names(fitting(gentle - 1), "--recompute attention"));
  CHECK(names(fitting(most), "--recompute full"));
  // Beyond that only host memory helps: states, activations, or both.
  const std::vector<std::string> less = fitting(most - 1);
  REQUIRE(!less.empty());
  for (const std::string& line : less) CHECK(line.starts_with("--offload "));
  strategy::Strategy offloaded = s;
  offloaded.offload = strategy::Offload::kOptimizerAndActivations;
  const int64_t least = needed(model, offloaded, cluster);
  CHECK(names(fitting(least), "--offload optimizer+activations"));
  CHECK(fitting(least - 1).empty());
  // A CPU's is memory of its own only in files.
  cluster::Cluster cores = cluster;
  cores.kind = "cpu";
  CHECK(names(changes_that_fit(model, s, cores, least),
              "--offload optimizer+activations --host-folder DIR"));
}

}  // namespace piper::train
