// A rank's state as a checkpoint holds it: under names that no mesh changes, so that any mesh finds
// what it needs.
//
//   parameter/<piece>       value, under its Hugging Face name: an expert goes by its index in the
//                           whole layer
//   first_moment/<piece>    of AdamW, the same part of its parameter's moment
//   second_moment/<piece>
//   optimizer/num_steps
//
// The ranks together hold a tensor as often as it has replicas (nn::Sharding), and write it once:
//
//   piece i of its rank                             by index i % n of the n ranks that hold it
//   what a rank alone has (optimizer states, ZeRO)  by that rank
//   a table on first and last stage (tied, mtp)     by the first
//
// Where ranks divide a tensor, each rank writes its part, named by what it is:
//
//   parameter/model.layers.0.self_attn.o_proj.weight [64,64] 1:32-64      (nn/tensor_part.h)
#pragma once

#include <piper/base/strong_id.h>
#include <piper/nn/named_tensor.h>
#include <piper/nn/stage.h>
#include <piper/optim/optimizer.h>
#include <piper/strategy/strategy.h>

#include <vector>

namespace piper::checkpoint {

// All that the rank holds, as views, under the names of whole tensors with its part of each: what
// loading fills.
std::vector<nn::NamedTensor> state_tensors(nn::Stage& stage, const optim::AdamW& optimizer);

// Those of them that `rank` writes, under the names that a file gives them: over the mesh, each
// element of the model once. The weights are gathered before (RankTrainer::gather_weights).
std::vector<nn::NamedTensor> written_tensors(nn::Stage& stage, const optim::AdamW& optimizer,
                                             const strategy::Mesh& mesh, Rank rank);

}  // namespace piper::checkpoint
