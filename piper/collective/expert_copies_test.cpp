#include <piper/collective/expert_copies.h>
#include <testing/collective/exchange_cases.h>

#include <map>
#include <vector>

namespace piper::collective {
namespace {

// Four members with two blocks at home each, of 3 and 5 units, and places for two copies.
constexpr CopiedBuffers kBuffers{.homes = 16, .copies = 16};
const std::vector<CopiedBlock> kBlocks{
    {.home = 0, .holder = 1, .at_home = 0, .at_holder = 0, .count = 3},
    {.home = 0, .holder = 1, .at_home = 6, .at_holder = 6, .count = 5},
    {.home = 0, .holder = 2, .at_home = 0, .at_holder = 3, .count = 3},
    {.home = 0, .holder = 2, .at_home = 6, .at_holder = 11, .count = 5},
    {.home = 0, .holder = 3, .at_home = 0, .at_holder = 0, .count = 3},
    {.home = 0, .holder = 3, .at_home = 6, .at_holder = 6, .count = 5},
    {.home = 2, .holder = 0, .at_home = 3, .at_holder = 0, .count = 3},
    {.home = 2, .holder = 0, .at_home = 11, .at_holder = 6, .count = 5}};

}  // namespace

TEST_CASE("weights of experts come to every copy, from their home") {
  const Proof proof = prove(
      apart(4), [](int64_t m) { return spread_copies(m, kBuffers, kBlocks); }, false,
      [](int64_t m, Sums&) {
        std::vector<Expected> expected;
        for (const CopiedBlock& block : kBlocks)
          if (block.holder == m)
            expected.push_back({block.at_holder, {block.count, block.home, block.at_home}});
        return expected;
      });
  CHECK(first_of(proof.problems) == "");
  CHECK(proof.max_scratch == 0);
}

// The output holds the homes' own before; the sum is in the order of holders.
TEST_CASE("gradients of copies are added to their home's, one holder after the other") {
  const Proof proof = prove(
      apart(4), [](int64_t m) { return collect_copies(m, kBuffers, kBlocks); }, true,
      [](int64_t m, Sums& sums) {
        std::map<int64_t, Piece> by_place;
        for (const CopiedBlock& block : kBlocks) {
          if (block.home != m) continue;
          Piece& sum = by_place
                           .try_emplace(block.at_home,
                                        Piece{block.count, static_cast<int32_t>(m), block.at_home})
                           .first->second;
          sum = sums.add(sum, {block.count, block.holder, block.at_holder});
        }
        std::vector<Expected> expected;
        for (const auto& [at, piece] : by_place) expected.push_back({at, piece});
        return expected;
      });
  CHECK(first_of(proof.problems) == "");
  CHECK(proof.max_scratch == 2 * 5);
  CHECK(collect_scratch(0, kBlocks) == 2 * 5);
  CHECK(collect_scratch(1, kBlocks) == 0);
  CHECK(collect_copies(1, kBuffers, kBlocks).scratch_count == 0);
}

TEST_CASE("who has neither a home nor a copy of another's takes part with an empty list") {
  const std::vector<CopiedBlock> blocks{{.home = 0, .holder = 1, .count = 4}};
  CHECK(spread_copies(2, {8, 4}, blocks).steps.empty());
  CHECK(collect_copies(2, {8, 4}, blocks).steps.empty());
  CHECK(copied_units(3, blocks, false) == std::vector<int64_t>{0, 4, 0, 0, 0, 0, 0, 0, 0});
  CHECK(copied_units(3, blocks, true) == std::vector<int64_t>{0, 0, 0, 4, 0, 0, 0, 0, 0});
}

}  // namespace piper::collective
