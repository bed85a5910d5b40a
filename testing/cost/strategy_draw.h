// Random strategies over every axis, for the tests of this folder and of those to its right. A seed
// is a sequence: the same on every machine.
#pragma once

#include <fmt/format.h>
#include <piper/model/model.h>
#include <piper/strategy/strategy.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace piper::cost::example {

// PIPER_TEST_SEED=n repeats a failure.
inline uint64_t seed_or(uint64_t usual) {
  const char* given = std::getenv("PIPER_TEST_SEED");
  return given != nullptr ? std::strtoull(given, nullptr, 10) : usual;
}

// What is drawn from; a value that stands twice comes twice as often. The other axes are the whole
// of their lists.
struct DrawnFrom {
  std::vector<int64_t> tp, cp, dp, ep, micro_batch_sequences, num_micro_batches;
  bool micro_batches_times_pp = false;
  bool moe_schedules = false;  // else plain
};

class StrategyDraw {
 public:
  StrategyDraw(DrawnFrom from, uint64_t seed) : from_(std::move(from)), random_(seed) {}

  template <class T>
  T one_of(const std::vector<T>& values) {
    return values[random_() % values.size()];
  }

  // Rejection: what contradicts itself, or `suits` (of a sound strategy) refuses, is drawn again.
  strategy::Strategy strategy(const model::Model& model, auto suits) {
    for (;;) {
      const strategy::Strategy s = attempt(model);
      if (strategy::contradictions(s, model).empty() && suits(s)) return s;
    }
  }

 private:
  auto one_in(const auto& list) { return list[random_() % std::size(list)]; }

  strategy::Strategy attempt(const model::Model& model) {
    strategy::Strategy s{.precision = strategy::Precision::kBf16, .sequence = 4096};
    s.schedule = one_in(strategy::kPipelineSchedules);
    s.mesh.pp = one_of<int64_t>({1, 2, 3, 4, 5, 6, 8});
    s.mesh.tp = one_of(from_.tp);
    s.mesh.cp = one_of(from_.cp);
    s.mesh.dp = one_of(from_.dp);
    s.mesh.ep = one_of(from_.ep);
    s.mesh.etp = one_of<int64_t>({1, 1, 2});
    if (strategy::is_v(s.schedule)) s.mesh.vpp = 2;
    if (strategy::interleaves(s.schedule)) s.mesh.vpp = one_of<int64_t>({2, 4});
    s.layers_per_stage = strategy::even_split(model.num_layers(), s.mesh.num_virtual_stages());
    s.recompute = one_in(strategy::kRecomputes);
    s.zero = one_of<int64_t>({0, 1, 2, 3});
    s.sequence_parallel = s.mesh.tp > 1 && one_of<int>({0, 1}) == 1;
    s.offload = one_in(strategy::kOffloads);
    s.placement = one_in(strategy::kPlacements);
    s.micro_batch_sequences = one_of(from_.micro_batch_sequences);
    s.num_micro_batches =
        (from_.micro_batches_times_pp ? s.mesh.pp : 1) * one_of(from_.num_micro_batches);
    s.global_batch_sequences = s.mesh.dp * s.micro_batch_sequences * s.num_micro_batches;
    if (!from_.moe_schedules) return s;
    s.moe_schedule = traits(one_in(strategy::kMoeSchedules)).nearest;
    if (traits(s.moe_schedule).gathers_tokens) {  // of few meshes else
      s.mesh.etp = 2;
      s.sequence_parallel = false;
    }
    if (strategy::has_chunks(s.moe_schedule)) s.moe_chunks = one_of<int64_t>({2, 3, 4, 8, 32});
    if (traits(s.moe_schedule).groups_peers) s.moe_chunks = std::min(s.moe_chunks, s.mesh.ep);
    return s;
  }

  DrawnFrom from_;
  std::mt19937_64 random_;
};

inline std::string words(const strategy::Strategy& s) {
  return fmt::format(
      "{} pp {} vpp {} tp {}{} cp {} ep {} etp {} dp {} zero {} recompute {} offload {} {} "
      "micro-batch {} x {} {} x {}",
      strategy::name(s.schedule), s.mesh.pp, s.mesh.vpp, s.mesh.tp,
      s.sequence_parallel ? " sp" : "", s.mesh.cp, s.mesh.ep, s.mesh.etp, s.mesh.dp, s.zero,
      strategy::name(s.recompute), strategy::name(s.offload), strategy::name(s.placement),
      s.num_micro_batches, s.micro_batch_sequences, strategy::name(s.moe_schedule), s.moe_chunks);
}

}  // namespace piper::cost::example
