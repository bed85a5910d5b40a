// Which ranks hold which experts: what is accepted is written and read again as it was, and every
// expert has a place.
#include <piper/balance/expert_placement.h>
#include <piper/base/json.h>

#include "fuzz.h"

namespace piper::fuzz {

void fuzz(std::span<const std::byte> bytes) {
  const std::map<int32_t, int64_t> num_experts{{0, 4}, {1, 8}, {12, 6}};
  const balance::Placements read =
      balance::placements_from_json(parse_json(text_of(bytes), "f"), num_experts, "f");
  FUZZ_CHECK(balance::placements_from_json(balance::to_json(read), num_experts, "f") == read);
  for (const auto& [layer, placement] : read)
    FUZZ_CHECK(placement.num_experts() == num_experts.at(layer));
}

}  // namespace piper::fuzz
