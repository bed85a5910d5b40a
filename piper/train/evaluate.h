// Loss of a model on a corpus, on a mesh of one rank or more: non-overlapping windows, targets
// shifted by one, the tail dropped.
#pragma once

#include <piper/checkpoint/weight_folder.h>
#include <piper/comm/world.h>
#include <piper/data/corpus.h>
#include <piper/model/model.h>
#include <piper/train/rank_trainer.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace piper::train {

struct Evaluation {
  double loss = 0;     // nats a target token
  int64_t tokens = 0;  // target tokens
};

// The strategy with as many windows in a micro-batch as make its products large (2,048 tokens, or
// one window), whatever its batch was: this changes no loss. Only on one rank, and where no expert
// has a capacity, which counts in micro-batches; any other strategy comes back as it is.
strategy::Strategy in_wide_batches(strategy::Strategy strategy, int64_t num_windows);

// By a rank of a mesh, forwards alone, on the first `max_windows` windows (0 = all) in global
// batches of the strategy's size; all ranks call it and have the sums over the mesh. `first_number`
// and those after it, one a global batch: RankTrainer::evaluate(). `progress` gets windows done and
// in all; may be empty.
LossSum evaluate_windows(RankTrainer& trainer, const data::Corpus& corpus,
                         const strategy::Strategy& strategy, int64_t max_windows,
                         int64_t first_number,
                         const std::function<void(int64_t, int64_t)>& progress = {});

// The ranks of this process, which load their parts of the folder (checked: check_weights()); every
// process calls it. One rank alone computes with as many threads as libtorch takes. Requires a
// strategy that runs (strategy::untrainable()). Throws InvalidInput, IoError, CommError. `devices`
// as in RunShared; `progress` is called by rank 0.
Evaluation evaluate_on_mesh(comm::World& world, const model::Model& model,
                            const strategy::Strategy& strategy,
                            const checkpoint::WeightFolder& weights, const data::Corpus& corpus,
                            int64_t max_windows, const RankDevices& devices,
                            const std::function<void(int64_t, int64_t)>& progress = {});

}  // namespace piper::train
