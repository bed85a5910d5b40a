#include <piper/balance/copies.h>
#include <piper/base/error.h>

#include <algorithm>
#include <numeric>
#include <vector>

namespace piper::balance {
namespace {

// The copies of one layer while they are chosen.
class Choosing {
 public:
  Choosing(const ExpertPlacement& homes, const Loads& loads, int64_t slots_per_rank)
      : homes_(homes.homes()),
        loads_(loads),
        num_ranks_(static_cast<size_t>(homes.num_ranks())),
        slots_(static_cast<size_t>(slots_per_rank)),
        copies_(num_ranks_),
        holders_(loads.size()),
        rank_rows_(num_ranks_) {
    PIPER_CHECK(
        homes.has_homes_first() && std::ssize(loads) == homes.num_experts() &&
            slots_per_rank <= homes.num_experts() - homes.num_experts() / homes.num_ranks(),
        "as many slots on every rank, not more than experts of others, and one load of every "
        "expert");
    for (size_t e = 0; e < loads.size(); ++e) {
      const auto home = static_cast<size_t>(homes_.rank_of(static_cast<int64_t>(e)));
      holders_[e].push_back(home);
      rank_rows_[home] += static_cast<double>(loads[e]);
    }
  }

  bool has_room(size_t rank) const { return copies_[rank].size() < slots_; }
  bool holds(size_t rank, size_t expert) const {
    return std::ranges::find(holders_[expert], rank) != holders_[expert].end();
  }

  void copy(size_t expert, size_t rank) {
    const double each = rows_of_copy(expert), less = rows_of_copy(expert, 1);
    for (const size_t holder : holders_[expert]) rank_rows_[holder] += less - each;
    rank_rows_[rank] += less;
    holders_[expert].push_back(rank);
    copies_[rank].push_back(static_cast<int32_t>(expert));
  }

  // By how much the sum of squares grows.
  double growth(size_t expert, size_t rank) const {
    const double each = rows_of_copy(expert), less = rows_of_copy(expert, 1);
    const auto squared = [](double x) { return x * x; };
    double sum = squared(rank_rows_[rank] + less) - squared(rank_rows_[rank]);
    for (const size_t holder : holders_[expert])
      sum += squared(rank_rows_[holder] + less - each) - squared(rank_rows_[holder]);
    return sum;
  }

  size_t num_ranks() const { return num_ranks_; }
  size_t num_experts() const { return loads_.size(); }
  size_t num_slots() const { return slots_ * num_ranks_; }
  ExpertPlacement take() const { return homes_.with_copies(copies_); }

 private:
  double rows_of_copy(size_t expert, size_t more = 0) const {
    return static_cast<double>(loads_[expert]) /
           static_cast<double>(holders_[expert].size() + more);
  }

  ExpertPlacement homes_;
  const Loads& loads_;
  size_t num_ranks_, slots_;
  std::vector<std::vector<int32_t>> copies_;  // by rank
  std::vector<std::vector<size_t>> holders_;  // by expert
  std::vector<double> rank_rows_;
};

}  // namespace

ExpertPlacement share_hot(const ExpertPlacement& homes, const Loads& loads,
                          int64_t slots_per_rank) {
  Choosing choosing(homes, loads, slots_per_rank);
  for (size_t slot = 0; slot < choosing.num_slots(); ++slot) {
    size_t expert = 0, rank = 0;
    double least = 0;
    bool is_found = false;
    for (size_t e = 0; e < choosing.num_experts(); ++e)
      for (size_t r = 0; r < choosing.num_ranks(); ++r) {
        if (!choosing.has_room(r) || choosing.holds(r, e)) continue;
        const double growth = choosing.growth(e, r);
        if (is_found && !(growth < least)) continue;
        least = growth;
        expert = e, rank = r;
        is_found = true;
      }
    PIPER_CHECK(is_found, "more slots than experts of other ranks");
    choosing.copy(expert, rank);
  }
  return choosing.take();
}

ExpertPlacement shadow(const ExpertPlacement& homes, const Loads& loads, int64_t slots_per_rank) {
  Choosing choosing(homes, loads, slots_per_rank);
  std::vector<size_t> hottest(loads.size());
  std::iota(hottest.begin(), hottest.end(), size_t{0});
  std::ranges::stable_sort(hottest, std::greater(), [&](size_t e) { return loads[e]; });
  for (const size_t expert : hottest)
    for (size_t rank = 0; rank < choosing.num_ranks(); ++rank)
      if (choosing.has_room(rank) && !choosing.holds(rank, expert)) choosing.copy(expert, rank);
  return choosing.take();
}

int64_t slots_for_copies(const ExpertPlacement& placement) {
  return (placement.num_places() - placement.num_experts()) / placement.num_ranks();
}

}  // namespace piper::balance
