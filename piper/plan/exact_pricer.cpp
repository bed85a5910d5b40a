#include <piper/cost/outside.h>
#include <piper/cost/prices.h>
#include <piper/cost/segment_time.h>
#include <piper/plan/exact_pricer.h>
#include <piper/schedule/step.h>
#include <piper/sim/disturbance.h>
#include <piper/sim/symmetry.h>
#include <piper/strategy/rank_layout.h>

#include <algorithm>

namespace piper::plan {
namespace {

using stack::Estimate;
using strategy::Strategy;

constexpr double kMostTasks = 400'000;
constexpr int64_t kMostRanks = 64;

// Where equal tasks scatter, no pipeline is like another. {}: all ranks.
std::vector<Rank> ranks_to_play(const cluster::Cluster& cluster, const Strategy& s) {
  if (!cost::scatter(cluster).none() || !sim::why_not_symmetric(s, cluster).empty()) return {};
  return strategy::RankLayout(s).group(strategy::Axis::kPipeline, Rank(0));
}

}  // namespace

stack::Estimate to_estimate(const cost::StepEstimate& exact) {
  const cost::StepBreakdown& t = exact.time;
  Estimate e{.seconds = exact.seconds,
             .time = {.compute = t.forward + t.backward,
                      .recompute = t.recompute,
                      .exchange = t.exchange,
                      .bubble = t.idle,
                      .reductions = t.reductions,
                      .update = t.update},
             .peak_bytes = static_cast<double>(exact.peak_bytes),
             .fullest_stage = exact.fullest_stage,
             .busiest_stage = exact.busiest_stage,
             .exact = std::make_shared<const cost::StepEstimate>(exact)};
  const cost::StageMemory& m = exact.memory[static_cast<size_t>(exact.fullest_stage)];
  const auto scratch = static_cast<double>(m.exchange_scratch);
  e.fullest = {.weights_and_gradients = static_cast<double>(m.weights + m.gradients),
               .optimizer = static_cast<double>(m.optimizer),
               .activations = static_cast<double>(m.activations.total()),
               .working = static_cast<double>(m.working + m.messages) - scratch,
               .exchange = scratch};
  for (const cost::StageMemory& stage : exact.memory)
    e.states_bytes = std::max(e.states_bytes, static_cast<double>(stage.state()));
  return e;
}

ExactPricer::ExactPricer(const model::Model& model, const cluster::Cluster& cluster,
                         strategy::Precision precision, int64_t sequence)
    : model_(model),
      cluster_(cluster),
      precision_(precision),
      sequence_(sequence),
      balanced_(model, cluster, precision, sequence) {}

ExactPricer::Loaded& ExactPricer::loaded(int64_t ep, double imbalance) {
  std::unique_ptr<Loaded>& found = loaded_[{ep, imbalance}];
  if (found) return *found;
  // A rank has no more than all rows.
  const cost::LoadDistribution hot{.kind = cost::LoadKind::kHotRank,
                                   .parameter = std::min(imbalance, static_cast<double>(ep))};
  found = std::make_unique<Loaded>(*this, cost::sample_load(hot, model_, ep, 0, 0, 1));
  return *found;
}

cost::Estimator& ExactPricer::estimator(const Strategy& s, double imbalance) {
  return imbalance == 1 || s.mesh.ep == 1 ? balanced_ : loaded(s.mesh.ep, imbalance).estimator;
}

Estimate ExactPricer::estimate(const Strategy& s, double imbalance, double, double) {
  return to_estimate(estimator(s, imbalance).estimate(s));
}

Estimate ExactPricer::bytes(const Strategy& s, double imbalance) {
  cost::StepEstimate e{.memory = estimator(s, imbalance).memory(s)};
  e.find_fullest();
  return to_estimate(e);
}

cost::PassSeconds ExactPricer::pass_seconds(const Strategy& s, double imbalance) {
  return estimator(s, imbalance).pass_seconds(s);
}

bool ExactPricer::may_play(const Strategy& s) const {
  const std::vector<Rank> ranks = ranks_to_play(cluster_, s);
  const int64_t num_ranks = ranks.empty() ? s.mesh.world() : std::ssize(ranks);
  return s.mesh.world() <= kMostRanks && schedule::num_tasks(model_, s, num_ranks) <= kMostTasks;
}

double ExactPricer::played_seconds(const Strategy& s, double imbalance) {
  const schedule::StepGraph step = schedule::write_step(model_, s, ranks_to_play(cluster_, s));
  cost::ExpertLoad load;
  if (imbalance > 1 && s.mesh.ep > 1) load = loaded(s.mesh.ep, imbalance).load;
  return sim::play_scattered(step, cost::price(step, model_, s, cluster_, load),
                             cost::scatter(cluster_), false)
      .seconds();
}

SampledEstimate ExactPricer::sampled(const Strategy& s, const LoadSamples& samples,
                                     const std::vector<double>&) {
  SampledEstimate sampled;
  for (int64_t i = 0; i < samples.num_samples; ++i) {
    const cost::ExpertLoad load =
        cost::sample_load(samples.load, model_, s.mesh.ep, samples.seed, i, samples.num_samples);
    const cost::StepEstimate e =
        cost::Estimator(model_, cluster_, precision_, sequence_, &load).estimate(s);
    sampled.seconds.push_back(e.seconds);
    sampled.peak_bytes.push_back(static_cast<double>(e.peak_bytes));
  }
  return sampled;
}

std::vector<cluster::Outside> ExactPricer::outside_measured(const std::vector<Strategy>& strategies,
                                                            double) const {
  return cost::outside_measured(model_, cluster_, strategies);
}

}  // namespace piper::plan
