// The names and shapes under which Hugging Face knows the tensors of the trainable families, and where a file may keep
// them instead. Observed with transformers 5.23: save_pretrained writes one tensor an expert, in these spellings,
//
//   Mixtral           model.layers.3.block_sparse_moe.{gate, experts.7.w1, experts.7.w3, experts.7.w2}.weight
//   Qwen3-MoE, OLMoE  model.layers.3.mlp.{gate, experts.7.gate_proj, experts.7.up_proj, experts.7.down_proj}.weight
//
// while its modules (and what others save from their state_dict) hold the experts of a layer fused:
//
//   model.layers.3.mlp.experts.gate_up_proj [E, 2F, D] (gate above up), model.layers.3.mlp.experts.down_proj [E, D, F]
#pragma once

#include <piper/model/model.h>

#include <cstdint>
#include <string>
#include <vector>

namespace piper::train {

struct TensorShape {
  std::string name;
  std::vector<int64_t> shape;
};

// Every parameter of the model, in the order of its layers. Tied: no lm_head.weight. Requires a trainable model
// (nn::untrainable() is empty).
std::vector<TensorShape> expected_tensors(const model::Model& model);

// A place where a tensor may be found: the whole of a file's tensor, or a part of a fused one.
struct Source {
  std::string name;
  bool fused = false;
  int64_t expert = 0;  // index into the leading axis of a fused tensor
  int64_t part = 0;    // which of `parts` equal slices of the second axis
  int64_t parts = 1;
};

// Places to look for `name`, best first: itself, the other family's spelling, the fused tensor; for lm_head.weight of a tied
// model the embedding.
std::vector<Source> sources(const std::string& name, bool tied_embeddings);

}  // namespace piper::train
