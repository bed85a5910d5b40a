// Which parameters one rank holds.
#pragma once

#include <piper/model/count.h>
#include <piper/strategy/rank_layout.h>
#include <piper/strategy/strategy.h>

#include <cstdint>
#include <vector>

namespace piper::cost {

// Parameters on one rank of a (virtual) stage. Routed experts are divided by ep x etp, matrices
// that ranks share (tensor with sequence parallelism) by tp, everything else is replicated over the
// stage. With tied embeddings or modules of multi-token prediction (which the last stage holds) the
// first and the last stage both hold the table (one stage: once).
struct RankParameters {
  int64_t dense = 0;    // attention, router, norms, dense MLPs, shared experts, embedding, head
  int64_t parts = 0;    // of attention and dense MLPs, where ranks share them; `dense` is then less
  int64_t experts = 0;  // routed experts
  int64_t total() const { return dense + parts + experts; }
  // Parameters by whose gradients it computes the norm: every replica takes an equal part.
  double of_norm(const strategy::Mesh& mesh) const {
    return static_cast<double>(dense) / static_cast<double>(mesh.ranks_per_stage()) +
           static_cast<double>(parts) / static_cast<double>(mesh.num_replicas()) +
           static_cast<double>(experts) / static_cast<double>(mesh.edp());
  }
};
RankParameters rank_parameters(const model::Model& model, const strategy::Strategy& strategy,
                               int64_t stage);

// Parameters whose optimizer states a rank has: all of its own; with ZeRO its share of every
// gradient buffer, as reductions cut it (collective::reduce_share), for a member of the stage.
int64_t optimized_parameters(const model::Model& model, const strategy::Strategy& strategy,
                             int64_t stage, int64_t member);

// The same of one layer, or end, of the stage (-1 embedding, -2 head).
int64_t optimized_of_layer(const model::Model& model, const strategy::Strategy& strategy,
                           int64_t stage, int64_t member, int32_t layer);

// Parameters whose weights a rank has all step: all of its own, or with ZeRO 3 its share of every
// buffer. Where updated experts are sent as residuals, its share of these once more: the exact
// weights besides those that all replicas have.
int64_t weight_parameters(const model::Model& model, const strategy::Strategy& strategy,
                          int64_t stage, int64_t member);

// Parameters whose gradients a rank has all step: all of its own, or where gradients are divided
// (strategy::divides_gradients) its share of each buffer.
int64_t gradient_parameters(const model::Model& model, const strategy::Strategy& strategy,
                            int64_t stage, int64_t member);

// The parameters behind one gradient buffer: schedule::SegmentKind::kDenseGradients with `layer` -1
// (embedding), -2 (final norm and head; with tied embeddings the table too when the stages differ)
// or a layer.
int64_t dense_parameters(const model::Model& model, int32_t layer, int64_t pp);

// The part of these that a rank holds of matrices that it shares with others of its stage; 0 where
// it shares none.
int64_t part_parameters(const model::Model& model, int32_t layer,
                        const strategy::Strategy& strategy);
// And what it holds whole: schedule::SegmentKind::kStageGradients where it shares some.
int64_t whole_parameters(const model::Model& model, int32_t layer,
                         const strategy::Strategy& strategy);

// What all ranks that hold a layer's experts alike have when each has sent its residuals
// (strategy/residual_code.h): as many bytes of each. They travel as elements of two bytes.
constexpr int64_t kCodedElement = 2;
int64_t coded_bytes(const model::Model& model, const strategy::Strategy& strategy, int32_t layer);

// Routed experts of a layer on one rank of so many that together hold them all.
int64_t expert_parameters(const model::Model& model, int32_t layer, int64_t ranks);

// Parameters of the copies of experts that a rank of a (virtual) stage holds
// (balance/expert_placement.h), which have weights and gradients and no optimizer states.
int64_t copied_parameters(const model::Model& model, const strategy::Strategy& strategy,
                          int64_t stage, int64_t member = 0);

// Bytes that travel when one expert of a layer changes its rank (schedule/migration.h).
int64_t moved_expert_bytes(const model::Model& model, int32_t layer, strategy::Precision precision);

}  // namespace piper::cost
