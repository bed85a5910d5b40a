#include <piper/base/json.h>
#include <piper/plan/whole.h>
#include <piper/sim/play.h>
#include <piper/stack/whole_step.h>
#include <piper/strategy/layout.h>

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

namespace piper::plan {
namespace {

constexpr double kMostTasks = 1e6;  // of one strategy: a second or two
constexpr int64_t kMostPlays = 32;

bool quicker(const WholeCandidate& a, const WholeCandidate& b) {
  return a.step_seconds() < b.step_seconds();
}

// Of the front, which is made of closed forms too, whoever may be quicker than all that were played is ranked with them.
void join_front(WholePlan& plan) {
  const auto is_ranked = [&](const WholeCandidate& c) {
    const Json strategy = strategy::to_json(c.strategy);
    return std::ranges::any_of(plan.ranked, [&](const WholeCandidate& other) {
      return other.estimate.seconds == c.estimate.seconds &&
             strategy::to_json(other.strategy) == strategy;
    });
  };
  if (plan.ranked.empty()) return;
  const double best = plan.ranked.front().step_seconds();
  for (const WholeCandidate& c : plan.pareto)
    if (c.estimate.seconds < best && !is_ranked(c)) plan.ranked.push_back(c);
  std::ranges::stable_sort(plan.ranked, quicker);
}

// The front takes over what was played, and loses who is no longer on it.
void renew_front(WholePlan& plan) {
  std::vector<WholeCandidate>& front = plan.pareto;
  front.insert(front.end(), plan.ranked.begin(), plan.ranked.end());
  std::ranges::stable_sort(front, [](const WholeCandidate& a, const WholeCandidate& b) {
    return std::pair(a.step_seconds(), a.estimate.peak_bytes) <
           std::pair(b.step_seconds(), b.estimate.peak_bytes);
  });
  // Once played, a strategy does not stand there by its closed form too.
  std::vector<Json> played;
  for (const WholeCandidate& c : plan.ranked)
    if (c.played_seconds > 0) played.push_back(strategy::to_json(c.strategy));
  double least = std::numeric_limits<double>::infinity();
  std::erase_if(front, [&](const WholeCandidate& c) {
    if (c.played_seconds == 0 &&
        std::ranges::find(played, strategy::to_json(c.strategy)) != played.end())
      return true;
    if (c.estimate.peak_bytes >= least) return true;
    least = c.estimate.peak_bytes;
    return false;
  });
}

}  // namespace

void play_ranked(const WholeRequest& r, WholePlan& plan, int64_t count) {
  stack::Estimator estimator(*r.model, *r.cluster, *r.stack, r.precision, r.sequence);
  const auto may_be_played = [&](const WholeCandidate& c) {
    return c.played_seconds == 0 &&
           stack::whole_step_tasks(c.strategy, *r.model, c.strategy.mesh.pp) <= kMostTasks;
  };
  // Whom playing slows down lets others up, who are played in their turn.
  for (int64_t plays = 0; plays < kMostPlays; ++plays) {
    const auto first = [&] {
      const auto end = plan.ranked.begin() + std::min(count, std::ssize(plan.ranked));
      const auto c = std::find_if(plan.ranked.begin(), end, may_be_played);
      return c == end ? nullptr : &*c;
    };
    WholeCandidate* c = first();
    if (c == nullptr) {
      join_front(plan);
      c = first();
    }
    if (c == nullptr) break;
    const stack::WholeStep whole = stack::write_whole_step(
        estimator, c->strategy, strategy::Layout(c->strategy).first_pipeline(),
        r.imbalance_at(c->strategy.mesh.ep));
    c->played_seconds = sim::play(whole.step, whole.prices, false).seconds();
    std::ranges::stable_sort(plan.ranked, quicker);
    if (r.progress) r.progress(std::min(plays + 1, count), count);
  }
  renew_front(plan);
}

}  // namespace piper::plan
