// Operations on shared ports (cost/links.h), as a fluid.
//
// Processor sharing by need: a port that is asked for more than it has gives everyone the same
// part, capacity / sum of needs, of what he would use alone; an operation moves at the speed of its
// slowest port. What an operation that is slowed elsewhere leaves unused is not given to the others
// (max-min fairness would): so a start or an end concerns only the ports it touches, and nothing is
// solved for the whole machine. Pessimistic where bottlenecks chain, exact where one port is the
// bottleneck of all that share it.
#pragma once

#include <piper/cost/links.h>
#include <piper/graph/graph.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace piper::sim {

// Deterministic: needs are integers, and nothing depends on the order of what happens at one
// instant. Not thread-safe. The links outlive it.
class Network {
 public:
  explicit Network(const cost::Links& links);

  // The operation's bytes start (stop) to move. An operation without a pattern shares nothing and
  // does not come here.
  void begin(graph::OperationId operation, double now);
  void end(graph::OperationId operation);

  // After all that begins and ends at `now`: calls reschedule(operation, seconds) with the new end
  // of every operation that goes faster or slower than before (at first: as if alone).
  template <class F>
  void settle(double now, F reschedule) {
    find_changed();
    for (const int32_t index : changed_) {
      Moving& moving = moving_[static_cast<size_t>(index)];
      moving.is_changed = false;
      if (!moving.operation.valid()) continue;
      const double rate = rate_of(moving);
      if (rate == moving.rate) continue;
      moving.remaining -= (now - moving.since) * moving.rate;
      moving.since = now;
      moving.rate = rate;
      reschedule(moving.operation, now + std::max(0.0, moving.remaining) / rate);
    }
    changed_.clear();
  }

 private:
  struct Moving {
    graph::OperationId operation = graph::OperationId::none();
    int32_t pattern = -1;
    bool is_changed = false;
    double remaining = 0;  // seconds, alone
    double rate = 1;
    double since = 0;  // when it took on this rate
  };
  struct Port {
    cost::PortUnits capacity = 0, needed = 0;
    double part = 1;  // of its need that everyone gets
    bool is_touched = false;
    std::vector<int32_t> moving;
  };

  void touch(int32_t port);
  void find_changed();
  void note_changed(int32_t index);
  double rate_of(const Moving& moving) const;

  const cost::Links& links_;
  std::vector<Port> ports_;
  std::vector<Moving> moving_;
  std::vector<int32_t> free_;      // of moving_
  std::vector<int32_t> index_of_;  // by operation: in moving_
  std::vector<int32_t> touched_, changed_;
};

}  // namespace piper::sim
