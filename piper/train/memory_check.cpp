#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/base/units.h>
#include <piper/cost/executor_estimator.h>
#include <piper/strategy/rank_layout.h>
#include <piper/train/memory_check.h>
#include <piper/train/rank_memory.h>

#include <algorithm>

namespace piper::train {
namespace {

// All ranks on one node: before the profile nothing else is known, and bytes depend on no more.
cluster::Cluster one_node(const strategy::Strategy& s) {
  cluster::Cluster cluster;
  cluster.name = "one node";
  cluster.memory_bytes = 1;
  cluster.memory_bytes_per_second = 1;
  cluster.levels = {{.name = "node",
                     .num_members = s.mesh.world(),
                     .link = {.latency_seconds = 0, .bytes_per_second = 1}}};
  return cost::with_some_speed(std::move(cluster), s.precision);
}

}  // namespace

NeededMemory needed_memory(const model::Model& model, const strategy::Strategy& strategy,
                           const std::vector<Rank>& ranks) {
  const cluster::Cluster cluster = one_node(strategy);
  cost::ExecutorEstimator estimator(model, cluster, strategy.precision, strategy.sequence);
  const std::vector<cost::StageMemory> stages = estimator.memory(strategy);
  NeededMemory needed;
  for (const Rank rank : ranks) {
    const int64_t stage = strategy::RankLayout(strategy).stage(rank);
    const cost::StageMemory& memory = stages[static_cast<size_t>(stage)];
    needed.state += memory.state();
    needed.activations += memory.total() - memory.state();
    needed.host += memory.host;
  }
  return needed;
}

void require_memory(const model::Model& model, const strategy::Strategy& strategy,
                    const std::vector<Rank>& ranks, int64_t available) {
  const NeededMemory needed = needed_memory(model, strategy, ranks);
  if (needed.total() <= available) return;
  const auto text = [](int64_t bytes) { return format_bytes(static_cast<double>(bytes)); };
  throw InvalidInput(fmt::format(
      "{} on {} ranks of this machine needs {} for weights, gradients and optimizer and {} for "
      "activations and buffers, and {} is available; allowed: a smaller model, or fewer replicas "
      "of "
      "it{} (`piper estimate` breaks it down)",
      model.name, ranks.size(), text(needed.state), text(needed.activations), text(available),
      needed.state <= available ? ", or --recompute full, or a smaller --micro-batch" : ""));
}

void require_host_memory(const model::Model& model, const strategy::Strategy& strategy,
                         const std::vector<Rank>& ranks, const std::filesystem::path& folder,
                         int64_t free) {
  if (strategy.offload == strategy::Offload::kNone) {
    if (!folder.empty())
      throw InvalidInput(
          "--host-folder keeps what lives with the host, and nothing does; allowed: with "
          "--offload optimizer, activations or optimizer+activations");
    return;
  }
  const NeededMemory needed = needed_memory(model, strategy, ranks);
  if (needed.host <= free) return;
  const auto text = [](int64_t bytes) {
    return format_bytes(static_cast<double>(std::max<int64_t>(0, bytes)));
  };
  throw InvalidInput(fmt::format(
      "--offload {} on {} ranks of this machine needs {} of the host's memory, and {} is free{}; "
      "allowed: {}",
      strategy::name(strategy.offload), ranks.size(), text(needed.host), text(free),
      folder.empty() ? "" : " in " + folder.string(),
      folder.empty() ? "--host-folder on a disk with room, or a smaller model"
                     : "a folder on a disk with room, or a smaller model"));
}

void require_memory_of(const model::Model& model, const strategy::Strategy& strategy,
                       const std::vector<Rank>& ranks, const RankDevices& devices) {
  if (devices.is_cpu()) return require_memory(model, strategy, ranks);
  for (const RankDevices::Use& use : devices.uses())
    require_memory(model, strategy, use.ranks, free_bytes(use.device));
}

}  // namespace piper::train
