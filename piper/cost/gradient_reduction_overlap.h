// The last backward pass of a stage, in which gradient reductions start layer by layer and share
// the links with the exchanges that go on: how much they slow it, and how long they outlast it.
//
// The same fluid as the simulation's (sim/network.h), for one device: four classes of operations
// (reductions of the data group, of the expert data group, exchanges, the message to the stage
// before), each with its needs by level. O(layers) events; no allocation beyond its lists.
#pragma once

#include <piper/cost/exchange_time.h>

#include <array>
#include <vector>

namespace piper::cost {

// What one device's operations of a class need of its share of each level while they move; the
// level that decides needs 1. Zero: the class moves nothing.
struct LevelUtilization {
  std::array<double, kMaxLevels> part{};
};
LevelUtilization level_needs(const cluster::Cluster& cluster, const Traffic& traffic);

// The seconds of an operation alone, as price() has them, in two parts.
struct CommTime {
  double latency = 0;   // the rest of its price
  double transfer = 0;  // sharing
  double total() const { return latency + transfer; }
};

CommTime all_reduce_moves(const cluster::Cluster& cluster, const Group& group, double bytes,
                          strategy::Reduction algorithm = strategy::Reduction::kDirect);
LevelUtilization all_reduce_needs(const cluster::Cluster& cluster, const Group& group,
                                  strategy::Reduction algorithm = strategy::Reduction::kDirect);
// `bytes` from every member to every other.
CommTime all_to_all_moves(const cluster::Cluster& cluster, const Group& group, double pair_bytes);

// One layer's turn, or that of an end of the model: waits for its exchanges, computes, and then has
// gradients to reduce.
struct BackwardTurn {
  double compute = 0;
  CommTime exchange;  // of all its exchanges, what nothing hides
  CommTime dense, experts;
};

struct LastBackward {
  double slowed = 0;   // by how much longer it takes
  double message = 0;  // by how much longer the message after it takes
  double exposed = 0;  // how long the reductions outlast it
};

struct LastBackwardNeeds {
  LevelUtilization dense, experts, exchange, message;
};

// `turns` in the order in which they are computed. With ReductionStart::kYielding reductions start
// when an exchange has ended (strategy::num_let_pass()), and at once where the next turn has none.
LastBackward last_backward(size_t num_levels, const LastBackwardNeeds& needs,
                           const std::vector<BackwardTurn>& turns, const CommTime& message,
                           strategy::ReductionStart start = strategy::ReductionStart::kReady);

}  // namespace piper::cost
