#include <piper/cost/trainer/end_price.h>
#include <piper/cost/trainer/layer_pass.h>
#include <piper/model/count.h>

namespace piper::cost {

EndPrice price_ends(const model::Model& model, const LayerShape& shape,
                    const TrainerProfile& trainer, const Rates& rates) {
  const auto hidden = static_cast<double>(model.hidden);
  const auto tp = static_cast<double>(shape.tp);
  const double vocabulary = static_cast<double>(model.vocabulary) / tp;
  const double t = shape.tokens;
  const double local = shape.sequence_parallel ? t / tp : t;
  EndPrice e;
  e.embedding_forward = rates.pass_seconds(2 * kElement * t * hidden);
  e.embedding_backward = rates.pass_seconds(3 * kElement * t * hidden);
  e.head_forward = rates.product_seconds(t, vocabulary, hidden);
  e.head_backward =
      rates.product_seconds(t, hidden, vocabulary) + rates.product_seconds(vocabulary, hidden, t);
  const double passes = rates.pass_seconds(trainer.logit_bytes * t * vocabulary);
  e.head_forward += 0.4 * passes;
  e.head_backward += 0.6 * passes;
  if (shape.tp > 1 && shape.sequence_parallel) {
    const double gather = rates.all_gather_seconds(shape.tp, 1, kElement * t * hidden);
    e.head_forward += gather;
    e.head_backward += gather;
  }
  const model::EndParameters ends = model::count_ends(model);
  e.table_parameters = vocabulary * hidden;
  const double divided = static_cast<double>(ends.table) - e.table_parameters;  // held by others
  e.embedding_parameters = static_cast<double>(ends.embedding) - divided;
  e.head_parameters =
      static_cast<double>(ends.head + ends.final_norm) - (model.tied_embeddings ? 0 : divided);
  e.head_bytes = trainer.logit_bytes_kept * t * vocabulary;
  e.placeholder_bytes = trainer.keeps_weight_placeholders ? kElement * vocabulary * hidden : 0;
  e.message_bytes = kElement * local * hidden;
  return e;
}

}  // namespace piper::cost
