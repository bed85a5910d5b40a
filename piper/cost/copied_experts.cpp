#include <piper/cost/copied_experts.h>
#include <piper/cost/exchange_time.h>
#include <piper/schedule/expert_copies.h>
#include <piper/schedule/migration.h>
#include <piper/strategy/state_bytes.h>

#include <algorithm>

namespace piper::cost {
namespace {

std::vector<collective::CopiedBlock> blocks_of(const model::Model& model,
                                               const strategy::Strategy& strategy, int32_t layer,
                                               const balance::ExpertPlacement& placement) {
  return schedule::copied_blocks(placement, schedule::expert_tensors(model, strategy, layer));
}

}  // namespace

std::vector<int64_t> copied_bytes(const model::Model& model, const strategy::Strategy& strategy,
                                  int32_t layer, const balance::ExpertPlacement& placement,
                                  bool homeward) {
  const strategy::StateBytes of = state_bytes(strategy.precision);
  std::vector<int64_t> bytes = collective::copied_units(
      placement.num_ranks(), blocks_of(model, strategy, layer, placement), homeward);
  for (int64_t& each : bytes) each *= homeward ? of.gradient : of.weight;
  return bytes;
}

double copied_seconds(const cluster::Cluster& cluster, std::span<const Rank> members,
                      std::span<const int64_t> bytes) {
  const std::vector<double> between(bytes.begin(), bytes.end());
  return all_to_all_seconds(cluster, members, between);
}

int64_t copied_scratch(const model::Model& model, const strategy::Strategy& strategy, int32_t layer,
                       const balance::ExpertPlacement& placement) {
  const std::vector<collective::CopiedBlock> blocks = blocks_of(model, strategy, layer, placement);
  int64_t most = 0;
  for (int64_t member = 0; member < placement.num_ranks(); ++member)
    most = std::max(most, collective::collect_scratch(member, blocks));
  return most * state_bytes(strategy.precision).gradient;
}

}  // namespace piper::cost
