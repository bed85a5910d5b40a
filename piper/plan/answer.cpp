#include <piper/base/error.h>
#include <piper/model/trainable.h>
#include <piper/plan/answer.h>
#include <piper/plan/moe_schedule_axis.h>
#include <piper/plan/ranking.h>
#include <piper/plan/reduction_axis.h>
#include <piper/plan/under_load.h>
#include <piper/strategy/runnable.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace piper::plan {
namespace {

// The best that this Piper trains, where it cannot train the best of all.
std::optional<Candidate> best_runnable(const Answer& answer) {
  const Request& request = answer.request;
  if (!model::untrainable(*request.model, request.sequence).empty() ||
      strategy::not_runnable(answer.plan.ranked.front().strategy, *request.model).empty())
    return std::nullopt;
  Request runnable = request;
  runnable.fixed.runnable = true;
  runnable.num_kept = 1;
  try {
    Plan found = search(runnable);
    if (!found.ranked.empty()) return std::move(found.ranked.front());
  } catch (const InvalidInput&) {  // what is fixed is beyond what this Piper trains
  }
  return std::nullopt;
}

void add_choices(Answer& answer) {
  answer.choices = choices_of(answer.plan, best_runnable(answer));
  simulate(answer.request, answer.choices, answer.plan);  // those that the ranking did not
  if (answer.request.model->num_moe_layers() == 0) return;
  const cost::LoadDistribution heavy = cost::parse_load(cost::kHeavyLoad);
  for (Choice& choice : answer.choices)
    if (!choice.candidate.heavy)
      choice.candidate.heavy = step_at(answer.request, choice.candidate, heavy);
}

// A load whose experts move has the imbalance that its policy leaves, which samples tell.
void resample_moving_load(Request& request) {
  if (!request.load || !request.load->rebalance.is_on()) return;
  std::vector<int64_t> eps;
  for (const auto& [ep, imbalance] : request.imbalance_by_ep) eps.push_back(ep);
  request.imbalance_by_ep =
      statistic_of(sampled_imbalances(request, *request.load, eps), request.load->statistic);
}

}  // namespace

Answer answer(const Question& question, const cost::TrainerProfile& trainer,
              const AnswerOptions& options) {
  Answer answer;
  answer.request = resolve_defaults(question, trainer, answer.defaults);
  Request& request = answer.request;
  // Nine tenths are the search, the rest is simulating what it found.
  if (options.progress)
    request.progress = [&](int64_t done, int64_t total) { options.progress(9 * done, 10 * total); };
  resample_moving_load(request);
  answer.plan = search(request);
  if (options.progress)
    request.progress = [&](int64_t done, int64_t total) {
      options.progress(9 * total + done, 10 * total);
    };
  rank(request, answer.plan, std::max(options.num_ranked, kMostSimulated));
  request.progress = {};
  if (answer.plan.ranked.empty()) return answer;
  // What is said of the best beside the ranking is said at its imbalance.
  request.imbalance = request.imbalance_at(answer.plan.ranked.front().strategy.mesh.ep);
  if (options.with_choices) add_choices(answer);
  return answer;
}

placement::PlacedPlan place_on_nodes(const cluster::Allocation& allocation, Answer& answer) {
  std::vector<Candidate>& ranked = answer.plan.ranked;
  std::vector<placement::Placeable> searched;
  for (size_t i = 0; i < std::min(ranked.size(), placement::kMostPlaced); ++i) {
    const Candidate& c = ranked[i];
    searched.push_back({c.strategy, c.step_seconds(), placement::exposed_of(c.estimate.time)});
  }
  placement::PlacedPlan placed =
      placement::rank_on_nodes(allocation, *answer.request.model, searched);
  std::vector<Candidate> sorted;
  for (const placement::OnNodes& one : placed.ranked)
    sorted.push_back(std::move(ranked[one.searched]));
  std::ranges::move(sorted, ranked.begin());
  return placed;
}

Prediction prediction_of(const Request& r, const Candidate& c) {
  return make_prediction(
      *r.model, *r.cluster, c.strategy, c.estimate,
      c.simulated_seconds > 0 ? std::optional(c.simulated_seconds) : std::nullopt);
}

Reasons reasons_of(const Request& r, const strategy::Strategy& strategy) {
  Reasons reasons;
  const double imbalance = r.imbalance_at(strategy.mesh.ep);
  if (r.fixed.runnable) reasons.reduction = explain_reduction(*r.model, *r.cluster, strategy);
  if (r.has_exact_costs())
    reasons.reduction_start = explain_reduction_start(*r.estimator(), strategy, imbalance);
  if (r.schedules_mixtures())
    reasons.moe_schedule = explain_moe_schedule(*r.estimator(), r.fixed, strategy, imbalance);
  return reasons;
}

ExchangeVerdict exchange_of(const Request& r, const strategy::Strategy& strategy) {
  if (r.has_exact_costs()) return explain_exchange(*r.model, *r.cluster, strategy);
  const cost::Rates rates(*r.cluster, r.precision);
  return explain_exchange(*r.model, *r.cluster, strategy, r.trainer, &rates, r.imbalance);
}

std::vector<cluster::Outside> outside_measured(const Answer& answer, int64_t count) {
  if (answer.plan.ranked.empty()) return {};
  const Request& r = answer.request;
  std::vector<strategy::Strategy> shown;
  for (const Candidate& c : answer.plan.ranked)
    if (std::ssize(shown) < count) shown.push_back(c.strategy);
  return r.estimator()->outside_measured(shown, r.imbalance_at(shown.front().mesh.ep));
}

}  // namespace piper::plan
