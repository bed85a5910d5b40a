// Where the ranks of a strategy sit, and who forms a group with whom: the one place where degrees
// are multiplied.
//
// The R = tp x cp x dp ranks of a pipeline stage are its members 0 .. R-1. Two meshes cut them:
//
//   member = (dp_index * cp + cp_index) * tp + tp_index               attention
//          = (edp_index * ep + ep_index) * etp + etp_index            experts
//
// This is Megatron-LM's order tp-cp-dp and etp-ep-edp, the innermost axis first: an expert-parallel
// group sits on neighbouring devices. Blocks of members stay together and stages take turns:
//
//   rank = (member / block * pp + stage) * block + member % block
//
//   kDataInside       block = R: a stage's ranks stay together
//   kPipelineInside   block = lcm(tp cp, ep etp): what tensor, context and expert groups need
#pragma once

#include <piper/base/strong_id.h>
#include <piper/strategy/strategy.h>

#include <array>
#include <cstdint>
#include <vector>

namespace piper::strategy {

// Every kind of group that communicates, and what its ranks share:
//   kExpert        the experts of a layer: tokens are exchanged here
//   kExpertTensor  the matrices of an expert
//   kTensorExpert  both (megatron-core's tp_ep): the ep x etp ranks that together hold a layer's
//                  experts
//   kTensor        the matrices of a layer (not of its experts)
//   kContext       a sequence
//   kPipeline      the layers: the same member of every stage
//   kData          the same parameters of all but the experts: dp x cp ranks
//   kExpertData    the same experts
//   kStage         the layers of a pipeline stage: its norms, routers and what else all its ranks
//                  hold whole
//   kEmbeddingTable
//                  the embedding's table, which first and last stage may both hold: the same member
//                  of both
//   kWorld         the step: all ranks
//   kRank          nothing: a rank alone, with its host
enum class Axis : uint8_t {
  kExpert,
  kExpertTensor,
  kTensorExpert,
  kTensor,
  kContext,
  kPipeline,
  kData,
  kExpertData,
  kStage,
  kEmbeddingTable,
  kWorld,
  kRank
};
inline constexpr std::array kAxisTraits{NamedValue<Axis>{Axis::kExpert, "expert"},
                                        NamedValue<Axis>{Axis::kExpertTensor, "expert tensor"},
                                        NamedValue<Axis>{Axis::kTensorExpert, "tensor expert"},
                                        NamedValue<Axis>{Axis::kTensor, "tensor"},
                                        NamedValue<Axis>{Axis::kContext, "context"},
                                        NamedValue<Axis>{Axis::kPipeline, "pipeline"},
                                        NamedValue<Axis>{Axis::kData, "data"},
                                        NamedValue<Axis>{Axis::kExpertData, "expert data"},
                                        NamedValue<Axis>{Axis::kStage, "stage"},
                                        NamedValue<Axis>{Axis::kEmbeddingTable, "embedding"},
                                        NamedValue<Axis>{Axis::kWorld, "world"},
                                        NamedValue<Axis>{Axis::kRank, "rank"}};
static_assert(are_in_order(kAxisTraits));
constexpr const auto& rows(Axis) { return kAxisTraits; }
inline constexpr auto kAxes = values_of<Axis>();
inline constexpr size_t kNumAxes = kAxes.size();

struct Coordinates {
  int64_t pp = 0;                    // stage
  int64_t member = 0;                // of the stage
  int64_t tp = 0, cp = 0, dp = 0;    // dp: which share of the batch
  int64_t etp = 0, ep = 0, edp = 0;  // ep: which experts; edp: which replica of them
  bool operator==(const Coordinates&) const = default;
};

// Equally spaced members of a stage.
struct Members {
  int64_t first = 0, stride = 1, size = 1;
};

// Over which ranks gradients are summed of what a rank holds whole (norms, routers, tables): the
// data group; the stage where its ranks share matrices, since each then has the gradient of its own
// share of the tokens, whether it computes with those alone or with all of them.
constexpr Axis axis_of_whole(const Strategy& s) {
  return s.mesh.tp > 1 ? Axis::kStage : Axis::kData;
}

// A value; immutable. Ranks, stages and members that are asked about must be there (PIPER_CHECK).
class RankLayout {
 public:
  // Requires degrees of at least 1, and ep x etp a divisor of tp x cp x dp (PIPER_CHECK).
  explicit RankLayout(const Mesh& mesh, Placement placement = Placement::kDataInside);
  explicit RankLayout(const Strategy& strategy) : RankLayout(strategy.mesh, strategy.placement) {}

  int64_t num_ranks() const { return mesh_.pp * members_; }
  int64_t num_stages() const { return mesh_.pp; }
  int64_t num_members() const { return members_; }

  Rank rank(int64_t stage, int64_t member) const;
  Coordinates coordinates(Rank rank) const;
  int64_t stage(Rank rank) const;
  int64_t member(Rank rank) const;

  int64_t size(Axis axis) const;
  // The group of a member within its stage; not of kPipeline, kEmbeddingTable, kWorld.
  Members members(Axis axis, int64_t member) const;
  // The same of a rank, on every axis; by ascending index on the axis.
  std::vector<Rank> group(Axis axis, Rank rank) const;
  std::vector<Rank> world() const;

  // From a rank to the next of its group; not of kEmbeddingTable, kWorld, kRank. With
  // kPipelineInside, where groups of kData and kExpertData have no equal distance, that of blocks.
  int64_t distance(Axis axis) const;
  // Members that sit on neighbouring devices: a block. And from a block of a stage to its next.
  int64_t num_together() const { return block_; }
  int64_t distance_of_blocks() const { return block_ * mesh_.pp; }

 private:
  Mesh mesh_;
  int64_t members_, block_;
  bool is_data_inside_;
};

// The experts of a layer with num_experts that ep index `ep` holds: [first, first + count). Uneven
// counts when ep does not divide num_experts are refused by contradictions().
struct ExpertRange {
  int64_t first = 0;
  int64_t count = 0;
};
ExpertRange experts_of(const Mesh& mesh, int64_t num_experts, int64_t ep_index);

}  // namespace piper::strategy
