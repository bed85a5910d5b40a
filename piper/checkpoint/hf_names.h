// The names and shapes under which Hugging Face knows the tensors of the trainable families, and
// where a file may keep them instead. Observed with transformers 5.23: save_pretrained writes one
// tensor an expert, in these spellings,
//
//   Mixtral           model.layers.3.block_sparse_moe.{gate, experts.7.w1, experts.7.w3,
//                     experts.7.w2}.weight
//   Qwen3-MoE, OLMoE  model.layers.3.mlp.{gate, experts.7.gate_proj, experts.7.up_proj,
//                     experts.7.down_proj}.weight
//
// while its modules (and what others save from their state_dict) hold the experts of a layer fused:
//
//   model.layers.3.mlp.experts.gate_up_proj [E, 2F, D] (gate above up),
//   model.layers.3.mlp.experts.down_proj [E, D, F]
//
// A module of multi-token prediction stands behind the layers, as in DeepSeek-V3's released weights
// (61 layers):
//
//   model.layers.61.{enorm, hnorm, eh_proj, shared_head.norm}.weight beside a layer's own
#pragma once

#include <piper/model/model.h>

#include <cstdint>
#include <string>
#include <vector>

namespace piper::checkpoint {

struct TensorShape {
  std::string name;
  std::vector<int64_t> shape;
};

// Every parameter of the model, its modules' too, in the order of its layers. Tied: no
// lm_head.weight. Requires a trainable model (model::untrainable() is empty).
std::vector<TensorShape> expected_tensors(const model::Model& model);

// Tensors of a file that are no part of the model and no fault either: the tables that every module
// of multi-token prediction repeats, and modules that the config counts (num_nextn_predict_layers)
// and that are not trained.
bool is_left_out(const std::string& name, const model::Model& model);

// The repeated tables, which a written folder holds as DeepSeek-V3's does.
struct TableRepeat {
  std::string name;  // model.layers.61.embed_tokens.weight, model.layers.61.shared_head.head.weight
  std::string table;
};
std::vector<TableRepeat> module_tables(const model::Model& model);

// A place where a tensor may be found: the whole of a file's tensor, or a part of a fused one.
struct Source {
  std::string name;
  bool fused = false;
  int64_t expert = 0;  // index into the leading axis of a fused tensor
  int64_t part = 0;    // which of `parts` equal slices of the second axis
  int64_t parts = 1;
};

// Places to look for `name`, best first: itself, the other family's spelling, the fused tensor; for
// lm_head.weight of a tied model the embedding.
std::vector<Source> sources(const std::string& name, bool tied_embeddings);

}  // namespace piper::checkpoint
