#include <piper/plan/split.h>
#include <piper/plan/stage_recompute.h>
#include <piper/schedule/action.h>

#include <algorithm>
#include <limits>

namespace piper::plan {

using strategy::Recompute;
using strategy::Strategy;

namespace {

constexpr int kMostRounds = 3;  // of moving layers and choosing again

// Layers weigh what their stage makes of them; the stage that a layer lies on now stands for the
// one it goes to.
std::vector<int64_t> balanced(cost::Estimator& estimator, const Strategy& s,
                              const StageChoice& choice, double imbalance) {
  const int64_t stages = s.mesh.num_virtual_stages();
  std::array<std::optional<cost::PassSeconds>, strategy::kRecomputes.size()> passes;
  std::vector<double> layers;
  double first = 0, last = 0;
  for (int64_t v = 0; v < stages; ++v) {
    const int64_t rank = schedule::rank_of_stage(s.schedule, s.mesh.pp, v);
    Strategy one = s;
    one.recompute = choice.per_stage[static_cast<size_t>(rank)];
    std::optional<cost::PassSeconds>& pass = passes[static_cast<size_t>(one.recompute)];
    if (!pass) pass = estimator.pass_seconds(one, imbalance);
    for (int64_t i = 0; i < s.layers_per_stage[static_cast<size_t>(v)]; ++i)
      layers.push_back(pass->layers[layers.size()]);
    first = pass->embedding;
    last = pass->head;
  }
  return balanced_split(layers, first, last, stages);
}

}  // namespace

bool StageChoice::is_uniform() const {
  return std::ranges::adjacent_find(per_stage, std::ranges::not_equal_to()) == per_stage.end();
}

std::optional<StageChoice> choose_by_stage(const LoadsByRecompute& loads, double limit_bytes) {
  constexpr double kNever = std::numeric_limits<double>::infinity();
  const size_t pp = loads.front().size();
  std::vector<double> least(pp, kNever);
  StageChoice choice{.per_stage = std::vector<Recompute>(pp)};
  for (size_t r = 0; r < loads.size(); ++r)
    for (size_t i = 0; i < pp; ++i) {
      if (loads[r][i].bytes > limit_bytes || loads[r][i].seconds >= least[i]) continue;
      least[i] = loads[r][i].seconds;
      choice.per_stage[i] = strategy::kRecomputes[r];
    }
  choice.slowest = std::ranges::max(least);
  if (choice.slowest == kNever) return std::nullopt;
  for (const double seconds : least) choice.mean += seconds / static_cast<double>(pp);
  return choice;
}

std::optional<Strategy> with_stage_recompute(cost::Estimator& estimator, const Strategy& strategy,
                                             StageChoice choice, double limit_bytes,
                                             double imbalance) {
  Strategy best = strategy, moved = strategy;
  for (int round = 0; round < kMostRounds; ++round) {
    moved.layers_per_stage = balanced(estimator, moved, choice, imbalance);
    if (moved.layers_per_stage == best.layers_per_stage) break;
    LoadsByRecompute loads;
    for (size_t r = 0; r < loads.size(); ++r) {
      moved.recompute = strategy::kRecomputes[r];
      loads[r] = estimator.stage_loads(moved, imbalance);
    }
    const std::optional<StageChoice> next = choose_by_stage(loads, limit_bytes);
    if (!next || next->slowest >= choice.slowest) break;
    choice = *next;
    best.layers_per_stage = moved.layers_per_stage;
  }
  if (choice.is_uniform()) return std::nullopt;
  best.recompute = std::ranges::max(choice.per_stage);
  best.recompute_per_stage = choice.per_stage;
  return best;
}

}  // namespace piper::plan
