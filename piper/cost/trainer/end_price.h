// What the two ends of a model cost one rank for one micro-batch under a trainer. Seconds, bytes
// and parameters are divided as layer_price.h says: the vocabulary over tp.
#pragma once

#include <piper/cost/trainer/layer_price.h>
#include <piper/cost/trainer/rates.h>
#include <piper/cost/trainer/trainer_profile.h>
#include <piper/model/model.h>

namespace piper::cost {

// The ends of the model: embedding (first), head with its loss (last).
struct EndPrice {
  double embedding_forward = 0, embedding_backward = 0;
  double head_forward = 0, head_backward = 0;
  // Parameters that one rank holds: its part of the tables and all else whole. Each of the two ends
  // counts once: a tied head has no table of its own.
  double embedding_parameters = 0, head_parameters = 0;
  double table_parameters = 0;   // that a tied head on another stage holds once more
  double head_bytes = 0;         // of the moment, at the head
  double placeholder_bytes = 0;  // of the head's weight
  double message_bytes = 0;      // between stages, one micro-batch
};
EndPrice price_ends(const model::Model& model, const LayerShape& shape,
                    const TrainerProfile& trainer, const Rates& rates);

}  // namespace piper::cost
