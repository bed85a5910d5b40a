#include <piper/cost/trainer/pair_overlap.h>

#include <algorithm>
#include <limits>
#include <vector>

namespace piper::cost {
namespace {

// A collective on its way: seconds left when it is alone.
struct Flight {
  double latency = 0, transfer = 0;
  const LevelUtilization* needs = nullptr;
  double left() const { return latency + transfer; }
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
  enum Which : uint8_t { kForward, kBackward, kOther, kNumFlights };

  void post(Which which, const Flight& flight) {
    if (flight.left() <= 0) return;
    posted_.push_back({which, flight});
    begin();
  }
  void compute(double seconds) {
    while (seconds > 0) seconds -= step(seconds);
  }
  void wait(Which which) {
    while (flights_[which].left() > 0 || std::ranges::count(posted_, which, &Posted::which) > 0)
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
  double now() const { return now_; }

 private:
  struct Posted {
    Which which;
    Flight flight;
  };
  void begin() {
    while (!posted_.empty() && flights_[posted_.front().which].left() <= 0) {
      flights_[posted_.front().which] = posted_.front().flight;
      posted_.erase(posted_.begin());
    }
  }
  // Until something has arrived or begins to move, but no longer than `most`.
  double step(double most) {
    std::array<double, kNumFlights> speed;
    double next = most;
    for (size_t i = 0; i < kNumFlights; ++i) {
      const Flight& f = flights_[i];
      speed[i] = f.moves() ? speed_of(f) : 1;
      if (f.left() > 0) next = std::min(next, f.latency > 0 ? f.latency : f.transfer / speed[i]);
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
  double speed_of(const Flight& f) const {
    double speed = 1;
    for (size_t l = 0; l < f.needs->part.size(); ++l) {
      if (f.needs->part[l] <= 0) continue;
      double sum = 0;
      for (const Flight& other : flights_)
        if (other.moves()) sum += other.needs->part[l];
      speed = std::min(speed, sum > 1 ? 1 / sum : 1);
    }
    return speed;
  }

  static constexpr double kLeast = 1e-15;  // seconds
  std::array<Flight, kNumFlights> flights_;
  std::vector<Posted> posted_;  // that have not begun
  double now_ = 0;
};

}  // namespace

PairSaving saved_in_pairs(const LayerPrice& p, const ShapeNeeds& needs, double efficiency) {
  if (p.mixture_forward.dispatch.moves.total() <= 0) return {};
  const BlockCompute &a = p.attention, &f = p.feed_forward;
  const MixtureCollectives &there = p.mixture_forward, &back = p.mixture_backward;
  const auto seconds = [&](double compute) { return std::max(0.0, compute / efficiency); };
  Turns turns;
  // What the block's ranks sum is on its way when its turn ends.
  const auto attention = [&](Turns::Which which, const CollectiveCost& tensor, double arrives,
                             const CollectiveCost& context, double compute) {
    double left = turns.collective(tensor, arrives, needs.tensor, seconds(compute));
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
  const Hidden forward = hidden(there.dispatch, there.combine, seconds(f.forward));
  const Hidden backward =
      hidden(back.combine, back.dispatch, seconds(f.backward - f.backward_weights));
  const auto gather_tokens = [&](Turns::Which which, const MixtureCollectives& m) {
    turns.post(which, exposed(m.tokens, 1, needs.expert_tensor));
  };
  // The experts' block, whose rows come together before and whose sums are on their way behind.
  const auto experts = [&](Turns::Which which, const MixtureCollectives& m, double compute) {
    turns.post(Turns::kOther, exposed(m.expert_tensor, m.gathered_first, needs.expert_tensor));
    turns.wait(Turns::kOther);
    turns.compute(compute);
    turns.post(which, exposed(m.expert_tensor, 1 - m.gathered_first, needs.expert_tensor));
  };
  // Of a chunk of so many layers, from the first task to the last that has arrived.
  const auto chunk = [&](int num_layers) {
    turns = {};
    gather_tokens(Turns::kBackward, back);
    exchange(Turns::kBackward, back.combine, backward.first);
    for (int layer = 0; layer < num_layers; ++layer) {
      if (layer > 0) turns.compute(seconds(a.backward_weights));
      turns.wait(Turns::kForward);
      attention(Turns::kForward, p.tensor_forward, p.arrives_forward, p.context_forward, a.forward);
      gather_tokens(Turns::kForward, there);
      exchange(Turns::kForward, there.dispatch, forward.first);
      turns.wait(Turns::kBackward);
      experts(Turns::kBackward, back, backward.rest);
      exchange(Turns::kBackward, back.dispatch, backward.second);
      turns.post(Turns::kBackward, exposed(back.output, 1, needs.tensor));
      turns.compute(seconds(f.backward_weights));
      turns.wait(Turns::kForward);
      experts(Turns::kForward, there, forward.rest);
      exchange(Turns::kForward, there.combine, forward.second);
      turns.post(Turns::kForward, exposed(there.output, 1, needs.tensor));
      turns.wait(Turns::kBackward);
      attention(Turns::kBackward, p.tensor_backward, p.arrives_backward, p.context_backward,
                a.backward - a.backward_weights);
      if (layer + 1 == num_layers) break;
      gather_tokens(Turns::kBackward, back);
      exchange(Turns::kBackward, back.combine, backward.first);
    }
    turns.compute(seconds(a.backward_weights));
    turns.wait(Turns::kBackward);
    turns.wait(Turns::kForward);
    return turns.now();
  };
  const double alone = seconds(a.forward + a.backward + f.forward + f.backward) +
                       p.tensor_forward.exposed() + p.tensor_backward.exposed() +
                       p.context_forward.exposed() + p.context_backward.exposed() +
                       there.tokens.exposed() + there.exposed() + there.expert_tensor.exposed() +
                       there.output.exposed() + back.tokens.exposed() + back.exposed() +
                       back.expert_tensor.exposed() + back.output.exposed();
  constexpr int kLayers = 4;  // after them the next takes as long as the last
  const double few = chunk(kLayers), layer = chunk(kLayers + 1) - few;
  return {.layer = alone - layer, .ends = few - kLayers * layer};
}

}  // namespace piper::cost
