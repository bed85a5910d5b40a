#include <piper/cost/trainer/state_overlap.h>

#include <algorithm>

namespace piper::cost {

Together together(const LevelNeeds& collective, const LevelNeeds& queue) {
  Together speed;
  for (size_t l = 0; l < collective.part.size(); ++l) {
    const double sum = collective.part[l] + queue.part[l];
    if (sum <= 1) continue;
    if (collective.part[l] > 0) speed.collective = std::min(speed.collective, 1 / sum);
    if (queue.part[l] > 0) speed.queue = std::min(speed.queue, 1 / sum);
  }
  return speed;
}

Beside::Beside(const ShapeNeeds& needs, const LevelNeeds& queue)
    : needs_(queue),
      tensor_(together(needs.tensor, queue)),
      context_(together(needs.context, queue)),
      expert_tensor_(together(needs.expert_tensor, queue)) {}

void Beside::compute(double seconds) {
  now_ += seconds;
  queue_ = std::max(0.0, queue_ - seconds);
}

void Beside::wait(double left) {
  const double seconds = std::max(0.0, queue_ - left);
  now_ += seconds;
  queue_ -= seconds;
}

void Beside::collective(const Travel& travel, const Together& speed) {
  const double all = travel.moves.total();
  if (all <= 0) return;
  const double shown = travel.exposed() / all;  // what hides runs beside computing
  compute(shown * travel.moves.latency);
  double seconds = shown * travel.moves.transfer;
  const double both = std::min(seconds / speed.collective, queue_ / speed.queue);
  now_ += both;
  seconds -= both * speed.collective;
  queue_ = std::max(0.0, queue_ - both * speed.queue);
  compute(std::max(0.0, seconds));
}

void Beside::exchange(const Travel& travel) {
  collective(travel, queue_ > 0 ? together(travel.needs, needs_) : Together{});
}

void Beside::forward(const LayerPrice& p, double attention, double feed_forward) {
  collective(p.tensor_forward, tensor_);
  collective(p.context_forward, context_);
  compute(attention);
  exchange(p.dispatch);
  collective(p.expert_tensor, expert_tensor_);
  compute(feed_forward);
  exchange(p.combine);
}

void Beside::backward(const LayerPrice& p, double attention, double feed_forward) {
  exchange(p.combine);
  collective(p.expert_tensor, expert_tensor_);
  compute(feed_forward);
  exchange(p.dispatch);
  collective(p.tensor_backward, tensor_);
  collective(p.context_backward, context_);
  compute(attention);
}

void Beside::exchange_beside(const Travel& travel, double seconds) {
  const double before = now_;
  exchange(travel);
  compute(std::max(0.0, seconds - (now_ - before)));
}

void Beside::pair(const LayerPrice& p, const PairCompute& seconds) {
  collective(p.tensor_forward, tensor_);
  collective(p.context_forward, context_);
  exchange_beside(p.combine, seconds.attention_forward);
  collective(p.expert_tensor, expert_tensor_);
  exchange_beside(p.dispatch, seconds.feed_forward_backward);
  collective(p.expert_tensor, expert_tensor_);
  exchange_beside(p.dispatch, seconds.feed_forward_forward);
  collective(p.tensor_backward, tensor_);
  collective(p.context_backward, context_);
  exchange_beside(p.combine, seconds.attention_backward);
}

}  // namespace piper::cost
