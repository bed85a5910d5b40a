// The estimator's answers to a search beside the price of a strategy: what nothing of a kind goes
// below, what each stage and layer takes, samples of a load, the curves that were left.
#include <piper/cluster/watch.h>
#include <piper/cost/trainer/priced_step.h>
#include <piper/cost/trainer/sums.h>

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

namespace piper::cost {

using strategy::Strategy;

namespace {

// An estimator keeps the prices of every imbalance that it was asked for.
constexpr size_t kMostImbalances = 256;

}  // namespace

// Where ranks hold the same tokens, Parm's S1 is the schedule of a mixture layer that computes
// least. What one schedule of a mixture exposes of its collectives, another may hide.
double TrainerEstimator::bound(const Strategy& strategy, double imbalance) {
  Strategy s = strategy;
  if (trainer_.schedules_mixtures && s.mesh.tp > 1 && !s.sequence_parallel)
    s.moe_schedule = strategy::MoeSchedule::kParmS1;
  const Prices& prices = this->prices(s, imbalance);
  double compute = prices.ends.head_forward + prices.ends.head_backward +
                   prices.ends.embedding_forward + prices.ends.embedding_backward;
  double others = 0, host = 0;
  for (size_t type = 0; type < prices.types.size(); ++type) {
    const LayerPrice& p = prices.types[type];
    const auto count = static_cast<double>(layers_of_type_[type]);
    compute += count * (p.forward.compute + p.backward.compute);
    double tensor = p.forward.tensor + p.backward.tensor;
    if (trainer_.schedules_mixtures) {
      const auto left = [&](const MixtureCollectives& m, double compute) {
        return std::max(0.0, m.expert_tensor.moves.total() - compute / efficiency_);
      };
      tensor = p.tensor_forward.exposed() + p.tensor_backward.exposed() +
               left(p.mixture_forward, p.feed_forward.forward) +
               left(p.mixture_backward, p.feed_forward.backward);
    }
    others += count * (tensor + p.forward.context + p.backward.context);
    host += count * p.host_seconds;
  }
  const double serial =
      trainer_.serial_seconds_per_layer * static_cast<double>(model_.num_layers());
  const double work = std::max(compute / efficiency_ + serial, host) + others;
  return static_cast<double>(s.num_micro_batches) * work / static_cast<double>(s.mesh.pp);
}

double TrainerEstimator::bound_of_split(const Strategy& s, double imbalance) {
  double busiest = 0;
  for (const StageLoad& stage : stage_loads(s, imbalance))
    busiest = std::max(busiest, stage.seconds);
  return static_cast<double>(s.num_micro_batches) * busiest;
}

double TrainerEstimator::bound_of_schedule(const Strategy& s, double imbalance) {
  double sum = 0;
  for (const StageSums& stage : stage_sums(s, prices(s, imbalance))) {
    const Busy b = busy_of(s, stage);
    sum += b.total() - std::max(0.0, b.hideable);  // not every micro-batch is in a pair
  }
  return static_cast<double>(s.num_micro_batches) * sum / static_cast<double>(s.mesh.pp);
}

std::vector<StageLoad> TrainerEstimator::stage_loads(const Strategy& s, double imbalance) {
  const std::vector<StageSums>& sums = stage_sums(s, prices(s, imbalance));
  std::vector<StageLoad> loads;
  for (size_t i = 0; i < sums.size(); ++i) {
    Busy b = busy_of(s, sums[i]);
    if (b.hideable != 0) b.hideable *= facts(s)[i].paired;
    loads.push_back(
        {stage_bytes(s, sums[i], static_cast<int64_t>(i)).total(), b.exposed_seconds()});
  }
  return loads;
}

PassSeconds TrainerEstimator::pass_seconds(const Strategy& s, double imbalance) {
  const Prices& prices = this->prices(s, imbalance);
  PassSeconds pass;
  std::vector<double> of_type;
  for (const LayerPrice& p : prices.types) {
    const PassPrice again = p.again(s.recompute, trainer_);
    of_type.push_back((p.forward.compute + p.backward.compute + again.compute) / efficiency_ +
                      communication(p.forward) + communication(p.backward) + communication(again));
  }
  for (const size_t type : type_) pass.layers.push_back(of_type[type]);
  const EndPrice& e = prices.ends;
  pass.embedding = (e.embedding_forward + e.embedding_backward) / efficiency_;
  pass.head = (e.head_forward + e.head_backward) / efficiency_;
  return pass;
}

SampledEstimate TrainerEstimator::sampled(const Strategy& s,
                                          const std::vector<ExpertLoad>& loads) const {
  std::map<double, std::pair<double, double>> known;
  std::unique_ptr<TrainerEstimator> estimator;
  SampledEstimate sampled;
  for (const ExpertLoad& load : loads) {
    const double imbalance = imbalance_of(load, s.mesh.ep);
    const auto [found, is_new] = known.try_emplace(imbalance);
    if (is_new) {
      if (known.size() % kMostImbalances == 1)
        estimator =
            std::make_unique<TrainerEstimator>(model_, cluster_, trainer_, s.precision, s.sequence);
      const Estimate e = estimator->estimate(s, imbalance);
      found->second = {e.seconds, e.peak_bytes};
    }
    sampled.seconds.push_back(found->second.first);
    sampled.peak_bytes.push_back(found->second.second);
  }
  return sampled;
}

PricedStep TrainerEstimator::priced_step(const Strategy& s, const std::vector<Rank>& ranks,
                                         double imbalance) {
  return write_priced_step(*this, s, ranks, imbalance);
}

schedule::ExecutionStyle TrainerEstimator::style() const { return style_of(trainer_); }

std::vector<cluster::Outside> TrainerEstimator::outside_measured(
    const std::vector<Strategy>& strategies, double imbalance) const {
  const auto watch = std::make_shared<cluster::Watch>();
  const cluster::Cluster watched = cluster::watched(cluster_, watch);
  for (const Strategy& s : strategies)
    TrainerEstimator(model_, watched, trainer_, s.precision, s.sequence).estimate(s, imbalance);
  return watch->outside();
}

}  // namespace piper::cost
