// When experts move in a run, and where to: a rank's view of balance/rebalance.h. Every rank has
// seen the same counts and has the same prices, so all come to the same decision without a word.
//
// A decision is taken before a step, from the counts of the steps up to the one before. A
// checkpoint after a step therefore holds the window and the placements before the decision, and a
// run that goes on from it decides again what the other one decided.
#pragma once

#include <piper/balance/rebalance.h>
#include <piper/base/json.h>
#include <piper/collective/topology.h>
#include <piper/model/model.h>
#include <piper/strategy/strategy.h>
#include <piper/train/rank_trainer.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace piper::train {

// These are keys in TrainState::extra: of balance::to_json(Placements) where not all are plain, and
// of the window.
inline constexpr const char* kExpertPlacement = "expert_placement";
inline constexpr const char* kExpertLoads = "expert_loads";

// Why this policy cannot be followed, one line each; empty = it can. `experts`: cost::expert_bytes.
std::vector<std::string> problems(const balance::RebalancePolicy& policy,
                                  const strategy::Strategy& strategy,
                                  const std::map<int32_t, balance::ExpertPrice>& experts);

// By layer with experts.
std::map<int32_t, int64_t> num_experts_by_layer(const model::Model& model);

// Whether it has the strategy's copies, and homes first, as many on every rank.
bool suits(const balance::ExpertPlacement& placement, const strategy::Strategy& strategy);

// Placements for this model and expert group, from a file (as in a manifest). Throws IoError,
// InvalidInput: what does not suit, another number of ranks, and what balance says.
balance::Placements read_placements(const std::string& path, const model::Model& model,
                                    const strategy::Strategy& strategy);

// Ranks of an expert group's node, in the order of the group; 0 where its nodes are uneven, mixed
// or one.
int64_t expert_ranks_per_node(const strategy::Strategy& strategy,
                              const collective::Topology& topology);

// One rank's. Not thread-safe.
class Rebalancer {
 public:
  Rebalancer(balance::RebalancePolicy policy, std::map<int32_t, balance::ExpertPrice> prices,
             int64_t ranks_per_node, uint64_t seed);

  // After every step: its rows.
  void note(const report::StepOutcome& outcome);
  // Whether a decision is due before step `number`.
  bool is_due(int64_t number) const;
  std::vector<balance::LayerDecision> decide(int64_t number,
                                             const balance::Placements& placements) const;

  // kExpertLoads.
  Json window() const { return window_.to_json(); }
  void read_window(const Json& json, const std::map<int32_t, int64_t>& num_experts,
                   const std::string& source) {
    window_.read(json, num_experts, source);
  }

 private:
  balance::RebalancePolicy policy_;
  std::map<int32_t, balance::ExpertPrice> prices_;
  int64_t ranks_per_node_;
  uint64_t seed_;
  balance::LoadWindow window_;
};

// Placements that are not plain.
balance::Placements displaced(const balance::Placements& placements);
balance::Placements next_placements(const std::vector<balance::LayerDecision>& decisions);

}  // namespace piper::train
