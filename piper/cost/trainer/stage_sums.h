// Prices of layers (shape_prices.h) added up over what one rank of the pipeline holds, and over
// each of its virtual stages.
#pragma once

#include <piper/cost/trainer/shape_prices.h>
#include <piper/cost/trainer/trainer_context.h>

#include <cstdint>
#include <vector>

namespace piper::cost {

// The sums over the layers of one pipeline rank, or of one of its chunks, for one micro-batch.
struct StageSums {
  PassPrice forward, backward, again;  // compute before calibration
  double weights = 0;                  // compute of backward that makes gradients of weights
  double kept_bytes = 0, backward_bytes = 0, placeholder_bytes = 0;
  double dropped_bytes = 0;  // not kept, but made again for the backward
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

// What a virtual stage keeps of one micro-batch for the backward, and what it recomputes then.
struct ChunkBytes {
  double kept = 0, dropped = 0;
};

// Seconds of a micro-batch, calibrated.
struct BusySeconds {
  double forward = 0, backward = 0;
  double weights = 0;   // of `backward`: gradients of weights
  double hideable = 0;  // of both, in a pair
  double total() const { return forward + backward; }
  double exposed() const { return total() - hideable; }  // in the steady state
};
BusySeconds busy_seconds(const TrainerContext& context, const StageSums& sums);

ComputeScale compute_scale(const TrainerContext& context, const StageSums& sums);

inline double communication(const PassPrice& p) { return p.tensor + p.exchange + p.context; }

// A chunk's sums; those of which a rank needs the most at a time are the larger of both.
void add_chunk(const TrainerContext& context, const ShapePrices& prices,
               const strategy::Strategy& strategy, strategy::Recompute recompute, int64_t chunk,
               StageSums& to);

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

struct StrategySums {
  std::vector<StageSums> stages;
  std::vector<ChunkBytes> of_chunk;  // by virtual stage
  int64_t number = 0;                // another one whenever other stages are summed
};

// Neighbours in a search share everything but schedule, ZeRO, offload and placement: the sums of
// the last call are kept. Not thread-safe; `context` outlives it.
class SumsOfStages {
 public:
  explicit SumsOfStages(const TrainerContext& context) : context_(context) {}

  // Valid until the next call with other stages, or clear().
  const StrategySums& of(const strategy::Strategy& strategy, const ShapePrices& prices);
  // By virtual stage; likewise.
  const std::vector<StageSums>& of_chunks(const strategy::Strategy& strategy,
                                          const ShapePrices& prices);
  // When the prices are gone.
  void clear() { prices_ = nullptr; }

 private:
  const TrainerContext& context_;
  // What the sums below are of.
  const ShapePrices* prices_ = nullptr;
  bool is_v_ = false, pairs_ = false;
  int64_t vpp_ = 0;
  strategy::Recompute recompute_ = strategy::Recompute::kNone;
  std::vector<strategy::Recompute> recompute_per_stage_;
  std::vector<int64_t> split_;
  StrategySums sums_;
  std::vector<StageSums> chunks_;  // when asked for
};

}  // namespace piper::cost
