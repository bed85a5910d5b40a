// The part of a layer that one of several ranks computes with which share its matrices (Shoeybi et
// al. 2019): heads and widths are dealt, the model's width is not.
//
//   grouped attention   query heads are dealt, and the key and value heads that they read; of fewer
//                       key heads than ranks each rank has one, and several ranks the same one
//   latent attention    heads are dealt; what makes the latents is computed by every rank
//   dense net           its width is dealt
#pragma once

#include <piper/model/model.h>

#include <cstdint>
#include <string>
#include <vector>

namespace piper::model {

// Heads of one of `ranks`. Requires undividable() to say nothing of the layer.
Attention share_of(const Attention& whole, int64_t ranks);

// Whether ranks hold the projections of all keys and values and compute with a part of them.
bool shares_key_heads(const Attention& whole, int64_t ranks);
// The first of all key heads that rank `index` of `ranks` computes with.
int64_t first_key_head(const Attention& whole, int64_t ranks, int64_t index);

// Parameters of a layer (unsharded) that are dealt to `ranks`: each holds an equal part of these,
// and all others whole.
int64_t dealt_parameters(const Model& model, const Layer& layer, int64_t ranks);

// Why `ranks` cannot share the layers of a model that this Piper trains, one line each:
//   layer 0: 12 key heads over 8 ranks; allowed: 1, 2, 3, 4, 6, 12
std::vector<std::string> undividable(const Model& model, int64_t ranks);

}  // namespace piper::model
