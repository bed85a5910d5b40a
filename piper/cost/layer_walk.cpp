#include <piper/cost/layer_walk.h>

#include <algorithm>
#include <utility>

namespace piper::cost {
namespace {

using schedule::LayerTask;

// Rows that are on their way to a rank.
class ArrivingRows {
 public:
  void post(const schedule::LayerSlotList& rows, double at) { rows_.emplace_back(rows, at); }

  // When all that the task reads is there. A collective comes behind those before it anyway; who
  // computes waits for what it reads. Not counted: an executor may begin exchanges between two
  // computations only.
  double needed_by(const LayerTask& task, double now) {
    if (task.kind == graph::TaskKind::kCompute || task.kind == graph::TaskKind::kExchangeCounts)
      std::erase_if(rows_, [&](const auto& rows) {
        if (std::ranges::find_first_of(rows.first, task.reads) == rows.first.end()) return false;
        now = std::max(now, rows.second);
        return true;
      });
    return now;
  }
  double all(double now) const {
    for (const auto& rows : rows_) now = std::max(now, rows.second);
    return now;
  }

 private:
  std::vector<std::pair<schedule::LayerSlotList, double>> rows_;
};

// One of a pair on its way through some layers.
struct PairCursor {
  std::vector<const LayerTask*> tasks;  // nullptr: a turn at the end of a layer
  size_t next = 0;
  bool has_yielded = false;  // in front of the next task
  ArrivingRows arriving = {};
  double weights_due = 0;
  bool done() const { return next == tasks.size(); }
  // Passes over a turn that ends here.
  bool yields() {
    const LayerTask* task = tasks[next];
    if (task == nullptr) {
      ++next;
      return true;
    }
    has_yielded = task->is_after_yield && !has_yielded;
    return has_yielded;
  }
};

class Pair {
 public:
  Pair(const schedule::LayerPasses& passes, int num_layers, const PairTasks& seconds)
      : seconds_(seconds) {
    for (int i = 0; i < num_layers; ++i) {
      for (const LayerTask& task : passes.forward) forward_.tasks.push_back(&task);
      if (passes.forward_ends_with_turn) forward_.tasks.push_back(nullptr);
      for (const auto* list : {&passes.recompute, &passes.backward})
        for (const LayerTask& task : *list) backward_.tasks.push_back(&task);
    }
  }

  double simulate() {
    while (!forward_.done() || !backward_.done()) {
      take_turn(backward_);
      take_turn(forward_);
    }
    return backward_.arriving.all(forward_.arriving.all(now_));
  }

 private:
  void take_turn(PairCursor& of) {
    while (!of.done() && !of.yields()) run(of, *of.tasks[of.next++]);
    now_ += std::exchange(of.weights_due, 0);
  }

  void run(PairCursor& of, const LayerTask& task) {
    now_ = of.arriving.needed_by(task, now_);
    if (task.kind != graph::TaskKind::kCompute) {
      sent_ = std::max(sent_, now_) + seconds_.communicate(task);
      if (!task.writes.empty()) of.arriving.post(task.writes, sent_);
    } else if (&of == &forward_ || task.is_recomputed) {
      now_ += seconds_.forward(task);
    } else {
      now_ += seconds_.backward(task);
      of.weights_due += seconds_.weights(task);
    }
  }

  const PairTasks& seconds_;
  PairCursor forward_, backward_;
  double now_ = 0, sent_ = 0;
};

}  // namespace

LayerWalk walk_layer(const std::vector<LayerTask>& tasks, const TaskSeconds& compute,
                     const TaskSeconds& communicate) {
  LayerWalk walk;
  ArrivingRows arriving;
  double now = 0, sent = 0;
  const auto wait_until = [&](double at) { walk.waiting += at - std::exchange(now, at); };
  bool is_ahead = true;
  for (const LayerTask& task : tasks) {
    wait_until(arriving.needed_by(task, now));
    if (!task.is_recomputed && is_ahead) {
      walk.ahead = now;
      is_ahead = false;
    }
    if (task.kind != graph::TaskKind::kCompute) {
      sent = std::max(sent, now) + communicate(task);
      if (!task.writes.empty()) arriving.post(task.writes, sent);
      continue;
    }
    const double seconds = compute(task);
    (task.is_recomputed ? walk.recompute : walk.compute) += seconds;
    now += seconds;
  }
  wait_until(arriving.all(now));
  if (is_ahead) walk.ahead = now;
  return walk;
}

PairSeconds seconds_in_pairs(const schedule::LayerPasses& passes, const PairTasks& seconds) {
  constexpr int kLayers = 3;  // enough for the first and the last to be like no other
  const auto of_layers = [&](int num) { return Pair(passes, num, seconds).simulate(); };
  const double few = of_layers(kLayers), layer = (of_layers(2 * kLayers) - few) / kLayers;
  return {.layer = layer, .ends = few - kLayers * layer};
}

}  // namespace piper::cost
