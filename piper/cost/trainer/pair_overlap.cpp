#include <piper/cost/trainer/pair_overlap.h>

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

namespace piper::cost {
namespace {

// A collective on its way: seconds left when it is alone.
struct Flight {
  double latency = 0, transfer = 0;
  const LevelUtilization* needs = nullptr;
  double left() const { return latency + transfer; }
  bool is_under_way() const { return left() > 0; }
  bool moves() const { return latency <= 0 && transfer > 0; }
};

Flight flight_of(const CollectiveCost& travel, double part, const LevelUtilization& needs) {
  return {part * travel.moves.latency, part * travel.moves.transfer, &needs};
}
Flight exposed(const CollectiveCost& travel, double part, const LevelUtilization& needs) {
  const double all = travel.moves.total();
  return flight_of(travel, all > 0 ? part * travel.exposed() / all : 0, needs);
}

// Time of one rank, with what is on its way: of each micro-batch one collective after the other.
// They begin in the order in which they were posted, so that one that waits holds up those behind
// it.
class Turns {
 public:
  enum Which : uint8_t { kForward, kBackward, kOther, kStates, kNumFlights };

  void post(Which which, const Flight& flight) {
    if (!flight.is_under_way()) return;
    posted_.push_back({which, flight});
    ++num_posted_[which];
    begin();
  }
  void compute(double seconds) {
    while (seconds > 0 && std::ranges::any_of(flights_, &Flight::is_under_way))
      seconds -= step(seconds);
    now_ += std::max(0.0, seconds);
  }
  void wait(Which which) {
    while (flights_[which].is_under_way() || num_posted_[which] > 0)
      step(std::numeric_limits<double>::infinity());
  }
  // With as much of `seconds` of computing beside it as it hides behind; returns the rest.
  double collective(const CollectiveCost& travel, double part, const LevelUtilization& needs,
                    double seconds) {
    if (part * travel.moves.total() <= 0) return seconds;
    post(kOther, flight_of(travel, part, needs));
    const double beside = std::min(part * travel.hidden, seconds);
    compute(beside);
    wait(kOther);
    return seconds - beside;
  }
  // Joins what is on its way of them, beside everything else.
  void post_states(double seconds, const LevelUtilization& needs) {
    flights_[kStates].transfer += seconds;
    flights_[kStates].needs = &needs;
  }
  double now() const { return now_; }

 private:
  struct Posted {
    Which which;
    Flight flight;
  };
  void begin() {
    while (next_posted_ < posted_.size() && !flights_[posted_[next_posted_].which].is_under_way()) {
      const Posted& posted = posted_[next_posted_++];
      flights_[posted.which] = posted.flight;
      --num_posted_[posted.which];
    }
  }
  // Until something has arrived or begins to move, but no longer than `most`.
  double step(double most) {
    const std::array<double, kNumFlights> speed = speeds();
    double next = most;
    for (size_t i = 0; i < kNumFlights; ++i) {
      const Flight& f = flights_[i];
      if (f.is_under_way())
        next = std::min(next, f.latency > 0 ? f.latency : f.transfer / speed[i]);
    }
    for (size_t i = 0; i < kNumFlights; ++i) {
      Flight& f = flights_[i];
      double& left = f.latency > 0 ? f.latency : f.transfer;
      left = std::max(0.0, left - next * speed[i]);
      if (left < kLeast) left = 0;
    }
    now_ += next;
    begin();
    return next;
  }
  // Alone nothing needs more of a level than there is.
  std::array<double, kNumFlights> speeds() const {
    std::array<double, kNumFlights> speed;
    speed.fill(1);
    if (std::ranges::count_if(flights_, &Flight::moves) < 2) return speed;
    LevelUtilization sum;
    for (const Flight& f : flights_)
      if (f.moves())
        for (size_t l = 0; l < sum.part.size(); ++l) sum.part[l] += f.needs->part[l];
    for (size_t l = 0; l < sum.part.size(); ++l) {
      if (sum.part[l] <= 1) continue;
      for (size_t i = 0; i < kNumFlights; ++i)
        if (flights_[i].moves() && flights_[i].needs->part[l] > 0)
          speed[i] = std::min(speed[i], 1 / sum.part[l]);
    }
    return speed;
  }

