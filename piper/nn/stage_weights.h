// Which parameters a stage holds, in which buffers, under which names; and the segments' blocks
// that point at them.
#pragma once

#include <piper/balance/expert_placement.h>
#include <piper/model/model.h>
#include <piper/nn/attention.h>
#include <piper/nn/context_share.h>
#include <piper/nn/dense_mlp.h>
#include <piper/nn/experts.h>
#include <piper/nn/gate.h>
#include <piper/nn/head.h>
#include <piper/nn/latent_attention.h>
#include <piper/nn/mtp.h>
#include <piper/nn/parameters.h>
#include <piper/nn/tensor_share.h>

#include <cstdint>
#include <map>
#include <vector>

namespace piper::nn {

// Which part of the model a rank holds.
struct StageShare {
  std::vector<int32_t> layers;  // ascending, without the modules of multi-token prediction
  int64_t ep_index = 0;
  int64_t ep = 1;
  TensorShare tensor;    // of the matrices that ranks share
  TensorShare experts;   // of each expert's matrices
  ContextShare context;  // of every sequence
  // Whether those that share matrices divide the tokens between the blocks, and those that a
  // mixture layer routes; else each holds all of them.
  bool divides_tokens = true, divides_routed = true;
  bool divides_rows = false;    // of the same tokens, behind the gate
  bool gathers_tokens = false;  // those that share experts, in front of the gate
  int64_t copies = 1;           // of every row that experts are sent
  int64_t peers = 0;            // strategy::grouped_peers
  bool first_stage = true;
  bool last_stage = true;
  balance::Placements placements;  // StageOptions
  int64_t redundant_experts = 0;   // Strategy::redundant_experts
};

// Returns the placement of a layer with this many experts: the one given, or the plain one.
balance::ExpertPlacement placement_of(const StageShare& share, int32_t layer, int64_t num_experts);

struct LayerBlocks {
  AttentionBlock attention;  // one of the two attentions has weights
  LatentAttentionBlock latent;
  DenseMlpBlock dense_mlp;  // of a dense layer; a mixture layer's shared experts
  GateBlock gate;           // of a mixture layer
  ExpertsBlock experts;
};

struct StageBlocks {
  std::map<int32_t, LayerBlocks> layers;  // by global index
  Weight* embedding = nullptr;            // first stage; last stage with modules and an untied head
  HeadBlock head;                         // last stage
  std::map<int32_t, MtpBlock> modules;    // last stage, by the global index of their layer
};

// Declares everything in `store`, but copies of experts, which nobody trains, in `copies` (by
// layer, over the expert group); the caller allocates. Tied embeddings on one stage: head.table is
// the embedding; on several, the last stage's table comes first in the buffer of layer -2.
// Parameters of a module of multi-token prediction are in the buffers of its layer.
StageBlocks declare_weights(const model::Model& model, const StageShare& share,
                            ParameterStore& store, ParameterStore& copies);

// The layer's experts are those of the placement from now on: names of pieces and the gate's
// places. What the parameters hold is the caller's to move.
void place_experts(const model::Model& model, int32_t layer, const StageShare& share,
                   const balance::ExpertPlacement& placement, LayerBlocks& blocks,
                   ParameterStore& store);

}  // namespace piper::nn
