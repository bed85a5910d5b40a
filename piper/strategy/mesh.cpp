#include <piper/base/error.h>
#include <piper/strategy/mesh.h>

namespace piper::strategy {
namespace {

void check_mesh(const Mesh& mesh) {
  PIPER_CHECK(mesh.pp >= 1 && mesh.ep >= 1 && mesh.dp >= 1 && mesh.dp % mesh.ep == 0,
              "mesh degrees");
}

}  // namespace

Coordinates coordinates(const Mesh& mesh, Rank rank) {
  check_mesh(mesh);
  PIPER_CHECK(rank.value >= 0 && rank.value < mesh.world(), "rank outside the mesh");
  const int64_t dp = rank.value % mesh.dp;
  return {.pp = rank.value / mesh.dp, .dp = dp, .ep = dp % mesh.ep, .edp = dp / mesh.ep};
}

Rank rank_at(const Mesh& mesh, int64_t pp, int64_t dp) {
  check_mesh(mesh);
  PIPER_CHECK(pp >= 0 && pp < mesh.pp && dp >= 0 && dp < mesh.dp, "coordinates outside the mesh");
  return Rank(pp * mesh.dp + dp);
}

std::vector<Rank> data_group(const Mesh& mesh, Rank rank) {
  const Coordinates at = coordinates(mesh, rank);
  std::vector<Rank> members;
  for (int64_t dp = 0; dp < mesh.dp; ++dp) members.push_back(rank_at(mesh, at.pp, dp));
  return members;
}

std::vector<Rank> expert_group(const Mesh& mesh, Rank rank) {
  const Coordinates at = coordinates(mesh, rank);
  std::vector<Rank> members;
  for (int64_t ep = 0; ep < mesh.ep; ++ep)
    members.push_back(rank_at(mesh, at.pp, at.edp * mesh.ep + ep));
  return members;
}

std::vector<Rank> expert_data_group(const Mesh& mesh, Rank rank) {
  const Coordinates at = coordinates(mesh, rank);
  std::vector<Rank> members;
  for (int64_t edp = 0; edp < mesh.edp(); ++edp)
    members.push_back(rank_at(mesh, at.pp, edp * mesh.ep + at.ep));
  return members;
}

std::vector<Rank> pipeline_group(const Mesh& mesh, Rank rank) {
  const Coordinates at = coordinates(mesh, rank);
  std::vector<Rank> members;
  for (int64_t pp = 0; pp < mesh.pp; ++pp) members.push_back(rank_at(mesh, pp, at.dp));
  return members;
}

ExpertRange experts_of(const Mesh& mesh, int64_t num_experts, int64_t ep_index) {
  check_mesh(mesh);
  PIPER_CHECK(num_experts % mesh.ep == 0, "ep must divide the experts");
  PIPER_CHECK(ep_index >= 0 && ep_index < mesh.ep, "ep index outside the mesh");
  const int64_t count = num_experts / mesh.ep;
  return {.first = ep_index * count, .count = count};
}

int64_t first_layer(const Strategy& strategy, int64_t stage) {
  PIPER_CHECK(stage >= 0 && stage <= static_cast<int64_t>(strategy.layers_per_stage.size()),
              "stage outside the pipeline");
  int64_t first = 0;
  for (int64_t s = 0; s < stage; ++s) first += strategy.layers_per_stage[s];
  return first;
}

}  // namespace piper::strategy
