// Prints the groups of meshes, for tests/rank_groups.py: a line "pp tp cp dp ep etp placement" (0:
// data inside, 1: pipeline inside) is answered by a line of JSON, each axis with its groups of
// ranks.
#include <piper/base/json.h>
#include <piper/strategy/rank_layout.h>

#include <iostream>
#include <set>

using namespace piper;
using strategy::Axis;

namespace {

Json groups_of(const strategy::RankLayout& layout, Axis axis) {
  std::set<std::vector<int64_t>> groups;
  for (const Rank rank : layout.world()) {
    std::vector<int64_t> members;
    for (const Rank member : layout.group(axis, rank)) members.push_back(member.value);
    groups.insert(members);
  }
  return groups;
}

}  // namespace

int main() {
  strategy::Mesh mesh;
  int placement = 0;
  while (std::cin >> mesh.pp >> mesh.tp >> mesh.cp >> mesh.dp >> mesh.ep >> mesh.etp >> placement) {
    const strategy::RankLayout layout(mesh, placement == 0 ? strategy::Placement::kDataInside
                                                           : strategy::Placement::kPipelineInside);
    const Json json{{"tensor", groups_of(layout, Axis::kTensor)},
                    {"context", groups_of(layout, Axis::kContext)},
                    {"data", groups_of(layout, Axis::kData)},
                    {"expert tensor", groups_of(layout, Axis::kExpertTensor)},
                    {"expert", groups_of(layout, Axis::kExpert)},
                    {"expert data", groups_of(layout, Axis::kExpertData)},
                    {"pipeline", groups_of(layout, Axis::kPipeline)}};
    std::cout << json.dump() << "\n";
  }
}
