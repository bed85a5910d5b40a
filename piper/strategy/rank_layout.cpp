#include <piper/base/error.h>
#include <piper/strategy/rank_layout.h>

#include <algorithm>
#include <numeric>

namespace piper::strategy {

RankLayout::RankLayout(const Mesh& mesh, Placement placement)
    : mesh_(mesh),
      members_(mesh.ranks_per_stage()),
      block_(placement == Placement::kDataInside
                 ? members_
                 : std::lcm(mesh.ranks_per_sequence(), mesh.ranks_per_expert_set())),
      is_data_inside_(placement == Placement::kDataInside) {
  PIPER_CHECK(mesh.pp >= 1 && mesh.tp >= 1 && mesh.cp >= 1 && mesh.dp >= 1 && mesh.ep >= 1 &&
                  mesh.etp >= 1 && members_ % mesh.ranks_per_expert_set() == 0,
              "mesh degrees");
}

Rank RankLayout::rank(int64_t stage, int64_t member) const {
  PIPER_CHECK(stage >= 0 && stage < mesh_.pp && member >= 0 && member < members_,
              "coordinates outside the mesh");
  return Rank((member / block_ * mesh_.pp + stage) * block_ + member % block_);
}

int64_t RankLayout::stage(Rank rank) const {
  PIPER_CHECK(rank.value >= 0 && rank.value < num_ranks(), "rank outside the mesh");
  return rank.value / block_ % mesh_.pp;
}

int64_t RankLayout::member(Rank rank) const {
  PIPER_CHECK(rank.value >= 0 && rank.value < num_ranks(), "rank outside the mesh");
  return rank.value / (block_ * mesh_.pp) * block_ + rank.value % block_;
}

Coordinates RankLayout::coordinates(Rank rank) const {
  const int64_t m = member(rank);
  return {.pp = stage(rank),
          .member = m,
          .tp = m % mesh_.tp,
          .cp = m / mesh_.tp % mesh_.cp,
          .dp = m / mesh_.ranks_per_sequence(),
          .etp = m % mesh_.etp,
          .ep = m / mesh_.etp % mesh_.ep,
          .edp = m / mesh_.ranks_per_expert_set()};
}

int64_t RankLayout::size(Axis axis) const {
  switch (axis) {
    case Axis::kPipeline:
      return mesh_.pp;
    case Axis::kEmbeddingTable:
      return std::min<int64_t>(2, mesh_.pp);
    case Axis::kWorld:
      return num_ranks();
    default:
      return members(axis, 0).size;
  }
}

Members RankLayout::members(Axis axis, int64_t member) const {
  const int64_t sequence = mesh_.ranks_per_sequence(), layer = mesh_.ranks_per_expert_set();
  switch (axis) {
    case Axis::kTensor:
      return {member / mesh_.tp * mesh_.tp, 1, mesh_.tp};
    case Axis::kContext:
      return {member / sequence * sequence + member % mesh_.tp, mesh_.tp, mesh_.cp};
    case Axis::kData:
      return {member % mesh_.tp, mesh_.tp, members_ / mesh_.tp};
    case Axis::kExpertTensor:
      return {member / mesh_.etp * mesh_.etp, 1, mesh_.etp};
    case Axis::kExpert:
      return {member / layer * layer + member % mesh_.etp, mesh_.etp, mesh_.ep};
    case Axis::kTensorExpert:
      return {member / layer * layer, 1, layer};
    case Axis::kExpertData:
      return {member % layer, layer, members_ / layer};
    case Axis::kStage:
      return {0, 1, members_};
    case Axis::kRank:
      return {member, 1, 1};
    case Axis::kPipeline:
    case Axis::kEmbeddingTable:
    case Axis::kWorld:
      break;
  }
  throw InternalError("these ranks are members of different stages");
}

std::vector<Rank> RankLayout::group(Axis axis, Rank rank) const {
  if (axis == Axis::kWorld) return world();
  const int64_t own_stage = stage(rank), own_member = member(rank);
  std::vector<Rank> ranks;
  if (axis == Axis::kPipeline || axis == Axis::kEmbeddingTable) {
    const int64_t step = axis == Axis::kPipeline ? 1 : std::max<int64_t>(1, mesh_.pp - 1);
    for (int64_t s = 0; s < mesh_.pp; s += step) ranks.push_back(this->rank(s, own_member));
    return ranks;
  }
  const Members group = members(axis, own_member);
  for (int64_t i = 0; i < group.size; ++i)
    ranks.push_back(this->rank(own_stage, group.first + i * group.stride));
  return ranks;
}

std::vector<Rank> RankLayout::world() const {
  std::vector<Rank> ranks;
  for (int64_t r = 0; r < num_ranks(); ++r) ranks.push_back(Rank(r));
  return ranks;
}

int64_t RankLayout::distance(Axis axis) const {
  const int64_t far = is_data_inside_ ? 1 : mesh_.pp;
  switch (axis) {
    case Axis::kTensor:
    case Axis::kContext:
    case Axis::kExpertTensor:
    case Axis::kExpert:
    case Axis::kTensorExpert:
      return members(axis, 0).stride;
    case Axis::kData:
    case Axis::kExpertData:
      return members(axis, 0).stride * far;
    case Axis::kStage:
      if (is_data_inside_) return 1;
      break;
    case Axis::kPipeline:
      return num_together();
    case Axis::kEmbeddingTable:
    case Axis::kWorld:
    case Axis::kRank:
      break;
  }
  throw InternalError("these ranks have no equal distance");
}

ExpertRange experts_of(const Mesh& mesh, int64_t num_experts, int64_t ep_index) {
  PIPER_CHECK(num_experts % mesh.ep == 0, "ep must divide the experts");
  PIPER_CHECK(ep_index >= 0 && ep_index < mesh.ep, "ep index outside the mesh");
  const int64_t count = num_experts / mesh.ep;
  return {.first = ep_index * count, .count = count};
}

}  // namespace piper::strategy
