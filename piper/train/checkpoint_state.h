// A rank's state as a checkpoint holds it: under names that no mesh changes, so that any mesh finds
// what it needs.
//
//   parameter/<piece>       value, under its Hugging Face name: an expert goes by its index in the whole layer
//   first_moment/<piece>    of AdamW, the same part of its parameter's moment
//   second_moment/<piece>
//   optimizer/num_steps
//
// The ranks together hold a tensor as often as it has replicas, and write it once:
//
//   replicated   over the ranks of a stage          dp copies, piece i is written by dp index i % dp
//   experts      over those of one ep index         edp copies, piece i by edp index i % edp
//   a table on first and last stage (tied, mtp)     by the first
#pragma once

#include <piper/base/strong_id.h>
#include <piper/nn/stage.h>
#include <piper/strategy/strategy.h>
#include <piper/train/named_tensor.h>
#include <piper/train/optimizer.h>

#include <vector>

namespace piper::train {

// All that the rank holds, as views: what loading fills.
std::vector<NamedTensor> state_tensors(nn::Stage& stage, const AdamW& optimizer);

// Those of them that `rank` writes: over the mesh, each tensor of the model once.
std::vector<NamedTensor> written_tensors(nn::Stage& stage, const AdamW& optimizer,
                                         const strategy::Mesh& mesh, Rank rank);

}  // namespace piper::train
