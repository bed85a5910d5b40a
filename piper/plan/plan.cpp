#include <fmt/format.h>
#include <piper/base/json.h>
#include <piper/base/units.h>
#include <piper/plan/explain.h>
#include <piper/plan/load_ranking.h>
#include <piper/plan/plan.h>
#include <piper/plan/search.h>
#include <piper/plan/setting.h>
#include <piper/plan/space.h>

#include <algorithm>
#include <numeric>

namespace piper::plan {
namespace {

constexpr int64_t kMostSimulatedWorld = 64;
constexpr size_t kMostKept = 64;  // strategies of the answer

Json to_json(const cost::Spread& spread) {
  return {{"mean", spread.mean}, {"p95", spread.p95}, {"worst", spread.worst}};
}

Planned planned(const Setting& s, const Candidate& candidate, cost::Estimator& estimator) {
  const cost::StepEstimate estimate = estimator.estimate(candidate.strategy);
  Planned result{candidate.strategy,
                 make_prediction(s.model(), s.cluster(), candidate.strategy, estimate,
                                 candidate.simulated ? candidate.seconds : -1)};
  result.under_load = candidate.under_load;
  Json predicted = to_json(result.prediction);
  if (candidate.under_load)
    predicted["under_load"] = {{"load", s.request->load->text},
                               {"num_samples", s.request->num_load_samples},
                               {"seed", s.request->load_seed},
                               {"step_seconds", to_json(candidate.under_load->seconds)},
                               {"peak_bytes", to_json(candidate.under_load->peak_bytes)}};
  result.strategy.predicted = std::make_shared<const Json>(std::move(predicted));
  return result;
}

void add_nearest(const Setting& s, const SearchResult& found, cost::Estimator& estimator,
                 Plan& plan) {
  const Candidate* smallest = nullptr;
  for (const FamilyResult& of : found.families)
    if (of.smallest && (smallest == nullptr || of.smallest->peak_bytes < smallest->peak_bytes))
      smallest = &*of.smallest;
  if (smallest == nullptr) return;
  plan.nearest = planned(s, *smallest, estimator);
  Rejected all{.family = fmt::format("all on {} devices", s.num_devices),
               .constraint = fmt::format("the nearest needs {} a device, {} are usable",
                                         format_bytes(static_cast<double>(smallest->peak_bytes)),
                                         format_bytes(static_cast<double>(s.memory_limit_bytes))),
               .equation = "eq. 11"};
  all.smallest_change =
      fmt::format("{} more per device",
                  format_bytes(static_cast<double>(smallest->peak_bytes - s.memory_limit_bytes)));
  if (!s.fixed().pp && !s.fixed().dp)
    if (const std::optional<Enough> enough = enough_devices(s))
      all.smallest_change +=
          fmt::format(", or {} devices (pp {} x ep {} x dp {})", enough->num_devices,
                      enough->family.pp, enough->family.ep, enough->family.dp);
  plan.rejected.insert(plan.rejected.begin(), all);
}

// found.ranked becomes what fits under the load; what that leaves out is said.
void rank_by_load(const Setting& s, SearchResult& found, cost::Estimator& estimator, Plan& plan) {
  LoadRanking ranking = rank_under_load(s, found);
  found.ranked = std::move(ranking.ranked);
  plan.num_repriced = ranking.num_repriced;
  if (!ranking.smallest) return;
  const cost::Statistic statistic = s.request->load_statistic;
  const double needs = cost::value(ranking.smallest->under_load->peak_bytes, statistic);
  const auto usable = static_cast<double>(s.memory_limit_bytes);
  plan.rejected.push_back(
      {.family = fmt::format("under load {}", s.request->load->text),
       .constraint = fmt::format("{} of memory: the nearest needs {} a device, {} are usable",
                                 cost::name(statistic), format_bytes(needs), format_bytes(usable)),
       .equation = "eq. 11",
       .smallest_change = format_bytes(needs - usable) + " more per device",
       .num_strategies = ranking.num_too_large});
  if (found.ranked.empty()) plan.nearest = planned(s, *ranking.smallest, estimator);
}

// The smallest batch from the one asked for that some depth divides; the same when there is none.
int64_t next_batch(const Setting& s) {
  const FixedAxes& fixed = s.fixed();
  int64_t best = 0;
  for (const int64_t pp : divisors(s.num_devices)) {
    if (pp > s.model().num_layers() || (fixed.pp && pp != *fixed.pp) ||
        (fixed.dp && pp * *fixed.dp != s.num_devices))
      continue;
    const int64_t unit = s.num_devices / pp * fixed.micro_batch_sequences.value_or(1) *
                         fixed.num_micro_batches.value_or(1);
    const int64_t batch = (s.global_batch_sequences + unit - 1) / unit * unit;
    if (best == 0 || batch < best) best = batch;
  }
  return std::max(best, s.global_batch_sequences);
}

// No family holds a strategy: the batch fits none. The next larger one that does gives the nearest.
void add_nearest_batch(const Request& request, const Setting& s, Plan& plan) {
  Request larger = request;
  larger.num_devices = s.num_devices;
  larger.sequence = s.sequence;
  larger.global_batch_sequences = next_batch(s);
  if (larger.global_batch_sequences == s.global_batch_sequences) return;
  Plan other = make_plan(larger);
  plan.nearest = other.strategies.empty() ? other.nearest : other.strategies.front();
}

}  // namespace

Plan make_plan(const Request& request) {
  const Setting s = make_setting(request);
  cost::Estimator estimator(s.model(), s.cluster(), s.precision, s.sequence);
  const Space space = make_space(s);
  SearchResult found = search(s, space, estimator);

  Plan plan{.rejected = space.excluded,
            .defaults = s.defaults,
            .num_considered = found.num_considered,
            .memory_limit_bytes = s.memory_limit_bytes,
            .num_devices = s.num_devices,
            .sequence = s.sequence,
            .global_batch_sequences = s.global_batch_sequences,
            .precision = s.precision};
  if (s.num_devices <= kMostSimulatedWorld && request.num_simulated > 0)
    plan.num_simulated = rerank_by_simulation(s, found.ranked, request.num_simulated);
  if (request.load && !found.ranked.empty()) rank_by_load(s, found, estimator, plan);
  for (const Candidate& candidate : found.ranked) {
    if (plan.strategies.size() == kMostKept) break;
    plan.strategies.push_back(planned(s, candidate, estimator));
  }
  for (Rejected& rejected : explain_memory(s, found, estimator))
    plan.rejected.push_back(std::move(rejected));
  if (plan.strategies.empty() && !plan.nearest) add_nearest(s, found, estimator, plan);
  if (plan.strategies.empty() && !plan.nearest) add_nearest_batch(request, s, plan);
  return plan;
}

}  // namespace piper::plan
