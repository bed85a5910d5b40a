#include <piper/base/error.h>
#include <piper/collective/expert_copies.h>
#include <piper/collective/step_builder.h>

#include <algorithm>
#include <array>

namespace piper::collective {
namespace {

void check(const CopiedBlock& block) {
  PIPER_CHECK(block.home != block.holder && block.count >= 0, "a copy on the rank of its home");
}

// What comes to a member in sums: how many blocks, and the largest.
struct Arrivals {
  int64_t num = 0, largest = 0;
};
Arrivals arrivals(int64_t member, std::span<const CopiedBlock> blocks) {
  Arrivals of;
  for (const CopiedBlock& block : blocks) {
    if (block.home != member || block.count == 0) continue;
    ++of.num;
    of.largest = std::max(of.largest, block.count);
  }
  return of;
}

}  // namespace

MemberSteps spread_copies(int64_t member, const CopiedBuffers& buffers,
                          std::span<const CopiedBlock> blocks) {
  StepBuilder steps(member, buffers.homes, buffers.copies);
  for (size_t i = 0; i < blocks.size(); ++i) {
    const CopiedBlock& block = blocks[i];
    check(block);
    const auto part = static_cast<uint32_t>(i);
    steps.set_round(static_cast<int64_t>(i));
    if (block.home == member)
      steps.send(block.holder, part, {Buffer::kInput, block.at_home, block.count});
    if (block.holder == member)
      steps.receive(block.home, part, {Buffer::kOutput, block.at_holder, block.count});
  }
  return steps.take();
}

MemberSteps collect_copies(int64_t member, const CopiedBuffers& buffers,
                           std::span<const CopiedBlock> blocks) {
  StepBuilder steps(member, buffers.copies, buffers.homes);
  const Arrivals coming = arrivals(member, blocks);
  std::array<Block, 2> slots{};
  for (int64_t i = 0; i < std::min<int64_t>(coming.num, std::ssize(slots)); ++i)
    slots[static_cast<size_t>(i)] = steps.scratch(coming.largest);
  std::array<int32_t, 2> emptied{-1, -1};  // by slot: the addition that has read it
  int32_t added = -1;
  size_t num = 0;
  for (size_t i = 0; i < blocks.size(); ++i) {
    const CopiedBlock& block = blocks[i];
    check(block);
    if (block.count == 0) continue;
    const auto part = static_cast<uint32_t>(i);
    steps.set_round(static_cast<int64_t>(i));
    if (block.holder == member)
      steps.send(block.home, part, {Buffer::kInput, block.at_holder, block.count});
    if (block.home != member) continue;
    const size_t slot = num++ % slots.size();
    Block arrived = slots[slot];
    arrived.count = block.count;
    After free, both;
    wait_for(free, emptied[slot]);
    wait_for(both, steps.receive(block.holder, part, arrived, free));
    wait_for(both, added);
    added = steps.add(arrived, {Buffer::kOutput, block.at_home, block.count}, both);
    emptied[slot] = added;
  }
  return steps.take();
}

std::vector<int64_t> copied_units(int64_t num_members, std::span<const CopiedBlock> blocks,
                                  bool homeward) {
  std::vector<int64_t> units(static_cast<size_t>(num_members * num_members));
  for (const CopiedBlock& block : blocks) {
    const int64_t from = homeward ? block.holder : block.home,
                  to = homeward ? block.home : block.holder;
    units[static_cast<size_t>(from * num_members + to)] += block.count;
  }
  return units;
}

int64_t collect_scratch(int64_t member, std::span<const CopiedBlock> blocks) {
  const Arrivals coming = arrivals(member, blocks);
  return std::min<int64_t>(coming.num, 2) * coming.largest;
}

}  // namespace piper::collective
