#include <piper/base/error.h>
#include <piper/collective/reduce_scatter_direct.h>
#include <piper/collective/reduction.h>

#include <algorithm>

namespace piper::collective {
namespace {

constexpr int64_t kScatterSlots = 2;

std::vector<Block> pieces_of(const Block& share, int64_t piece) {
  std::vector<Block> pieces;
  for (int64_t begin = 0; begin < share.count;) {
    const int64_t count = std::min(piece, share.count - begin);
    pieces.push_back({share.buffer, share.offset + begin, count});
    begin += count;
  }
  return pieces;
}

MemberSteps scatter(Reduction reduction, int64_t piece) {
  PIPER_CHECK(piece >= 1);
  const int64_t n = reduction.num_members(), member = reduction.steps.member();
  StepBuilder& steps = reduction.steps;
  // Everything that leaves is posted at once: an owner then never waits for a member that computes.
  for (int64_t distance = 1; distance < n; ++distance) {
    const int64_t owner = (member + distance) % n;
    uint32_t part = 0;
    for (const Block& sent : pieces_of(reduction.shares[owner], piece)) {
      steps.set_round(part);
      steps.send(owner, part++, sent);
    }
  }
  const std::vector<Block> own = pieces_of(reduction.own(), piece);
  std::vector<std::vector<Block>> slots;  // by slot and member
  std::vector<int32_t> sums;              // by piece
  for (size_t p = 0; p < own.size(); ++p) {
    steps.set_round(static_cast<int64_t>(p));
    if (p < kScatterSlots) {
      slots.emplace_back(n);
      for (int64_t m = 0; m < n; ++m)
        if (m != member) slots.back()[m] = steps.scratch(own[p].count);
    }
    std::vector<SumTerm> terms(n);
    terms[member].block = own[p];
    After emptied;
    if (p >= kScatterSlots) wait_for(emptied, sums[p - kScatterSlots]);
    for (int64_t distance = 1; distance < n; ++distance) {
      const int64_t from = (member - distance + n) % n;
      terms[from].block = slots[p % kScatterSlots][from];
      terms[from].block.count = own[p].count;
      terms[from].step = steps.receive(from, static_cast<uint32_t>(p), terms[from].block, emptied);
    }
    sums.push_back(add_in_order(steps, terms, member));
  }
  return steps.take();
}

}  // namespace

MemberSteps reduce_scatter_direct(int64_t member, int64_t num_members, int64_t count,
                                  int64_t piece) {
  return scatter({member, shares_by_number(num_members, count), count}, piece);
}

MemberSteps reduce_scatter_direct(int64_t member, std::span<const int64_t> counts, int64_t piece) {
  return scatter({member, shares_of(counts), sum_of(counts)}, piece);
}

}  // namespace piper::collective
