#include <piper/balance/copies.h>
#include <piper/balance/copy_slots.h>
#include <piper/base/error.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

namespace piper::balance {
namespace {

// Ranks by what they have, of equals in their order.
class RanksByUnits {
 public:
  explicit RanksByUnits(const std::vector<int64_t>& units) : units_(units), order_(units.size()) {
    std::iota(order_.begin(), order_.end(), size_t{0});
    std::ranges::sort(order_, [&](size_t a, size_t b) { return is_before(a, b); });
  }

  const std::vector<size_t>& ascending() const { return order_; }
  int64_t units(size_t rank) const { return units_[rank]; }
  void add(size_t rank, int64_t more) {
    units_[rank] += more;
    auto at = std::ranges::find(order_, rank);
    for (; at + 1 != order_.end() && is_before(at[1], rank); ++at) std::iter_swap(at, at + 1);
  }
  void leave_out(size_t rank) { std::erase(order_, rank); }

 private:
  bool is_before(size_t a, size_t b) const {
    return units_[a] != units_[b] ? units_[a] < units_[b] : a < b;
  }

  std::vector<int64_t> units_;
  std::vector<size_t> order_;
};

// A copy makes the squares grow least on the rank that has least.
void fill_by_growth(CopySlots& slots) {
  while (slots.num_free() > 0) {
    RanksByUnits ranks(slots.rank_units());
    for (size_t r = 0; r < slots.num_ranks(); ++r)
      if (!slots.has_room(r)) ranks.leave_out(r);
    size_t expert = 0, rank = 0;
    int64_t least = 0;
    bool is_found = false;
    for (size_t e = 0; e < slots.num_experts(); ++e) {
      const auto to =
          std::ranges::find_if(ranks.ascending(), [&](size_t r) { return !slots.holds(r, e); });
      if (to == ranks.ascending().end()) continue;
      const int64_t growth = slots.growth(e, *to);
      if (is_found && growth >= least) continue;
      least = growth;
      expert = e, rank = *to;
      is_found = true;
    }
    PIPER_CHECK(is_found, "more slots than experts of other ranks");
    slots.add(expert, rank);
  }
}

// The exchanges of copies that are tried while the busiest rank has rows to lose.
class Exchanges {
 public:
  explicit Exchanges(CopySlots& slots) : slots_(slots), by_units_(slots.num_ranks()) {}

  // Takes the best one. False: none makes the ranks more even.
  bool take_best() {
    best_ = {.after = slots_.unevenness()};
    std::iota(by_units_.begin(), by_units_.end(), size_t{0});
    std::ranges::stable_sort(by_units_, std::greater(),
                             [&](size_t rank) { return slots_.rank_units()[rank]; });
    const size_t busiest = by_units_.front();
    for (size_t e = 0; e < slots_.num_experts(); ++e) {
      if (slots_.holds(busiest, e)) {
        for (size_t rank = 0; rank < slots_.num_ranks(); ++rank) try_replacing(rank, e);
      } else {
        try_replacing(busiest, e);
      }
    }
    for (size_t rank = 0; rank < slots_.num_ranks(); ++rank)
      if (rank != busiest) try_exchanging(busiest, rank);
    return take();
  }

 private:
  struct Exchange {
    Unevenness after;
    bool is_found = false, is_swap = false;
    size_t rank = 0, slot = 0, expert = 0, other_rank = 0, other_slot = 0;
  };

  void keep_if_better(const Exchange& exchange) {
    if (exchange.after < best_.after) best_ = exchange;
  }

  void try_replacing(size_t rank, size_t expert) {
    if (slots_.holds(rank, expert)) return;
    for (size_t slot = 0; slot < slots_.slots_per_rank(); ++slot)
      keep_if_better({.after = slots_.if_replaced(rank, slot, expert, by_units_),
                      .is_found = true,
                      .rank = rank,
                      .slot = slot,
                      .expert = expert});
  }

