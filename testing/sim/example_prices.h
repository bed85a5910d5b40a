// Hand-made prices for tests: everything is free until a test says otherwise.
#pragma once

#include <piper/cost/prices.h>

#include <functional>

namespace piper::sim::example {

inline cost::Prices free_of_charge(const schedule::StepGraph& step) {
  cost::Prices prices;
  prices.seconds.resize(step.graph.tasks().size());
  prices.transient_bytes.resize(step.graph.tasks().size());
  prices.slot_bytes.resize(step.graph.slots().size());
  prices.static_bytes.resize(step.graph.num_ranks());
  prices.node_of_rank.resize(step.graph.num_ranks());
  return prices;
}

inline cost::Prices priced(const schedule::StepGraph& step,
                           const std::function<double(const graph::Task&)>& seconds) {
  cost::Prices prices = free_of_charge(step);
  for (const graph::Task& task : step.graph.tasks())
    prices.seconds[task.id.index()] = seconds(task);
  return prices;
}

}  // namespace piper::sim::example
