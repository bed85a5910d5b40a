#include <piper/plan/whole.h>
#include <piper/sim/play.h>
#include <piper/stack/whole_step.h>
#include <piper/strategy/layout.h>

#include <algorithm>

namespace piper::plan {
namespace {

constexpr double kMostTasks = 1e6;  // of one strategy: a second or two

}  // namespace

void play_ranked(const WholeRequest& r, WholePlan& plan, int64_t count) {
  stack::Estimator estimator(*r.model, *r.cluster, *r.stack, r.precision, r.sequence);
  const auto end = plan.ranked.begin() + std::min(count, std::ssize(plan.ranked));
  for (auto c = plan.ranked.begin(); c != end; ++c) {
    const strategy::Strategy& s = c->strategy;
    if (stack::whole_step_tasks(s, *r.model, s.mesh.pp) > kMostTasks) continue;
    const stack::WholeStep whole = stack::write_whole_step(
        estimator, s, strategy::Layout(s).first_pipeline(), r.imbalance_at(s.mesh.ep));
    c->played_seconds = sim::play(whole.step, whole.prices, false).seconds();
  }
  std::stable_sort(plan.ranked.begin(), end, [](const WholeCandidate& a, const WholeCandidate& b) {
    return a.step_seconds() < b.step_seconds();
  });
}

}  // namespace piper::plan