  void try_exchanging(size_t rank, size_t other) {
    for (size_t slot = 0; slot < slots_.slots_per_rank(); ++slot) {
      if (slots_.holds(other, copy(rank, slot))) continue;
      for (size_t other_slot = 0; other_slot < slots_.slots_per_rank(); ++other_slot)
        if (!slots_.holds(rank, copy(other, other_slot)))
          keep_if_better({.after = slots_.if_exchanged(rank, slot, other, other_slot, by_units_),
                          .is_found = true,
                          .is_swap = true,
                          .rank = rank,
                          .slot = slot,
                          .expert = copy(other, other_slot),
                          .other_rank = other,
                          .other_slot = other_slot});
    }
  }

  bool take() {
    if (!best_.is_found) return false;
    const size_t given = copy(best_.rank, best_.slot);
    slots_.replace(best_.rank, best_.slot, best_.expert);
    if (best_.is_swap) slots_.replace(best_.other_rank, best_.other_slot, given);
    return true;
  }

  size_t copy(size_t rank, size_t slot) const {
    return static_cast<size_t>(slots_.copies(rank)[slot]);
  }

  CopySlots& slots_;
  std::vector<size_t> by_units_;
  Exchange best_;
};

void exchange_copies(CopySlots& slots) {
  constexpr int kMost = 64;
  Exchanges exchanges(slots);
  for (int i = 0; i < kMost && exchanges.take_best(); ++i) {
  }
}

// Copies with which no rank has more than `limit` units, as long as slots allow.
class WithinLimit {
 public:
  WithinLimit(const CopySlots& empty, int64_t limit)
      : empty_(empty),
        limit_(limit),
        num_free_(empty.num_free()),
        num_copies_(empty.num_experts()),
        homes_(empty.num_ranks()),
        home_units_(empty.rank_units()) {
    for (size_t e = 0; e < empty.num_experts(); ++e) homes_[empty.home(e)].push_back(e);
  }

  std::optional<CopySlots> find() {
    for (size_t rank = 0; rank < homes_.size(); ++rank)
      if (!lighten(rank, limit_)) return std::nullopt;
    for (;;) {  // every turn uses a slot or is the last
      const Placing placing = place();
      if (placing.is_stuck) return std::nullopt;
      if (placing.too_many == 0) {
        CopySlots slots = empty_;
        for (const auto& [expert, rank] : placing.placed) slots.add(expert, rank);
        return slots;
      }
      if (!lighten(placing.rank, home_units_[placing.rank] - placing.too_many)) return std::nullopt;
    }
  }

 private:
  struct Placing {
    std::vector<std::pair<size_t, size_t>> placed;  // expert and rank
    bool is_stuck = false;                          // no rank may hold the next copy
    size_t rank = 0;                                // the first one above the limit ...
    int64_t too_many = 0;                           // ... and by how much; 0: none is
  };

  int64_t of_each(size_t expert, int64_t more = 0) const {
    return empty_.units(expert) / (num_copies_[expert] + 1 + more);
  }

  // Gives copies to the experts whose home is there, until they bring no more than `most`.
  bool lighten(size_t rank, int64_t most) {
    while (home_units_[rank] > most) {
      int64_t gain = 0;
      size_t expert = 0;
      for (const size_t e : homes_[rank]) {
        if (num_copies_[e] + 1 >= std::ssize(homes_)) continue;
        const int64_t less = of_each(e) - of_each(e, 1);
        if (less > gain) gain = less, expert = e;
      }
      if (gain == 0 || num_free_ == 0) return false;
      home_units_[rank] -= gain;
      ++num_copies_[expert];
      --num_free_;
    }
    return true;
  }

