#include <piper/balance/pair_search.h>

#include <algorithm>

namespace piper::balance {
namespace {

// The search's state: who holds what, the sums, and where every expert began.
class PairSearch {
 public:
  PairSearch(const ExpertPlacement& start, const Loads& loads, const SearchLimits& limits)
      : start_(start),
        loads_(loads),
        limits_(limits),
        held_(start.held()),
        sums_(rank_loads(start, loads)) {}

  Rebalanced run() {
    int64_t steps = 0;
    while (imbalance(sums_) > limits_.threshold) {
      const Step best = find();
      if (best.value <= 0) break;
      take(best);
      ++steps;
    }
    return {ExpertPlacement(std::move(held_), start_.num_experts()), steps};
  }

 private:
  // Index `out` of the busiest rank's experts goes to rank `other`; index `in` comes back (-1:
  // none).
  struct Step {
    double value = 0;  // rows that the larger of the two loads falls by, over the cost
    size_t busiest = 0, other = 0;
    size_t out = 0;
    int64_t in = -1;
    int64_t migrations = 0;
  };

  int64_t load(int32_t expert) const { return loads_[static_cast<size_t>(expert)]; }
  size_t node(size_t rank) const {
    return limits_.ranks_per_node > 0 ? rank / static_cast<size_t>(limits_.ranks_per_node) : 0;
  }
  // How many more experts are away from home than before.
  int64_t more_migrations(int32_t expert, size_t from, size_t to) const {
    const auto home = static_cast<size_t>(start_.rank_of(expert));
    return (to != home ? 1 : 0) - (from != home ? 1 : 0);
  }

  Step find() const {
    const auto busiest = static_cast<size_t>(std::ranges::max_element(sums_) - sums_.begin());
    Step best;
    for (size_t other = 0; other < held_.size(); ++other)
      if (other != busiest && sums_[other] < sums_[busiest]) look_at(busiest, other, best);
    return best;
  }

  void look_at(size_t busiest, size_t other, Step& best) const {
    const double cost = node(busiest) == node(other) ? 1 : limits_.cost_between_nodes;
    const bool has_room = std::ssize(held_[other]) < limits_.max_experts_per_rank;
    const auto consider = [&](size_t out, int64_t in, int64_t moved, double num_moves) {
      const int64_t after = std::max(sums_[busiest] - moved, sums_[other] + moved);
      const double value = static_cast<double>(sums_[busiest] - after) / (cost * num_moves);
      if (value <= best.value) return;
      const int32_t leaves = held_[busiest][out];
      int64_t more = more_migrations(leaves, busiest, other);
      if (in >= 0) more += more_migrations(held_[other][static_cast<size_t>(in)], other, busiest);
      if (migrated_ + more > limits_.max_migrated) return;
      best = {value, busiest, other, out, in, more};
    };
    for (size_t out = 0; out < held_[busiest].size(); ++out) {
      const int64_t leaving = load(held_[busiest][out]);
      if (has_room) consider(out, -1, leaving, 1);
      for (size_t in = 0; in < held_[other].size(); ++in)
        consider(out, static_cast<int64_t>(in), leaving - load(held_[other][in]), 2);
    }
  }

  void take(const Step& step) {
    std::vector<int32_t>& from = held_[step.busiest];
    std::vector<int32_t>& to = held_[step.other];
    int64_t moved = load(from[step.out]);
    if (step.in >= 0) {
      moved -= load(to[static_cast<size_t>(step.in)]);
      std::swap(from[step.out], to[static_cast<size_t>(step.in)]);
    } else {
      to.push_back(from[step.out]);
      from.erase(from.begin() + static_cast<std::ptrdiff_t>(step.out));
    }
    sums_[step.busiest] -= moved;
    sums_[step.other] += moved;
    migrated_ += step.migrations;
  }

  const ExpertPlacement& start_;
  const Loads& loads_;
  const SearchLimits& limits_;
  std::vector<std::vector<int32_t>> held_;
  std::vector<int64_t> sums_;
  int64_t migrated_ = 0;
};

}  // namespace

Rebalanced pair_search(const ExpertPlacement& start, const Loads& loads,
                       const SearchLimits& limits) {
  return PairSearch(start, loads, limits).run();
}

}  // namespace piper::balance
