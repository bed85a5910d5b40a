#include <piper/base/json.h>
#include <piper/plan/moe_schedule_axis.h>
#include <piper/plan/search.h>
#include <piper/plan/simulated_step.h>
#include <piper/plan/threads.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace piper::plan {
namespace {

using strategy::Strategy;

constexpr int64_t kMostPlays = 32;

bool quicker(const Candidate& a, const Candidate& b) { return a.step_seconds() < b.step_seconds(); }

// Of the front, which is made of closed forms too, whoever may be quicker than all that were played
// is ranked with them.
void join_front(Plan& plan) {
  const auto is_ranked = [&](const Candidate& c) {
    const Json strategy = strategy::to_json(c.strategy);
    return std::ranges::any_of(plan.ranked, [&](const Candidate& other) {
      return other.estimate.seconds == c.estimate.seconds &&
             strategy::to_json(other.strategy) == strategy;
    });
  };
  if (plan.ranked.empty()) return;
  const double best = plan.ranked.front().step_seconds();
  for (const Candidate& c : plan.pareto)
    if (c.estimate.seconds < best && !is_ranked(c)) plan.ranked.push_back(c);
  std::ranges::stable_sort(plan.ranked, quicker);
}

// The front takes over what was played, and loses who is no longer on it.
void renew_front(Plan& plan) {
  std::vector<Candidate>& front = plan.pareto;
  front.insert(front.end(), plan.ranked.begin(), plan.ranked.end());
  std::ranges::stable_sort(front, [](const Candidate& a, const Candidate& b) {
    return std::pair(a.step_seconds(), a.estimate.peak_bytes) <
           std::pair(b.step_seconds(), b.estimate.peak_bytes);
  });
  // Once played, a strategy does not stand there by its closed form too.
  std::vector<Json> played;
  for (const Candidate& c : plan.ranked)
    if (c.played_seconds > 0) played.push_back(strategy::to_json(c.strategy));
  double least = std::numeric_limits<double>::infinity();
  std::erase_if(front, [&](const Candidate& c) {
    if (c.played_seconds == 0 &&
        std::ranges::find(played, strategy::to_json(c.strategy)) != played.end())
      return true;
    if (c.estimate.peak_bytes >= least) return true;
    least = c.estimate.peak_bytes;
    return false;
  });
}

// Of the first `count` that are ranked, as many as may be played still.
std::vector<Candidate*> next_played(const cost::Estimator& estimator, Plan& plan, int64_t count,
                                    int64_t most) {
  std::vector<Candidate*> next;
  for (Candidate& c :
       std::span(plan.ranked).first(static_cast<size_t>(std::min(count, std::ssize(plan.ranked)))))
    if (std::ssize(next) < most && c.played_seconds == 0 && may_simulate(estimator, c.strategy))
      next.push_back(&c);
  return next;
}

// The best once more with what its mixture layers could do instead.
void play_moe_schedules(const Request& r, cost::Estimator& estimator, Plan& plan) {
  if (!estimator.is_exact() || plan.ranked.empty() || plan.ranked.front().played_seconds == 0)
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
                      .played_seconds = simulated_seconds(estimator, other, imbalance),
                      .under_load = {}});
}

}  // namespace

void play_ranked(const Request& r, Plan& plan, int64_t count) {
  const int64_t num_threads = threads_of(r);
  const std::unique_ptr<cost::Estimator> estimator = r.estimator();
  // Whom playing slows down lets others up, who are played in their turn. Nobody among the first
  // leaves them unplayed, so that all of them can be played at once.
  for (int64_t plays = 0; plays < kMostPlays;) {
    std::vector<Candidate*> next = next_played(*estimator, plan, count, kMostPlays - plays);
    if (next.empty()) {
      join_front(plan);
      next = next_played(*estimator, plan, count, kMostPlays - plays);
    }
    if (next.empty()) break;
    share_items(
        num_threads, std::ssize(next),
        [&](int64_t, int64_t item) {
          Candidate& c = *next[static_cast<size_t>(item)];
          c.played_seconds =
              simulated_seconds(*r.estimator(), c.strategy, r.imbalance_at(c.strategy.mesh.ep));
        },
        [&](int64_t done) {
          if (r.progress) r.progress(std::min(plays + done, count), count);
        });
    plays += std::ssize(next);
    std::ranges::stable_sort(plan.ranked, quicker);
  }
  // Where there were more to play than may be, a closed form that nobody has checked stands behind
  // what was played: it is the more hopeful of the two.
  if (!next_played(*estimator, plan, count, 1).empty())
    std::ranges::stable_partition(plan.ranked, [&](const Candidate& c) {
      return c.played_seconds > 0 || !may_simulate(*estimator, c.strategy);
    });
  play_moe_schedules(r, *estimator, plan);
  renew_front(plan);
}

}  // namespace piper::plan
