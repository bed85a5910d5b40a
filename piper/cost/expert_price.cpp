#include <piper/cost/activation.h>
#include <piper/cost/exchange_time.h>
#include <piper/cost/expert_price.h>
#include <piper/cost/layer_cost.h>
#include <piper/cost/rank_parameters.h>
#include <piper/cost/segment_time.h>
#include <piper/strategy/rank_layout.h>
#include <piper/strategy/state_bytes.h>

#include <algorithm>

namespace piper::cost {
namespace {

using graph::Phase;
using schedule::Segment;
using schedule::SegmentKind;

// Seconds of a rank's experts, forward and backward, with `factor` times the balanced rows.
double experts_seconds(const model::Model& model, const strategy::Strategy& s,
                       const cluster::Cluster& cluster, int32_t layer, int64_t factor) {
  SegmentWork work = balanced_work(model, layer, s.micro_batch_sequences, s.sequence, s.mesh.ep,
                                   element_bytes(s.precision), s.capacity, work_division(s));
  work.received_rows *= factor;
  work.largest_expert_rows *= factor;
  const Segment experts{SegmentKind::kExperts, layer};
  const auto seconds = [&](Phase phase) {
    return segment_seconds(model, experts, phase, work, cluster, s.precision);
  };
  const bool again = traits(s.recompute).drops_experts;
  return seconds(Phase::kForward) * (again ? 2 : 1) + seconds(Phase::kBackward);
}

}  // namespace

int64_t copies_of_states(const strategy::Strategy& strategy) {
  return strategy.zero > 0 ? 1 : strategy.mesh.edp();
}

std::map<int32_t, balance::ExpertPrice> expert_bytes(const model::Model& model,
                                                     strategy::Precision precision) {
  std::map<int32_t, balance::ExpertPrice> prices;
  for (int32_t layer = 0; layer < std::ssize(model.layers); ++layer)
    if (model.layers[static_cast<size_t>(layer)].feed_forward.is_moe())
      prices[layer].bytes = moved_expert_bytes(model, layer, precision);
  return prices;
}

std::map<int32_t, balance::ExpertPrice> expert_prices(const model::Model& model,
                                                      const strategy::Strategy& strategy,
                                                      const cluster::Cluster& cluster) {
  compute_of(cluster, strategy.precision);
  std::map<int32_t, balance::ExpertPrice> prices = expert_bytes(model, strategy.precision);
  const std::vector<Rank> group =
      strategy::RankLayout(strategy).group(strategy::Axis::kExpert, Rank(0));
  for (auto& [layer, price] : prices) {
    const SegmentWork work = balanced_work(
        model, layer, strategy.micro_batch_sequences, strategy.sequence, strategy.mesh.ep,
        element_bytes(strategy.precision), strategy.capacity, work_division(strategy));
    const double more = experts_seconds(model, strategy, cluster, layer, 2) -
                        experts_seconds(model, strategy, cluster, layer, 1);
    price.seconds_per_row = more / static_cast<double>(std::max<int64_t>(1, work.received_rows)) /
                            static_cast<double>(strategy.mesh.edp());
    const double bytes =
        static_cast<double>(price.bytes) * static_cast<double>(copies_of_states(strategy)) /
        static_cast<double>(strategy.mesh.edp()) / static_cast<double>(strategy.mesh.etp);
    const double parameters = bytes / static_cast<double>(state_bytes(strategy.precision).moved());
    price.seconds_per_expert =
        update_seconds(SegmentKind::kTakeExpert, parameters, cluster, strategy.precision) +
        update_seconds(SegmentKind::kPutExpert, parameters, cluster, strategy.precision);
    if (group.size() > 1)
      price.seconds_per_expert +=
          point_to_point_seconds(cluster, group[0].value, group[1].value, bytes);
  }
  return prices;
}

}  // namespace piper::cost
