#include <piper/collective/reduce_scatter_ring.h>
#include <piper/collective/reduction.h>

#include <algorithm>
#include <array>

namespace piper::collective {

// Round r: the share that is r below the member's own goes on; what arrives is the one below that.
void write_reduce_scatter_ring(Reduction& reduction) {
  StepBuilder& steps = reduction.steps;
  const int64_t n = reduction.num_members(), member = steps.member();
  int64_t largest = 0;
  for (const Block& share : reduction.shares) largest = std::max(largest, share.count);
  std::array<Block, 2> slots;
  for (int64_t slot = 0; slot < std::min<int64_t>(2, n - 1); ++slot)
    slots[slot] = steps.scratch(largest);
  std::array<int32_t, 2> added{-1, -1};  // by slot: the last addition from it
  int32_t last = -1;
  for (int64_t round = 1; round < n; ++round) {
    const int64_t slot = (round - 1) % 2;
    steps.set_round(round);
    const int64_t leaving = (member - round + n) % n, arriving = (member - round - 1 + n) % n;
    After after;
    wait_for(after, last);
    const int32_t sent = steps.send((member + 1) % n, static_cast<uint32_t>(round),
                                    reduction.shares[leaving], after);
    reduction.free[leaving].clear();
    wait_for(reduction.free[leaving], sent);
    Block block = slots[slot];
    block.count = reduction.shares[arriving].count;
    After emptied;
    wait_for(emptied, added[slot]);
    const int32_t received =
        steps.receive((member - 1 + n) % n, static_cast<uint32_t>(round), block, emptied);
    After waits;
    wait_for(waits, received);
    last = steps.add(block, reduction.shares[arriving], waits);
    if (last >= 0) added[slot] = last;
  }
  wait_for(reduction.ready, last);
}

MemberSteps reduce_scatter_ring(int64_t member, int64_t num_members, int64_t count) {
  Reduction reduction(member, shares_by_number(num_members, count), count);
  write_reduce_scatter_ring(reduction);
  return reduction.steps.take();
}

}  // namespace piper::collective
