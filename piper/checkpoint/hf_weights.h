// Weights of a Hugging Face folder into the pieces of a rank, and back into such a folder.
#pragma once

#include <piper/base/json_fwd.h>
#include <piper/checkpoint/hf_names.h>
#include <piper/checkpoint/weight_folder.h>
#include <piper/nn/named_tensor.h>
#include <piper/nn/stage.h>

#include <cstdint>
#include <filesystem>
#include <vector>

namespace piper::checkpoint {

// Compares a folder with what the whole model needs: throws InvalidInput listing every missing,
// superfluous and mis-shaped tensor. Fused experts and the other family's spelling are accepted
// (hf_names.h); so are rotary_emb.inv_freq buffers, lm_head.weight of a tied model and what
// is_left_out(). Call it once, before the ranks load.
void check_weights(const WeightFolder& folder, const model::Model& model);

// Fills the values of a rank's pieces, reading only their bytes; other precisions are converted.
// Throws InvalidInput with all pieces that are missing or mis-shaped, IoError. Thread-safe on one
// folder.
void load_weights(const WeightFolder& folder, const std::vector<nn::NamedPiece>& pieces,
                  bool tied_embeddings);

// Throws InvalidInput where export_weights() may not write into the folder: a link, or a file of
// somebody else or one that this process reads, lies where it would.
void require_export_folder(const std::filesystem::path& folder);

// Writes model.safetensors (beyond `max_shard_bytes` shards and their index) and config.json so
// that transformers' from_pretrained loads them. `tensors` come from several ranks: sorted here by
// name, with the digits of a name as numbers; of equal names (replicas) the first counts;
// lm_head.weight is left out when the config ties it. `config` is the model's own config.json; its
// "dtype" is set to what is written. Every file is put in place by a rename, the config last; what
// the last export left there is removed, by the names that its index lists. Throws IoError, and as
// require_export_folder() does.
void export_weights(const std::filesystem::path& folder, const Json& config,
                    std::vector<nn::NamedTensor> tensors, int64_t max_shard_bytes = 5'000'000'000);

// What export_weights() takes for a model with modules of multi-token prediction: the tensors with
// the tables that the modules repeat (sharing storage), and the config with their number. Unchanged
// without modules.
std::vector<nn::NamedTensor> with_module_tables(std::vector<nn::NamedTensor> tensors,
                                                const model::Model& model);
Json config_with_modules(Json config, const model::Model& model);

}  // namespace piper::checkpoint
