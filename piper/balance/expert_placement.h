// Which rank of the expert group holds which experts of one layer, and in which order.
//
//   plain, 8 experts on 4 ranks:   0 1 | 2 3 | 4 5 | 6 7
//   after a swap of 1 and 6:       0 6 | 2 3 | 4 5 | 1 7
//
// The place of an expert is its index in that line, counted over all ranks: rows are dispatched in
// the order of places, and a rank stores its experts in that order. An expert's id stays what it
// was when the run began: it is the router's row, the name in a checkpoint, the entry of a load.
//
// An expert may have several copies, each on another rank. One is its home, which is trained and
// saved; the others are sent its weights before a step and bring their gradients back to it, so
// they may be of other experts in every step at no cost (schedule/expert_copies.h). Home is the
// copy that stands nearest the front of its rank's experts, of equals that on the first rank:
//
//   two copies more on each rank:  0 1 2 7 | 2 3 4 7 | 4 5 6 7 | 6 7 0 2
//
// What moves homes asks for a placement with one copy of each (has_one_copy(), homes()).
#pragma once

#include <piper/base/json_fwd.h>

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace piper::balance {

// A value, immutable; const access is thread-safe.
class ExpertPlacement {
 public:
  ExpertPlacement() = default;
  // held[r]: the experts of rank r of the group, in its order. `source` names it in errors. Throws
  // InvalidInput, one line a problem: an expert outside [0, num_experts), one that no rank holds,
  // one that a rank holds twice.
  ExpertPlacement(std::vector<std::vector<int32_t>> held, int64_t num_experts,
                  const std::string& source = "placement");
  // Expert e on rank e / (num_experts / num_ranks). Requires that num_ranks divides (PIPER_CHECK).
  // With `redundant` slots over all ranks, which divide among them and are at most those that make
  // every rank hold every expert, rank r's are copies of the experts of ranks r + 1, r + 2, ...
  static ExpertPlacement plain(int64_t num_experts, int64_t num_ranks, int64_t redundant = 0);

  int64_t num_experts() const { return static_cast<int64_t>(first_place_.size()); }
  int64_t num_ranks() const { return static_cast<int64_t>(held_.size()); }
  const std::vector<int32_t>& held(int64_t rank) const { return held_[static_cast<size_t>(rank)]; }
  const std::vector<std::vector<int32_t>>& held() const { return held_; }

  bool is_plain() const;
  bool has_one_copy() const { return has_one_copy_; }
  // Every rank holds equally many.
  bool is_even() const;
  // And as many homes, which are the first of its experts: what the executor requires.
  bool has_homes_first() const;

  // These return the rank and the place of the expert's home.
  int64_t rank_of(int64_t expert) const { return rank_of_[static_cast<size_t>(expert)]; }
  int64_t place_of(int64_t expert) const { return first_place_[static_cast<size_t>(expert)]; }
  // Returns the places of all its copies, ascending.
  std::span<const int32_t> copies_of(int64_t expert) const;
  int64_t num_places() const { return std::ssize(copies_); }
  // The homes alone, in their order; and with these copies behind every rank's. with_copies()
  // throws as the constructor does.
  ExpertPlacement homes() const;
  ExpertPlacement with_copies(const std::vector<std::vector<int32_t>>& by_rank) const;
  // Which of them the rank of this index sends an expert's rows to, one after the other: to its own
  // copy where it has one, else to all of them in turn, each such rank beginning with another.
  std::vector<int32_t> places_from(int64_t expert, int64_t rank) const;
  // By expert; requires has_one_copy().
  const std::vector<int32_t>& places() const { return first_place_; }

  // Values by expert in the order of places, and back. Require has_one_copy() and one value each.
  template <class T>
  std::vector<T> by_place(const std::vector<T>& by_expert) const {
    std::vector<T> sorted(by_expert.size());
    for (size_t e = 0; e < by_expert.size(); ++e)
      sorted[static_cast<size_t>(first_place_[e])] = by_expert[e];
    return sorted;
  }
  template <class T>
  std::vector<T> by_expert(const std::vector<T>& by_place) const {
    std::vector<T> sorted(by_place.size());
    for (size_t e = 0; e < by_place.size(); ++e)
      sorted[e] = by_place[static_cast<size_t>(first_place_[e])];
    return sorted;
  }

  // With these two exchanged; the order of all others stays. Requires one copy each.
  ExpertPlacement swapped(int64_t expert, int64_t other) const;

  bool operator==(const ExpertPlacement& other) const { return held_ == other.held_; }

 private:
  void index(int64_t num_experts);

  std::vector<std::vector<int32_t>> held_;
  std::vector<int32_t> first_place_, rank_of_;  // by expert, of its home
  std::vector<int32_t> copies_, first_copy_;    // places by expert, and where an expert's begin
  bool has_one_copy_ = true;
};

// By global layer; a layer without an entry has the plain one.
using Placements = std::map<int32_t, ExpertPlacement>;

// "0 1 | 2 3".
std::string to_text(const ExpertPlacement& placement);

// {"<layer>": [[expert, ...] by rank], ...}. from_json throws InvalidInput, all problems at once:
// what is no such document, a layer that `num_experts` (by layer) does not know, and what the
// constructor refuses.
Json to_json(const Placements& placements);
Placements placements_from_json(const Json& json, const std::map<int32_t, int64_t>& num_experts,
                                const std::string& source);

// One expert that changes its place. The ranks are equal where it only changes its order.
struct ExpertMove {
  int32_t expert = 0;
  int32_t from_rank = 0, to_rank = 0;    // of the expert group
  int32_t from_index = 0, to_index = 0;  // among the rank's experts
  bool changes_rank() const { return from_rank != to_rank; }
  bool operator==(const ExpertMove&) const = default;
};

// What turns one placement into the other, ascending by expert. Both have one copy of the same
// experts on the same number of ranks (PIPER_CHECK).
std::vector<ExpertMove> moves_between(const ExpertPlacement& from, const ExpertPlacement& to);
// Those that change the rank.
int64_t num_migrated(const std::vector<ExpertMove>& moves);

}  // namespace piper::balance
