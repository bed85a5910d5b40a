#include <piper/cost/trainer/overlap_timeline.h>

#include <algorithm>

namespace piper::cost {

SharedRates shared_rates(const LevelUtilization& collective, const LevelUtilization& queue) {
  SharedRates speed;
  for (size_t l = 0; l < collective.part.size(); ++l) {
    const double sum = collective.part[l] + queue.part[l];
    if (sum <= 1) continue;
    if (collective.part[l] > 0) speed.collective = std::min(speed.collective, 1 / sum);
    if (queue.part[l] > 0) speed.queue = std::min(speed.queue, 1 / sum);
  }
  return speed;
}

OverlapTimeline::OverlapTimeline(const ShapeNeeds& needs, const LevelUtilization& queue)
    : needs_(queue),
      tensor_(shared_rates(needs.tensor, queue)),
      context_(shared_rates(needs.context, queue)),
      expert_tensor_(shared_rates(needs.expert_tensor, queue)) {}

void OverlapTimeline::compute(double seconds) {
  now_ += seconds;
  queue_ = std::max(0.0, queue_ - seconds);
}

void OverlapTimeline::wait(double left) {
  const double seconds = std::max(0.0, queue_ - left);
  now_ += seconds;
  queue_ -= seconds;
}

void OverlapTimeline::collective(const CollectiveCost& travel, const SharedRates& speed,
                                 double part) {
  const double all = travel.moves.total();
  if (all > 0) move(travel.moves, part * travel.exposed() / all, speed);
}

void OverlapTimeline::move(const CommTime& moves, double part, const SharedRates& speed) {
  compute(part * moves.latency);
  double seconds = part * moves.transfer;
  const double both = std::min(seconds / speed.collective, queue_ / speed.queue);
  now_ += both;
  seconds -= both * speed.collective;
  queue_ = std::max(0.0, queue_ - both * speed.queue);
  compute(std::max(0.0, seconds));
}

SharedRates OverlapTimeline::speed_of(const CollectiveCost& exchange) const {
  return queue_ > 0 ? shared_rates(exchange.needs, needs_) : SharedRates{};
}

void OverlapTimeline::mixture(const MixtureCollectives& m, const CollectiveCost& there,
                              const CollectiveCost& back, double seconds) {
  // What computes beside an exchange does so while that takes its part of the links.
  const double rest = seconds - there.hidden - back.hidden;
  collective(m.tokens, expert_tensor_);
  if (there.moves.total() > 0) move(there.moves, 1, speed_of(there));
  collective(m.expert_tensor, expert_tensor_, m.gathered_first);
  compute(std::max(0.0, rest));
  collective(m.expert_tensor, expert_tensor_, 1 - m.gathered_first);
  if (back.moves.total() > 0) move(back.moves, 1, speed_of(back));
  now_ += std::min(0.0, rest);  // a trainer's stated part may hide more than there is
  collective(m.output, tensor_);
}

void OverlapTimeline::forward(const LayerPrice& p, double attention, double feed_forward) {
  collective(p.tensor_forward, tensor_, p.arrives_forward);
  collective(p.context_forward, context_);
  compute(attention);
  collective(p.tensor_forward, tensor_, 1 - p.arrives_forward);
  const MixtureCollectives& m = p.mixture_forward;
  mixture(m, m.dispatch, m.combine, feed_forward);
}

void OverlapTimeline::backward(const LayerPrice& p, double attention, double feed_forward) {
  const MixtureCollectives& m = p.mixture_backward;
  mixture(m, m.combine, m.dispatch, feed_forward);
  collective(p.tensor_backward, tensor_, p.arrives_backward);
  collective(p.context_backward, context_);
  compute(attention);
  collective(p.tensor_backward, tensor_, 1 - p.arrives_backward);
}

}  // namespace piper::cost
