#include <piper/base/json.h>
#include <piper/plan/frontier.h>
#include <piper/plan/moe_schedule_axis.h>
#include <piper/plan/search.h>
#include <piper/plan/simulated_step.h>
#include <piper/plan/threads.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

namespace piper::plan {
namespace {

using strategy::Strategy;

constexpr int64_t kMostFollowing = 24;  // simulations of those whom slower ones let up

bool quicker(const Candidate& a, const Candidate& b) { return a.step_seconds() < b.step_seconds(); }

// Ranks also those of `others` whose closed form takes less than `seconds`.
void join(Plan& plan, const std::vector<Candidate>& others, double seconds) {
  for (const Candidate& c : others)
    if (c.estimate.seconds < seconds && !has_twin(plan.ranked, c)) plan.ranked.push_back(c);
  std::ranges::stable_sort(plan.ranked, quicker);
}

// Ranks also whatever of the front, which holds closed forms too, may be quicker than everything
// that was simulated.
void join_front(Plan& plan) {
  if (!plan.ranked.empty()) join(plan, plan.pareto, plan.ranked.front().step_seconds());
}

// The front takes over what was simulated, and loses who is no longer on it.
void renew_front(Plan& plan) {
  std::vector<Candidate>& front = plan.pareto;
  front.insert(front.end(), plan.ranked.begin(), plan.ranked.end());
  std::ranges::stable_sort(front, [](const Candidate& a, const Candidate& b) {
    return std::pair(a.step_seconds(), a.estimate.peak_bytes) <
           std::pair(b.step_seconds(), b.estimate.peak_bytes);
  });
  // Once simulated, a strategy does not stand there by its closed form too.
  std::vector<Json> simulated;
  for (const Candidate& c : plan.ranked)
    if (c.simulated_seconds > 0) simulated.push_back(strategy::to_json(c.strategy));
  double least = std::numeric_limits<double>::infinity();
  std::erase_if(front, [&](const Candidate& c) {
    if (c.simulated_seconds == 0 &&
        std::ranges::find(simulated, strategy::to_json(c.strategy)) != simulated.end())
      return true;
    if (c.estimate.peak_bytes >= least) return true;
    least = c.estimate.peak_bytes;
    return false;
  });
}

// So do the families: the quickest that was simulated, where the best by its closed form was, or
// would not be quicker.
void renew_families(Plan& plan) {
  for (FamilyBest& family : plan.families) {
    if (!family.best) continue;
    std::vector<Candidate> simulated;
    for (const Candidate& c : plan.ranked)
      if (c.simulated_seconds > 0 && family_of(c.strategy) == family.family) simulated.push_back(c);
    if (simulated.empty()) continue;
    const Candidate& quickest = *std::ranges::min_element(simulated, quicker);
    if (has_twin(simulated, *family.best) || quicker(quickest, *family.best))
      family.best = quickest;
  }
}

// The best of each pipeline schedule and of each family, of those within kKindSlack of the best, and
// those of the front that are as fast as it with less memory.
std::vector<Candidate> bests_of_kinds(const Plan& plan) {
  std::vector<Candidate> kinds = plan.schedules;
  if (plan.ranked.empty()) return kinds;
  const double most = (1 + kKindSlack) * plan.ranked.front().estimate.seconds;
  for (const FamilyBest& family : plan.families)
    if (family.best && family.best->estimate.seconds <= most && !has_twin(kinds, *family.best))
      kinds.push_back(*family.best);
  double bytes = std::numeric_limits<double>::infinity();  // the front is sorted by time
  for (const Candidate& c : plan.pareto) {
    if (c.estimate.seconds > (1 + kTieSlack) * plan.ranked.front().estimate.seconds) break;
    if (c.estimate.peak_bytes > bytes - kTieBytes) continue;
    bytes = c.estimate.peak_bytes;
    if (!has_twin(kinds, c)) kinds.push_back(c);
  }
  return kinds;
}

// What to simulate next, at most `most`: those of the first `count` ranked, and of `kinds`, that
// are not simulated yet.
std::vector<Candidate*> next_simulated(const cost::Estimator& estimator, Plan& plan,
                                       const std::vector<Candidate>& kinds, int64_t count,
                                       int64_t most) {
  std::vector<Candidate*> next;
  for (int64_t i = 0; i < std::ssize(plan.ranked) && std::ssize(next) < most; ++i) {
    Candidate& c = plan.ranked[static_cast<size_t>(i)];
    if (c.simulated_seconds == 0 && (i < count || has_twin(kinds, c)) &&
        may_simulate(estimator, c.strategy))
      next.push_back(&c);
  }
  return next;
}

// The best once more with what its mixture layers could do instead.
void simulate_moe_schedules(const Request& r, cost::Estimator& estimator, Plan& plan) {
  if (!estimator.is_exact() || plan.ranked.empty() || plan.ranked.front().simulated_seconds == 0)
    return;
  const Strategy& best = plan.ranked.front().strategy;
  const double imbalance = r.imbalance_at(best.mesh.ep);
  cost::Estimate estimate;
  const Strategy other =
      simulated_moe_schedule(estimator, r.fixed, best, imbalance, [&](const Strategy& s) {
        estimate = estimator.estimate(s, imbalance);
        return estimate.peak_bytes <= r.memory_limit_bytes;
      });
  if (other.moe_schedule == best.moe_schedule && other.moe_chunks == best.moe_chunks) return;
  plan.ranked.insert(plan.ranked.begin(),
                     {.strategy = other,
                      .estimate = estimate,
                      .simulated_seconds = simulated_seconds(estimator, other, imbalance),
                      .under_load = {}});
}

}  // namespace

void simulate_ranked(const Request& r, Plan& plan, int64_t count) {
  const int64_t num_threads = threads_of(r);
  const std::unique_ptr<cost::Estimator> estimator = r.estimator();
  const std::vector<Candidate> kinds = bests_of_kinds(plan);
  join(plan, kinds, std::numeric_limits<double>::infinity());
  // Whom simulating slows down lets others up, who are simulated in their turn. Nobody among the
  // first leaves them unsimulated, so that all of them can be simulated at once.
  const int64_t most = count + std::ssize(kinds) + kMostFollowing;
  for (int64_t simulated = 0; simulated < most;) {
    std::vector<Candidate*> next = next_simulated(*estimator, plan, kinds, count, most - simulated);
    if (next.empty()) {
      join_front(plan);
      next = next_simulated(*estimator, plan, kinds, count, most - simulated);
    }
    if (next.empty()) break;
    share_items(
        num_threads, std::ssize(next),
        [&](int64_t, int64_t item) {
          Candidate& c = *next[static_cast<size_t>(item)];
          c.simulated_seconds =
              simulated_seconds(*r.estimator(), c.strategy, r.imbalance_at(c.strategy.mesh.ep));
        },
        [&](int64_t done) {
          if (r.progress) r.progress(std::min(simulated + done, count), count);
        });
    simulated += std::ssize(next);
    std::ranges::stable_sort(plan.ranked, quicker);
  }
  // Where there were more to simulate than may be, a closed form that nobody has checked stands
  // behind what was simulated: it is the more hopeful of the two.
  if (!next_simulated(*estimator, plan, kinds, count, 1).empty())
    std::ranges::stable_partition(plan.ranked, [&](const Candidate& c) {
      return c.simulated_seconds > 0 || !may_simulate(*estimator, c.strategy);
    });
  simulate_moe_schedules(r, *estimator, plan);
  renew_front(plan);
  renew_families(plan);
}

}  // namespace piper::plan
