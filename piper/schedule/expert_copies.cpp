#include <piper/base/error.h>
#include <piper/schedule/expert_copies.h>

namespace piper::schedule {

std::vector<collective::CopiedBlock> copied_blocks(const balance::ExpertPlacement& placement,
                                                   const std::array<int64_t, 2>& elements) {
  PIPER_CHECK(placement.has_homes_first(), "as many homes and copies on every rank, homes first");
  const auto on_rank = placement.num_places() / placement.num_ranks();
  const auto homes = placement.num_experts() / placement.num_ranks(), copies = on_rank - homes;
  std::vector<collective::CopiedBlock> blocks;
  for (int64_t expert = 0; expert < placement.num_experts(); ++expert)
    for (const int32_t place : placement.copies_of(expert)) {
      const int64_t home = placement.place_of(expert);
      if (place == home) continue;
      for (size_t tensor = 0; tensor < elements.size(); ++tensor) {
        const int64_t each = elements[tensor];
        const int64_t before = tensor == 0 ? 0 : elements[0];
        blocks.push_back({.home = static_cast<int32_t>(home / on_rank),
                          .holder = static_cast<int32_t>(place / on_rank),
                          .at_home = homes * before + home % on_rank * each,
                          .at_holder = copies * before + (place % on_rank - homes) * each,
                          .count = each});
      }
    }
  return blocks;
}

collective::CopiedBuffers copied_buffers(const balance::ExpertPlacement& placement,
                                         const std::array<int64_t, 2>& elements) {
  const auto homes = placement.num_experts() / placement.num_ranks(),
             copies = placement.num_places() / placement.num_ranks() - homes;
  const int64_t expert = elements[0] + elements[1];
  return {.homes = homes * expert, .copies = copies * expert};
}

}  // namespace piper::schedule
