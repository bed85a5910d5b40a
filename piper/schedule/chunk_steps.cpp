#include <piper/schedule/chunk_steps.h>
#include <piper/schedule/layer.h>
#include <piper/schedule/state_tasks.h>

namespace piper::schedule {
namespace {

using StepKind = ChunkStep::Kind;

class Lister {
 public:
  Lister(const StepWriter& step, const ChunkLayers& chunk, int64_t pp_rank)
      : step_(step), chunk_(chunk), pp_rank_(pp_rank) {}

  std::vector<ChunkStep> forward() {
    if (chunk_.is_first) with_states(StepKind::kEmbedding, -1, StateTasks::kEmbedding);
    for (int32_t layer = chunk_.first; layer <= chunk_.last; ++layer) {
      add(StepKind::kBeginStates, layer);
      layer_forward(layer);
      add(StepKind::kEndStates, layer);
    }
    if (!chunk_.is_last) return std::move(list_);
    with_states(StepKind::kHead, -1, StateTasks::kHead);
    for (int32_t i = 0; i < chunk_.num_modules; ++i) {
      add(StepKind::kBeginStates, module(i));
      add(StepKind::kJoin, module(i));
      layer_forward(module(i));
      add(StepKind::kHead, module(i));
      add(StepKind::kEndStates, module(i));
    }
    return std::move(list_);
  }

  std::vector<ChunkStep> backward() {
    if (chunk_.is_last) heads_backward();
    for (int32_t layer = chunk_.last; layer >= chunk_.first; --layer) {
      add(StepKind::kBeginStates, layer);
      layer_backward(layer);
      add(StepKind::kEndStates, layer);
    }
    if (chunk_.is_first) with_states(StepKind::kEmbedding, -1, StateTasks::kEmbedding);
    return std::move(list_);
  }

 private:
  int32_t module(int32_t i) const { return static_cast<int32_t>(step_.model.num_layers()) + i; }

  void add(StepKind kind, int32_t layer) { list_.push_back({.kind = kind, .layer = layer}); }
  void with_states(StepKind kind, int32_t layer, int32_t states) {
    add(StepKind::kBeginStates, states);
    add(kind, layer);
    add(StepKind::kEndStates, states);
  }
  void add(const LayerPasses& passes, const std::vector<LayerTask>& tasks, int32_t layer) {
    for (const LayerTask& task : tasks) {
      if (task.is_after_yield) add(StepKind::kYield, layer);
      list_.push_back({.kind = StepKind::kTask, .layer = layer, .passes = &passes, .task = &task});
    }
  }

  void layer_forward(int32_t layer) {
    const LayerPasses& passes = passes_of(step_, layer, pp_rank_);
    list_.push_back({.kind = StepKind::kEnter, .layer = layer, .passes = &passes});
    add(passes, passes.forward, layer);
    if (passes.forward_ends_with_turn) add(StepKind::kYield, layer);
    list_.push_back({.kind = StepKind::kLeave, .layer = layer, .passes = &passes});
  }

  void layer_backward(int32_t layer) {
    const LayerPasses& passes = passes_of(step_, layer, pp_rank_);
    list_.push_back({.kind = StepKind::kEnter, .layer = layer, .passes = &passes});
    add(passes, passes.recompute, layer);
    add(passes, passes.backward, layer);
    list_.push_back({.kind = StepKind::kLeave, .layer = layer, .passes = &passes});
  }

  // From the last module to the model's own head. A join's backward also reaches the norm of the
  // head before it, and a module's gradients are final behind it.
  void heads_backward() {
    for (int32_t i = chunk_.num_modules; i-- > 0;) {
      add(StepKind::kBeginStates, module(i));
      add(StepKind::kHead, module(i));
      if (i + 1 < chunk_.num_modules) join_backward(i + 1);
      layer_backward(module(i));
    }
    add(StepKind::kBeginStates, StateTasks::kHead);
    add(StepKind::kHead, -1);
    if (chunk_.num_modules > 0) join_backward(0);
    add(StepKind::kEndStates, StateTasks::kHead);
    if (chunk_.num_modules > 0 && step_.model.copies_embedding() &&
        strategy::ends_apart(step_.strategy))
      add(StepKind::kEndStates, StateTasks::kEmbedding);
  }
  void join_backward(int32_t i) {
    add(StepKind::kJoin, module(i));
    add(StepKind::kEndStates, module(i));
  }

  const StepWriter& step_;
  const ChunkLayers& chunk_;
  int64_t pp_rank_;
  std::vector<ChunkStep> list_;
};

}  // namespace

std::vector<ChunkStep> forward_steps(const StepWriter& step, const ChunkLayers& chunk,
                                     int64_t pp_rank) {
  return Lister(step, chunk, pp_rank).forward();
}

std::vector<ChunkStep> backward_steps(const StepWriter& step, const ChunkLayers& chunk,
                                      int64_t pp_rank) {
  return Lister(step, chunk, pp_rank).backward();
}

}  // namespace piper::schedule
