// A layer's tasks one after the other: computing in order, collectives in order beside it, each
// task waiting for the rows that it reads. It walks one micro-batch, or a pair that takes turns.
#pragma once

#include <piper/schedule/layer.h>

#include <functional>
#include <vector>

namespace piper::cost {

// Seconds of a task.
using TaskSeconds = std::function<double(const schedule::LayerTask&)>;

// One pass of a layer; whoever comes next waits for the rows that are still on their way.
struct LayerWalk {
  double compute = 0;  // less what runs again
  double recompute = 0;
  double waiting = 0;  // for rows
  double ahead = 0;    // from the beginning until the first task that does not run again
};
LayerWalk walk_layer(const std::vector<schedule::LayerTask>& tasks, const TaskSeconds& compute,
                     const TaskSeconds& communicate);

// What a forward and a backward of two micro-batches take turn by turn, as schedule/stage.cpp
// writes them: the backward's rows go first, and while one's rows travel the other computes.
// `backward`: of the gradients of inputs, `weights`: of those of weights, which are made at the end
// of a turn.
struct PairTasks {
  TaskSeconds forward, backward, weights, communicate;
};
// n layers take n layer + ends: at a chunk's ends nothing is there to compute meanwhile.
struct PairSeconds {
  double layer = 0, ends = 0;
};
PairSeconds seconds_in_pairs(const schedule::LayerPasses& passes, const PairTasks& seconds);

}  // namespace piper::cost
