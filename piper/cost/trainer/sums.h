// What the estimator's sources share: prices of a shape and their sums over a stage's layers. Not
// for others.
#pragma once

#include <piper/cost/trainer/end_price.h>
#include <piper/cost/trainer/pair_overlap.h>
#include <piper/cost/trainer/state_overlap.h>
#include <piper/cost/trainer/trainer_estimator.h>

#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

namespace piper::cost {

struct TrainerEstimator::Prices {
  std::vector<LayerPrice> types;
  std::vector<PairSaving> pairs_save;  // by type
  EndPrice ends;
  ShapeNeeds needs;
};

// One rank of the pipeline, all its chunks.
struct TrainerEstimator::StageSums {
  PassPrice forward, backward, again;  // compute before calibration
  double weights = 0;                  // compute of backward that makes gradients of weights
  double kept_bytes = 0, input_bytes = 0, backward_bytes = 0, placeholder_bytes = 0;
  double dropped_bytes = 0;  // of a micro-batch: not kept, but made again for its backward
  double head_bytes = 0, head_placeholder_bytes = 0, exchange_bytes = 0;
  double dense_parameters = 0, expert_parameters = 0;
  double layers = 0, host_seconds = 0;
  double hideable = 0;  // of exchanges, when forwards and backwards are paired
  bool same_as(const StageSums& o) const {
    return forward.compute == o.forward.compute && backward.compute == o.backward.compute &&
           dense_parameters == o.dense_parameters && expert_parameters == o.expert_parameters &&
           layers == o.layers && kept_bytes == o.kept_bytes && dropped_bytes == o.dropped_bytes &&
           head_bytes == o.head_bytes;
  }
};

struct TrainerEstimator::Busy {
  double forward = 0, backward = 0, weights = 0, hideable = 0;
  double total() const { return forward + backward; }
  double exposed_seconds() const {
    return total() - hideable;
  }  // of a micro-batch in the steady state
  // What the states of the stage add. `backward` counts gradients of weights with it.
  void add(const StageOverlap& states) {
    forward += states.forward;
    backward += states.backward + states.weights;
    weights += states.weights + states.reduces;
  }
};

// Of a virtual stage and a micro-batch: what waits for the backward, and what is made again for it.
struct TrainerEstimator::ChunkBytes {
  double kept = 0, dropped = 0;
};

struct TrainerEstimator::Sums {
  const Prices* prices = nullptr;
  bool is_v = false;
  int64_t vpp = 0;
  strategy::Recompute recompute = strategy::Recompute::kNone;
  std::vector<strategy::Recompute> recompute_per_stage;
  std::vector<int64_t> split;
  std::vector<StageSums> stages, chunks;  // the latter when asked for
  std::vector<ChunkBytes> of_chunk;       // by virtual stage
  // Of these stages, by what else they depend on.
  using OverlapKey =
      std::tuple<int64_t, int64_t, int64_t, strategy::Placement, strategy::PipelineSchedule>;
  std::vector<std::pair<OverlapKey, std::vector<StageOverlap>>> overlaps;
};

inline double communication(const PassPrice& p) { return p.tensor + p.exchange + p.context; }

// Virtual stages of one rank of the pipeline.
void for_each_chunk(const strategy::Strategy& s, int64_t stage, auto visit) {
  const int64_t pp = s.mesh.pp;
  if (strategy::is_v(s.schedule)) {
    visit(stage);
    visit(2 * pp - 1 - stage);
    return;
  }
  for (int64_t chunk = 0; chunk < s.mesh.vpp; ++chunk) visit(chunk * pp + stage);
}

}  // namespace piper::cost