  static constexpr double kLeast = 1e-15;  // seconds
  std::array<Flight, kNumFlights> flights_;
  std::vector<Posted> posted_;
  size_t next_posted_ = 0;  // the first that has not begun
  std::array<int, kNumFlights> num_posted_{};
  double now_ = 0;
};

}  // namespace

PairSeconds pair_seconds(const LayerPrice& p, const ShapeNeeds& needs, const PairCompute& compute,
                         const PairStates& states) {
  constexpr int kLayers = 3;  // the next takes as long as the last
  const BlockCompute &a = compute.attention, &f = compute.feed_forward;
  const MixtureCollectives &there = p.mixture_forward, &back = p.mixture_backward;
  Turns turns;
  // What the block's ranks sum is on its way when its turn ends.
  const auto attention = [&](Turns::Which which, const CollectiveCost& tensor, double arrives,
                             const CollectiveCost& context, double compute) {
    double left = turns.collective(tensor, arrives, needs.tensor, compute);
    left = turns.collective(context, 1, needs.context, left);
    turns.compute(left);
    turns.post(which, exposed(tensor, 1 - arrives, needs.tensor));
  };
  // Rows, and as much of the own block as computes beside them.
  const auto exchange = [&](Turns::Which which, const CollectiveCost& rows, double hidden) {
    turns.post(which, flight_of(rows, 1, rows.needs));
    turns.compute(hidden);
  };
  struct Hidden {
    double first = 0, second = 0, rest = 0;  // beside either exchange; between them
  };
  const auto hidden = [&](const CollectiveCost& first, const CollectiveCost& second,
                          double compute) {
    Hidden h{std::min(first.hidden, compute / 2), std::min(second.hidden, compute / 2)};
    h.rest = compute - h.first - h.second;
    return h;
  };
  const Hidden forward = hidden(there.dispatch, there.combine, f.forward);
  const Hidden backward =
      hidden(back.combine, back.dispatch, std::max(0.0, f.backward - f.backward_weights));
  const auto gather_tokens = [&](Turns::Which which, const MixtureCollectives& m) {
    turns.post(which, exposed(m.tokens, 1, needs.expert_tensor));
  };
  // A collective that the next block needs at once.
  const auto wait_for = [&](const CollectiveCost& travel, double part,
                            const LevelUtilization& shape_needs) {
    turns.post(Turns::kOther, exposed(travel, part, shape_needs));
    turns.wait(Turns::kOther);
  };
  // The experts' block, whose rows come together before. Its sums are on their way behind, where no
  // shared experts compute beside the exchange that follows.
  const auto experts = [&](Turns::Which which, const MixtureCollectives& m, double compute) {
    wait_for(m.expert_tensor, m.gathered_first, needs.expert_tensor);
    turns.compute(compute);
    if (p.has_shared_beside)
      wait_for(m.expert_tensor, 1 - m.gathered_first, needs.expert_tensor);
    else
      turns.post(which, exposed(m.expert_tensor, 1 - m.gathered_first, needs.expert_tensor));
  };
  // One after the other: no turn ends in it.
  const auto run_again = [&] {
    if (!compute.travels_again)
      return turns.compute(compute.attention_again + compute.feed_forward_again);
    const Hidden again = hidden(there.dispatch, there.combine, compute.feed_forward_again);
    wait_for(p.tensor_forward, p.arrives_forward, needs.tensor);
    wait_for(p.context_forward, 1, needs.context);
    turns.compute(compute.attention_again);
    wait_for(p.tensor_forward, 1 - p.arrives_forward, needs.tensor);
    wait_for(there.tokens, 1, needs.expert_tensor);
    exchange(Turns::kOther, there.dispatch, again.first);
    turns.wait(Turns::kOther);
    experts(Turns::kOther, there, again.rest);
    exchange(Turns::kOther, there.combine, again.second);
    turns.wait(Turns::kOther);
    wait_for(there.output, 1, needs.tensor);
  };
  const bool has_states = states.weights + states.gradients > 0;
  const auto wait_for_states = [&](double seconds) {
    turns.post(Turns::kOther, {0, (1 - states.hidden) * seconds, &states.needs});
    turns.wait(Turns::kOther);
  };
  const auto gather_weights = [&] {
    wait_for_states(states.weights);
    turns.post_states(states.hidden * states.weights, states.needs);
  };
  const auto begin_backward = [&] {
    gather_weights();
    turns.post_states(states.hidden * states.gradients, states.needs);
    run_again();
    gather_tokens(Turns::kBackward, back);
    exchange(Turns::kBackward, back.combine, backward.first);
  };
  begin_backward();
  double last_began = 0, layer_seconds = 0;
  for (int layer = 0; layer < kLayers; ++layer) {
    layer_seconds = turns.now() - std::exchange(last_began, turns.now());
    if (layer > 0 && !has_states) turns.compute(a.backward_weights);
    turns.wait(Turns::kForward);
    gather_weights();
    attention(Turns::kForward, p.tensor_forward, p.arrives_forward, p.context_forward, a.forward);
    gather_tokens(Turns::kForward, there);
    exchange(Turns::kForward, there.dispatch, forward.first);
    turns.wait(Turns::kBackward);
    experts(Turns::kBackward, back, backward.rest);
    exchange(Turns::kBackward, back.dispatch, backward.second);
    turns.post(Turns::kBackward, exposed(back.output, 1, needs.tensor));
    turns.compute(f.backward_weights);
    turns.wait(Turns::kForward);
    experts(Turns::kForward, there, forward.rest);
    exchange(Turns::kForward, there.combine, forward.second);
    turns.post(Turns::kForward, exposed(there.output, 1, needs.tensor));
    turns.wait(Turns::kBackward);
    attention(Turns::kBackward, p.tensor_backward, p.arrives_backward, p.context_backward,
              a.backward - a.backward_weights);
    if (has_states) {  // gradients are whole before they travel
      turns.compute(a.backward_weights);
      turns.wait(Turns::kStates);
      wait_for_states(states.gradients);
    }
    if (layer + 1 < kLayers) begin_backward();
  }
  if (!has_states) turns.compute(a.backward_weights);
  turns.wait(Turns::kBackward);
  turns.wait(Turns::kForward);
  return {.layer = layer_seconds, .ends = turns.now() - kLayers * layer_seconds};
}

PairCompute pair_compute(const LayerPrice& p, strategy::Recompute recompute,
                         const TrainerProfile& trainer, const ComputeScale& scale) {
  const auto block = [&](const BlockCompute& b) -> BlockCompute {
    return {.forward = b.forward * scale.forward,
            .backward = b.backward * scale.backward,
            .backward_weights = b.backward_weights * scale.weights};
  };
  PairCompute compute{.attention = block(p.attention), .feed_forward = block(p.feed_forward)};
  if (recompute == strategy::Recompute::kFull) {
    compute.attention_again = p.attention.forward * scale.backward;
    compute.feed_forward_again = p.feed_forward.forward * scale.backward;
    compute.travels_again = true;
  } else if (recompute != strategy::Recompute::kNone) {
    compute.attention_again = p.again(recompute, trainer).compute * scale.backward;
  }
  return compute;
}

PairSaving saved_in_pairs(const LayerPrice& p, const ShapeNeeds& needs,
                          const PairCompute& compute) {
  if (p.mixture_forward.dispatch.moves.total() <= 0) return {};
  const BlockCompute &a = compute.attention, &f = compute.feed_forward;
  const auto travels = [](const CollectiveCost& tensor, const CollectiveCost& context,
                          const MixtureCollectives& m) {
    return tensor.exposed() + context.exposed() + m.tokens.exposed() + m.exposed() +
           m.expert_tensor.exposed() + m.output.exposed();
  };
  const double there = travels(p.tensor_forward, p.context_forward, p.mixture_forward);
  const double alone = a.forward + a.backward + f.forward + f.backward + there +
                       travels(p.tensor_backward, p.context_backward, p.mixture_backward) +
                       compute.attention_again + compute.feed_forward_again +
                       (compute.travels_again ? there : 0);
  const PairSeconds pair = pair_seconds(p, needs, compute, {});
  return {.layer = alone - pair.layer, .ends = pair.ends};
}

}  // namespace piper::cost
