#include <fmt/format.h>
#include <piper/base/units.h>
#include <piper/plan/explain.h>

#include <algorithm>

namespace piper::plan {
namespace {

using strategy::Recompute;
using strategy::Strategy;

constexpr int64_t kMostTimesAsMany = 64;
constexpr int64_t kMostTries = 4096;

std::string bytes(int64_t count) { return format_bytes(static_cast<double>(count)); }

// A fixed axis that stands in the way of memory, and what the strategy would need without it.
std::string freed_axis(const Setting& s, const Strategy& smallest, cost::Estimator& estimator) {
  std::string text;
  const auto fits = [&](const Strategy& other) {
    return estimator.estimate(other).peak_bytes <= s.memory_limit_bytes;
  };
  if (s.fixed().recompute && *s.fixed().recompute != Recompute::kFull) {
    Strategy other = smallest;
    other.recompute = Recompute::kFull;
    if (fits(other)) text += ", or --recompute full";
  }
  if (s.fixed().micro_batch_sequences && smallest.micro_batch_sequences > 1) {
    Strategy other = smallest;
    other.num_micro_batches *= other.micro_batch_sequences;
    other.micro_batch_sequences = 1;
    if (fits(other)) text += ", or --micro-batch 1";
  }
  if (s.fixed().schedule == strategy::PipelineSchedule::kGPipe) {
    Strategy other = smallest;
    other.schedule = strategy::PipelineSchedule::k1F1B;
    if (fits(other)) text += ", or --schedule 1f1b";
  }
  return text;
}

}  // namespace

std::vector<Rejected> explain_memory(const Setting& s, const SearchResult& result,
                                     cost::Estimator& estimator) {
  std::vector<const FamilyResult*> missing;
  for (const FamilyResult& of : result.families)
    if (of.num_feasible == 0 && of.smallest) missing.push_back(&of);
  std::ranges::stable_sort(missing, {},
                           [](const FamilyResult* of) { return of->smallest->peak_bytes; });
  std::vector<Rejected> rejected;
  for (const FamilyResult* family : missing) {
    const FamilyResult& of = *family;
    const Strategy& strategy = of.smallest->strategy;
    const cost::StepEstimate estimate = estimator.estimate(strategy);
    const cost::StageMemory& fullest = estimate.memory[static_cast<size_t>(estimate.fullest_stage)];
    rejected.push_back(
        {.family = fmt::format("pp {} x ep {}", of.family.pp, of.family.ep),
         .constraint =
             fmt::format("stage {} needs {} of {} usable: state {}, activations {} (micro-batch "
                         "{}, {}, recompute {})",
                         estimate.fullest_stage, bytes(estimate.peak_bytes),
                         bytes(s.memory_limit_bytes), bytes(fullest.state()),
                         bytes(fullest.total() - fullest.state()), strategy.micro_batch_sequences,
                         strategy::name(strategy.schedule), strategy::name(strategy.recompute)),
         .equation = "eq. 11",
         .smallest_change =
             fmt::format("{} more per device{}", bytes(estimate.peak_bytes - s.memory_limit_bytes),
                         freed_axis(s, strategy, estimator)),
         .num_strategies = of.num_strategies});
  }
  return rejected;
}

std::optional<Enough> enough_devices(const Setting& s) {
  // The same machine with as many units of its outermost level as it takes: only memory is asked
  // for.
  cluster::Cluster larger = s.cluster();
  larger.levels.back().num_members *= kMostTimesAsMany;
  cost::Estimator estimator(s.model(), larger, s.precision, s.sequence);
  const int64_t unit = s.num_devices < larger.devices_per_node() ? 1 : larger.devices_per_node();
  const std::vector<int64_t> degrees = expert_degrees(s.model());
  const int64_t most = std::min(larger.num_devices(), s.num_devices * kMostTimesAsMany);
  int64_t tries = 0;
  for (int64_t n = (s.num_devices / unit + 1) * unit; n <= most && tries < kMostTries;
       n += unit, ++tries) {
    for (const int64_t pp : divisors(n)) {
      if (pp > s.model().num_layers()) break;
      for (const int64_t ep : degrees) {
        if (n / pp % ep != 0 || (s.fixed().ep && ep != *s.fixed().ep)) continue;
        Strategy strategy{
            .mesh = {.pp = pp, .ep = ep, .dp = n / pp},
            .schedule = s.fixed().schedule.value_or(strategy::PipelineSchedule::k1F1B),
            .recompute = s.fixed().recompute.value_or(Recompute::kFull),
            .precision = s.precision,
            .sequence = s.sequence,
            .micro_batch_sequences = s.fixed().micro_batch_sequences.value_or(1),
            .num_micro_batches = s.fixed().num_micro_batches.value_or(pp)};
        for (const std::vector<int64_t>& split : splits(s, strategy, estimator)) {
          strategy.layers_per_stage = split;
          const std::vector<cost::StageMemory> memory = estimator.memory(strategy);
          if (std::ranges::all_of(memory, [&](const cost::StageMemory& stage) {
                return stage.total() <= s.memory_limit_bytes;
              }))
            return Enough{n, {pp, ep, n / pp}};
        }
      }
    }
  }
  return std::nullopt;
}

}  // namespace piper::plan
