// The pieces of the importer, by concern. Each reads its keys for all layers at once and fills its
// part of the model.
#pragma once

#include <piper/model/family.h>
#include <piper/model/keys.h>
#include <piper/model/model.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace piper::model {

struct Import {
  Keys& keys;
  const FamilyTraits& family;
  bool known_family;
  Model& model;  // layers exist already, hidden and vocabulary are set
};

// Bounds of what a config may say: generous, yet small enough that no product of two leaves 64
// bits.
constexpr int64_t kMaxLayers = 10'000;
constexpr int64_t kMaxHeads = 65'536;
constexpr int64_t kMaxHeadDim = 65'536;
constexpr int64_t kMaxHidden = 1 << 20;
constexpr int64_t kMaxFfn = 1 << 26;
constexpr int64_t kMaxExperts = 1 << 20;
constexpr int64_t kMaxPositions = int64_t{1} << 40;

// A type of layer: grouped attention to the blocks of keys that an indexer chose.
inline constexpr std::string_view kBlockSparse = "minimax_m3_sparse";

inline constexpr Spellings kHeads = {"num_attention_heads", "n_head", "n_heads", "num_heads"};
inline constexpr Spellings kKvHeads = {"num_key_value_heads", "num_kv_heads",         "n_kv_heads",
                                       "n_head_kv",           "num_attention_groups", "kv_n_heads"};
inline constexpr Spellings kHidden = {"hidden_size", "n_embd", "d_model", "hidden_dim"};

// import_architecture.cpp: throws InvalidInput with one sentence for an architecture that Piper
// does not have.
void refuse_foreign_architecture(Import& in);
void import_attention(Import& in);  // import_attention.cpp
void import_windows(
    Import& in);  // import_windows.cpp: layer types, spans, layers without positions
// import_layer_shapes.cpp: heads and sizes that differ by layer, indexers. After import_windows.
void import_layer_shapes(Import& in);
void import_feed_forward(Import& in);  // import_feed_forward.cpp: widths, experts, router
void import_positions(Import& in);     // import_positions.cpp: RoPE, learned positions

// Which layers are mixtures (import_mixture_layers.cpp). Reads the keys that place them.
std::vector<bool> mixture_layers(Import& in);

// import_towers.cpp: encoders beside the language model. After everything that may read their keys.
std::vector<Tower> import_towers(Import& in);

// Keys that nothing has read: listed in Model::ignored_keys, or a problem when they would change
// shapes (known_keys.cpp). Call last.
void sort_unread_keys(Import& in);

// The value of a key is off, absent, zero or empty.
bool asks_for_nothing(const Json& value);

}  // namespace piper::model
