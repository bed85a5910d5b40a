// Whether the copies of a parameter, of its moments and of its master weights are still the same
// bits on all ranks that hold one: a bit that flipped in one rank's memory spreads into all
// gradients, and the loss does not show it for long.
#pragma once

#include <piper/nn/stage.h>
#include <piper/optim/optimizer.h>
#include <piper/strategy/strategy.h>

#include <string>
#include <vector>

namespace piper::train {

// What a rank hands in: a line for every parameter and for every tensor of the optimizer's state,
// with a hash of its bytes that any single flipped bit changes (tensor_check.h).
std::string replica_hashes(const std::vector<nn::Parameter>& parameters,
                           const optim::AdamW& optimizer);

// `handed_in` by rank. Copies of the same part of a parameter (nn::Sharding) are compared over the
// ranks of a stage. One line for every rank that differs from most of its replicas, or for a group
// without a majority:
//   rank 3's copy of model.layers.2.mlp.gate.weight (and of 4 more) differs from that of its 3 replicas
//   the copies of model.norm.weight (and of 2 more) on ranks 0, 1 differ, none has a majority
// Empty = all equal. Throws CommError when what a rank handed in is not of this form.
std::vector<std::string> drifted_replicas(const strategy::Mesh& mesh,
                                          const std::vector<std::string>& handed_in);

}  // namespace piper::train
