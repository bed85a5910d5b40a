#include <piper/cost/trainer/dualpipe_overlap.h>

#include <algorithm>
#include <limits>
#include <utility>

namespace piper::cost {
namespace {

// A collective on its way: seconds left when it is alone.
struct Flight {
  double latency = 0, transfer = 0;
  const LevelNeeds* needs = nullptr;
  double left() const { return latency + transfer; }
  bool moves() const { return latency <= 0 && transfer > 0; }
};

Flight flight_of(const Travel& travel, double part, const LevelNeeds& needs) {
  return {part * travel.moves.latency, part * travel.moves.transfer, &needs};
}
Flight exposed(const Travel& travel, double part, const LevelNeeds& needs) {
  const double all = travel.moves.total();
  return flight_of(travel, all > 0 ? part * travel.exposed() / all : 0, needs);
}

// Time of one rank, with what is on its way: of each micro-batch a collective and the one that
// follows it.
class Turns {
 public:
  enum Which : uint8_t { kForward, kBackward, kOther, kNumFlights };

  void post(Which which, const Flight& flight) {
    if (flights_[which].left() > 0)
      behind_[which] = flight;
    else
      flights_[which] = flight;
  }
  void post(Which which, const Travel& rows) { post(which, exposed(rows, 1, rows.needs)); }
  void compute(double seconds) {
    while (seconds > 0) seconds -= step(seconds);
  }
  void wait(Which which) {
    while (flights_[which].left() > 0) step(std::numeric_limits<double>::infinity());
  }
  // With as much of `seconds` of computing beside it as it hides behind; returns the rest.
  double collective(const Travel& travel, double part, const LevelNeeds& needs, double seconds) {
    if (part * travel.moves.total() <= 0) return seconds;
    post(kOther, flight_of(travel, part, needs));
    const double beside = std::min(part * travel.hidden, seconds);
    compute(beside);
    wait(kOther);
    return seconds - beside;
  }
  double now() const { return now_; }

 private:
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
      if (f.left() <= 0) f = std::exchange(behind_[i], {});
    }
    now_ += next;
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
  std::array<Flight, kNumFlights> flights_, behind_;
  double now_ = 0;
};

}  // namespace

double saved_in_pairs(const LayerPrice& p, const ShapeNeeds& needs, double efficiency) {
  if (p.dispatch.moves.total() <= 0) return 0;
  constexpr int kLayers = 4;  // the last of which counts
  const BlockCompute &a = p.attention, &f = p.feed_forward;
  const auto seconds = [&](double compute) { return std::max(0.0, compute / efficiency); };
  Turns turns;
  // What the block's ranks sum is on its way when its turn ends.
  const auto attention = [&](Turns::Which which, const Travel& tensor, double arrives,
                             const Travel& context, double compute) {
    double left = turns.collective(tensor, arrives, needs.tensor, seconds(compute));
    left = turns.collective(context, 1, needs.context, left);
    turns.compute(left);
    turns.post(which, exposed(tensor, 1 - arrives, needs.tensor));
  };
  double begin = 0;
  turns.post(Turns::kBackward, p.combine);
  for (int layer = 0; layer < kLayers; ++layer) {
    begin = turns.now();
    turns.compute(seconds(a.backward_weights));
    turns.wait(Turns::kForward);
    attention(Turns::kForward, p.tensor_forward, p.arrives_forward, p.context_forward, a.forward);
    turns.post(Turns::kForward, p.dispatch);
    turns.wait(Turns::kBackward);
    turns.compute(seconds(f.backward - f.backward_weights));
    turns.post(Turns::kBackward, p.dispatch);
    turns.compute(seconds(f.backward_weights));
    turns.wait(Turns::kForward);
    turns.compute(seconds(f.forward));
    turns.post(Turns::kForward, p.combine);
    turns.wait(Turns::kBackward);
    attention(Turns::kBackward, p.tensor_backward, p.arrives_backward, p.context_backward,
              a.backward - a.backward_weights);
    turns.post(Turns::kBackward, p.combine);
  }
  // Collectives of etp are left out of both sides.
  const double alone = seconds(a.forward + a.backward + f.forward + f.backward) +
                       p.tensor_forward.exposed() + p.tensor_backward.exposed() +
                       p.context_forward.exposed() + p.context_backward.exposed() +
                       2 * (p.dispatch.exposed() + p.combine.exposed());
  return alone - (turns.now() - begin);
}

}  // namespace piper::cost
