// What a run that ran out of memory says: each component predicted and held, and the knob that
// would help.
#pragma once

#include <piper/cluster/cluster.h>
#include <piper/model/model.h>
#include <piper/nn/counting_allocator.h>
#include <piper/strategy/strategy.h>

#include <cstdint>
#include <string>
#include <vector>

namespace piper::train {

// Bytes that the rank holds for its state; the rest of what is live is activations and buffers. -1
// = it had not got there.
struct HeldState {
  int64_t weights = -1, gradients = -1, optimizer = -1;
};

// Lines: what failed ("out of memory on rank 1 (stage 0) in step 3, at F1 L2 experts: ..."), a
// table, what would help. `where` may be empty. Does not allocate tensors.
std::string explain_out_of_memory(const nn::OutOfMemory& error, const model::Model& model,
                                  const strategy::Strategy& strategy,
                                  const cluster::Cluster& cluster, const HeldState& held,
                                  const std::string& where);

// Converts what a device's allocator said: how much was wanted is in its words alone ("Tried to
// allocate 2.00 GiB"; 0 where it is not). `held`: bytes that are live there.
nn::OutOfMemory out_of_device_memory(const std::string& said, Rank rank, int64_t held);

// Changes of one or two axes on the same ranks after which the fullest rank needs at most
// `limit_bytes`, as flags, the gentlest first: "--recompute experts (needs 1.2 GB)". Empty = none.
std::vector<std::string> changes_that_fit(const model::Model& model,
                                          const strategy::Strategy& strategy,
                                          const cluster::Cluster& cluster, int64_t limit_bytes);

}  // namespace piper::train