  // The heaviest copy first, to the rank that has least of those with a free slot.
  Placing place() const {
    std::vector<size_t> order;
    for (size_t e = 0; e < num_copies_.size(); ++e)
      if (num_copies_[e] > 0) order.push_back(e);
    std::ranges::stable_sort(order, std::greater(), [&](size_t e) { return of_each(e); });
    Placing placing;
    RanksByUnits ranks(home_units_);
    std::vector<size_t> num_taken(home_units_.size());
    for (const size_t e : order) {
      const size_t first = placing.placed.size();
      const auto holds = [&](size_t rank) {
        return rank == empty_.home(e) ||
               std::find(placing.placed.begin() + static_cast<ptrdiff_t>(first),
                         placing.placed.end(), std::pair(e, rank)) != placing.placed.end();
      };
      for (int64_t i = 0; i < num_copies_[e]; ++i) {
        const auto least = std::ranges::find_if_not(ranks.ascending(), holds);
        placing.is_stuck = least == ranks.ascending().end();
        if (placing.is_stuck) return placing;
        placing.rank = *least;
        placing.too_many = std::max<int64_t>(0, ranks.units(placing.rank) + of_each(e) - limit_);
        if (placing.too_many > 0) return placing;
        ranks.add(placing.rank, of_each(e));
        if (++num_taken[placing.rank] == empty_.slots_per_rank()) ranks.leave_out(placing.rank);
        placing.placed.emplace_back(e, placing.rank);
      }
    }
    return placing;
  }

  const CopySlots& empty_;
  int64_t limit_;
  size_t num_free_;
  std::vector<int64_t> num_copies_;         // by expert
  std::vector<std::vector<size_t>> homes_;  // by rank
  std::vector<int64_t> home_units_;         // by rank, of the experts whose home it is
};

// The placement within the least limit that has one, by halving from what `known` reaches; `known`
// where that is as even.
CopySlots share_within_limits(const CopySlots& empty, const CopySlots& known) {
  constexpr int kLimits = 8;
  std::optional<CopySlots> best;
  const std::vector<int64_t>& units = empty.rank_units();
  int64_t low = std::accumulate(units.begin(), units.end(), int64_t{0}) / std::ssize(units);
  int64_t high = known.unevenness().busiest;
  for (int i = 0; i < kLimits && low < high; ++i) {
    const int64_t limit = low + (high - low) / 2;
    std::optional<CopySlots> found = WithinLimit(empty, limit).find();
    if (found) {
      high = found->unevenness().busiest;
      best = std::move(found);
    } else {
      low = limit + 1;
    }
  }
  if (best) fill_by_growth(*best);
  return best && best->unevenness() < known.unevenness() ? *best : known;
}

}  // namespace

ExpertPlacement share_hot(const ExpertPlacement& homes, const Loads& loads,
                          int64_t slots_per_rank) {
  CopySlots slots(homes, loads, slots_per_rank);
  fill_by_growth(slots);
  return slots.placement();
}

ExpertPlacement share_evenly(const ExpertPlacement& homes, const Loads& loads,
                             int64_t slots_per_rank) {
  const CopySlots empty(homes, loads, slots_per_rank);
  CopySlots by_growth = empty;
  fill_by_growth(by_growth);
  CopySlots slots = share_within_limits(empty, by_growth);
  exchange_copies(slots);
  ExpertPlacement even = slots.placement(), hot = by_growth.placement();
  // Units are shared to fractions, rows are not.
  return busiest_load(even, loads) < busiest_load(hot, loads) ? even : hot;
}

ExpertPlacement shadow(const ExpertPlacement& homes, const Loads& loads, int64_t slots_per_rank) {
  CopySlots slots(homes, loads, slots_per_rank);
  std::vector<size_t> hottest(loads.size());
  std::iota(hottest.begin(), hottest.end(), size_t{0});
  std::ranges::stable_sort(hottest, std::greater(), [&](size_t e) { return loads[e]; });
  for (const size_t expert : hottest)
    for (size_t rank = 0; rank < slots.num_ranks(); ++rank)
      if (slots.has_room(rank) && !slots.holds(rank, expert)) slots.add(expert, rank);
  return slots.placement();
}

int64_t slots_for_copies(const ExpertPlacement& placement) {
  return (placement.num_places() - placement.num_experts()) / placement.num_ranks();
}

}  // namespace piper::balance
