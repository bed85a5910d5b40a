// The estimator's answers to a search before it prices a strategy: what nothing of a kind goes
// below, and what each stage and layer takes.
#include <piper/stack/sums.h>

#include <algorithm>

namespace piper::stack {

using strategy::Strategy;

Estimator::Bound Estimator::bound(const Strategy& s, double imbalance) {
  const Prices& prices = this->prices(s, imbalance);
  double compute = prices.ends.head_forward + prices.ends.head_backward +
                   prices.ends.embedding_forward + prices.ends.embedding_backward;
  double others = 0, host = 0;
  for (size_t type = 0; type < prices.types.size(); ++type) {
    const LayerPrice& p = prices.types[type];
    const auto count = static_cast<double>(layers_of_type_[type]);
    compute += count * (p.forward.compute + p.backward.compute);
    others +=
        count * (p.forward.tensor + p.backward.tensor + p.forward.context + p.backward.context);
    host += count * p.host_seconds;
  }
  const double serial = stack_.serial_seconds_per_layer * static_cast<double>(model_.num_layers());
  const double work = std::max(compute / efficiency_ + serial, host) + others;
  return {static_cast<double>(s.num_micro_batches) * work / static_cast<double>(s.mesh.pp)};
}

Estimator::Bound Estimator::bound_of_split(const Strategy& s, double imbalance) {
  double busiest = 0;
  for (const StageLoad& stage : stage_loads(s, imbalance))
    busiest = std::max(busiest, stage.seconds);
  return {static_cast<double>(s.num_micro_batches) * busiest};
}

Estimator::Bound Estimator::bound_of_schedule(const Strategy& s, double imbalance) {
  double sum = 0;
  for (const StageSums& stage : stage_sums(s, prices(s, imbalance)))
    sum += busy_of(s, stage).shown();
  return {static_cast<double>(s.num_micro_batches) * sum / static_cast<double>(s.mesh.pp)};
}

std::vector<Estimator::StageLoad> Estimator::stage_loads(const Strategy& s, double imbalance) {
  const std::vector<StageSums>& sums = stage_sums(s, prices(s, imbalance));
  std::vector<StageLoad> loads;
  for (size_t i = 0; i < sums.size(); ++i) {
    Busy b = busy_of(s, sums[i]);
    if (b.hideable > 0) b.hideable *= facts(s)[i].paired;
    loads.push_back({stage_bytes(s, sums[i], static_cast<int64_t>(i)).total(), b.shown()});
  }
  return loads;
}

cost::PassSeconds Estimator::pass_seconds(const Strategy& s, double imbalance) {
  const Prices& prices = this->prices(s, imbalance);
  cost::PassSeconds pass;
  std::vector<double> of_type;
  for (const LayerPrice& p : prices.types) {
    const PassPrice again = p.again(s.recompute, stack_);
    of_type.push_back((p.forward.compute + p.backward.compute + again.compute) / efficiency_ +
                      communication(p.forward) + communication(p.backward) + communication(again));
  }
  for (const size_t type : type_) pass.layers.push_back(of_type[type]);
  const EndPrice& e = prices.ends;
  pass.embedding = (e.embedding_forward + e.embedding_backward) / efficiency_;
  pass.head = (e.head_forward + e.head_backward) / efficiency_;
  return pass;
}

}  // namespace piper::stack
