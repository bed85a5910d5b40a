// Which of a rank's states ZeRO divides, where a buffer of them (a layer's, over one axis) is held
// alike by several ranks.
#pragma once

#include <piper/model/model.h>
#include <piper/strategy/strategy.h>

#include <cstdint>

namespace piper::strategy {

// Whether the first and the last stage sum the gradients of a layer's (-1 embedding, -2 head)
// buffer, since both hold a table: of the head as well, or for modules of multi-token prediction.
// They cut their buffers differently, and sum the whole of it.
inline bool sums_table_of_ends(const Strategy& s, const model::Model& model, int32_t layer) {
  return ends_apart(s) && layer < 0 &&
         (model.tied_embeddings || (model.copies_embedding() && layer == -1));
}

// Whether every rank keeps the sums of its own elements of a layer's gradients alone.
inline bool divides_gradients(const Strategy& s, const model::Model& model, int32_t layer) {
  return s.zero >= 2 && !sums_table_of_ends(s, model, layer);
}

}  // namespace piper::strategy
