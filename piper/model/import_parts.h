// The pieces of the importer, by concern. Each reads its keys for all layers at once and fills its part of the model.
#pragma once

#include <piper/model/family.h>
#include <piper/model/keys.h>
#include <piper/model/model.h>

#include <cstdint>
#include <string>
#include <vector>

namespace piper::model {

struct Import {
  Keys& keys;
  const FamilyTraits& family;
  bool known_family;
  Model& model;  // layers exist already, hidden and vocabulary are set
};

// Bounds of what a config may say: generous, yet small enough that no product of two leaves 64 bits.
constexpr int64_t kMaxLayers = 10'000;
constexpr int64_t kMaxHeads = 65'536;
constexpr int64_t kMaxHeadDim = 65'536;
constexpr int64_t kMaxHidden = 1 << 20;
constexpr int64_t kMaxFfn = 1 << 26;
constexpr int64_t kMaxExperts = 1 << 20;
constexpr int64_t kMaxPositions = int64_t{1} << 40;

inline constexpr Spellings kHidden = {"hidden_size", "n_embd", "d_model", "hidden_dim"};

void import_attention(Import& in);  // import_attention.cpp
void import_windows(
    Import& in);  // import_windows.cpp: layer types, spans, layers without positions
void import_feed_forward(Import& in);  // import_feed_forward.cpp: widths, experts, router
void import_positions(Import& in);     // import_positions.cpp: RoPE, learned positions

// Which layers are mixtures (import_mixture_layers.cpp). Reads the keys that place them.
std::vector<bool> mixture_layers(Import& in);

// Keys that nothing has read: listed in Model::ignored_keys, or a problem when they would change shapes
// (known_keys.cpp). Call last.
void sort_unread_keys(Import& in);

}  // namespace piper::model
