// A model in words, for tables and messages.
#pragma once

#include <piper/model/model.h>

#include <cstddef>
#include <string>
#include <vector>

namespace piper::model {

std::string describe(const Attention& attention);  // "32 heads of 128, 8 kv, window 4096"
std::string describe(
    const FeedForward& feed_forward);  // "8 experts of 14336, top 2", "dense 18432"

// Equal layers together: a repeating pattern (full, sliding, full, ...) has as many kinds as it has
// different layers.
struct LayerKind {
  std::vector<size_t> layers;  // ascending; never empty
  std::string range() const;   // "0-2, 7"
};
std::vector<LayerKind> layer_kinds(const Model& model);  // by first layer

}  // namespace piper::model
