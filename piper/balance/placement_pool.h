// SmartMoE's way (Zhai et al., USENIX ATC 2023): placements are planned apart from the training
// loop, from the loads of earlier windows, into a small pool; when it is time to choose, the pool's
// member that suits the newest load best is taken. Choosing is a look at each member, so it is
// cheap; what is new in the load, the pool knows only after it was planned from it.
#pragma once

#include <piper/balance/rank_load.h>

#include <cstddef>
#include <cstdint>
#include <deque>

namespace piper::balance {

// One layer's pool. Not thread-safe.
class PlacementPool {
 public:
  // Keeps the `capacity` newest (at least 1).
  explicit PlacementPool(size_t capacity) : capacity_(capacity) {}

  // Plans a placement for a window's loads (longest_first from `current`); one that is in the pool
  // already is not added again.
  void plan(const ExpertPlacement& current, const Loads& loads);

  // The member with the least imbalance under `loads`, or `current` where none is better. Among
  // equals the one that moves fewer experts, then the newest.
  Rebalanced choose(const ExpertPlacement& current, const Loads& loads) const;

  size_t size() const { return members_.size(); }

 private:
  size_t capacity_;
  std::deque<ExpertPlacement> members_;  // newest first
};

}  // namespace piper::balance
