#include <piper/cluster/watch.h>
#include <piper/plan/exact_pricer.h>
#include <piper/sim/play.h>
#include <piper/stack/priced_step.h>
#include <piper/strategy/rank_layout.h>
#include <piper/strategy/runnable.h>

#include <map>
#include <memory>
#include <utility>

namespace piper::plan {
namespace {

using stack::Estimate;
using strategy::Strategy;

// An estimator keeps the prices of every imbalance that it was asked for.
constexpr size_t kMostImbalances = 256;

class StackPricer : public Pricer {
 public:
  StackPricer(const model::Model& model, const cluster::Cluster& cluster, const stack::Stack& stack,
              strategy::Precision precision, int64_t sequence)
      : model_(model),
        cluster_(cluster),
        stack_(stack),
        estimator_(model, cluster, stack, precision, sequence) {}

  Estimate estimate(const Strategy& s, double imbalance, double worth_below,
                    double most_bytes) override {
    return estimator_.estimate(s, imbalance, worth_below, most_bytes);
  }
  Estimate bytes(const Strategy& s, double imbalance) override {
    return estimator_.bytes(s, imbalance);
  }
  double bound(const Strategy& s, double imbalance) override {
    return estimator_.bound(s, imbalance).seconds;
  }
  double bound_of_split(const Strategy& s, double imbalance) override {
    return estimator_.bound_of_split(s, imbalance).seconds;
  }
  double bound_of_schedule(const Strategy& s, double imbalance) override {
    return estimator_.bound_of_schedule(s, imbalance).seconds;
  }
  cost::PassSeconds pass_seconds(const Strategy& s, double imbalance) override {
    return estimator_.pass_seconds(s, imbalance);
  }
  std::vector<stack::Estimator::StageLoad> stage_loads(const Strategy& s,
                                                       double imbalance) override {
    return estimator_.stage_loads(s, imbalance);
  }

  bool may_play(const Strategy& s) const override {
    constexpr double kMostTasks = 1e6;  // a second or two
    return schedule::num_tasks(model_, s, s.mesh.pp, stack::style_of(stack_)) <= kMostTasks;
  }
  // One pipeline: under a stack all are alike.
  double played_seconds(const Strategy& s, double imbalance) override {
    const stack::PricedStep whole = stack::write_priced_step(
        estimator_, s, strategy::RankLayout(s).group(strategy::Axis::kPipeline, Rank(0)),
        imbalance);
    return sim::play(whole.step, whole.prices, false).seconds();
  }

  SampledEstimate sampled(const Strategy& s, const LoadSamples&,
                          const std::vector<double>& imbalances) override {
    std::map<double, std::pair<double, double>> known;
    std::unique_ptr<stack::Estimator> estimator;
    SampledEstimate sampled;
    for (const double imbalance : imbalances) {
      const auto [found, is_new] = known.try_emplace(imbalance);
      if (is_new) {
        if (known.size() % kMostImbalances == 1)
          estimator =
              std::make_unique<stack::Estimator>(model_, cluster_, stack_, s.precision, s.sequence);
        const Estimate e = estimator->estimate(s, imbalance);
        found->second = {e.seconds, e.peak_bytes};
      }
      sampled.seconds.push_back(found->second.first);
      sampled.peak_bytes.push_back(found->second.second);
    }
    return sampled;
  }

  std::vector<cluster::Outside> outside_measured(const std::vector<Strategy>& strategies,
                                                 double imbalance) const override {
    const auto watch = std::make_shared<cluster::Watch>();
    const cluster::Cluster watched = cluster::watched(cluster_, watch);
    for (const Strategy& s : strategies)
      stack::Estimator(model_, watched, stack_, s.precision, s.sequence).estimate(s, imbalance);
    return watch->outside();
  }

 private:
  const model::Model& model_;
  const cluster::Cluster& cluster_;
  const stack::Stack& stack_;
  stack::Estimator estimator_;
};

}  // namespace

bool has_exact_costs(const cluster::Cluster& cluster, const stack::Stack& stack) {
  return cluster.kind != "gpu" && stack.name == "piper";
}

std::unique_ptr<Pricer> make_pricer(const model::Model& model, const cluster::Cluster& cluster,
                                    const stack::Stack& stack, strategy::Precision precision,
                                    int64_t sequence) {
  if (has_exact_costs(cluster, stack))
    return std::make_unique<ExactPricer>(model, cluster, precision, sequence);
  return std::make_unique<StackPricer>(model, cluster, stack, precision, sequence);
}

std::unique_ptr<Pricer> make_pricer_of(const Strategy& s, const model::Model& model,
                                       const cluster::Cluster& cluster, const stack::Stack& stack) {
  if (strategy::not_runnable(s).empty())
    return make_pricer(model, cluster, stack, s.precision, s.sequence);
  return std::make_unique<StackPricer>(model, cluster, stack, s.precision, s.sequence);
}

}  // namespace piper::plan
