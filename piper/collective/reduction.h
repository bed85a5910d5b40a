// What reductions share. They execute in place: the output of every member holds `count` elements
// at the start, cut into one share a member (all_reduce_direct.h: reduce_share).
//
//   reduce-scatter   afterwards a member's own share is the sum over members; what lies in other
//                    shares is not said
//   all-gather       a member's own share is what counts at the start; afterwards everyone has all
//   all-reduce       the one, then the other
#pragma once

#include <piper/collective/all_reduce_direct.h>
#include <piper/collective/step_builder.h>

#include <cstdint>
#include <span>
#include <vector>

namespace piper::collective {

// The list of one member while it is written.
struct Reduction {
  Reduction(int64_t member, std::vector<Block> shares, int64_t count);
  int64_t num_members() const { return static_cast<int64_t>(shares.size()); }
  const Block& own() const { return shares[steps.member()]; }

  StepBuilder steps;
  std::vector<Block> shares;  // by member
  std::vector<After> free;    // by share: when its place may be written by an all-gather
  After ready;                // when the own share is what it shall be
};

// By member: reduce_share.
std::vector<Block> shares_by_number(int64_t num_members, int64_t count);
// By member, of these sizes, back to back; and how much that is.
std::vector<Block> shares_of(std::span<const int64_t> counts);
int64_t sum_of(std::span<const int64_t> counts);

// An all-gather straight after, on the places that the reduce-scatter has left.
void write_reduce_scatter_hierarchical(Reduction& reduction, const Units& nodes);
void write_all_gather_hierarchical(Reduction& reduction, const Units& nodes);

// A term of a sum: where it lies, and the step after which it does (-1: from the start).
struct SumTerm {
  Block block;
  int32_t step = -1;
};
// ((term 0 + term 1) + term 2) + ..., left where the own term lies, without a copy: terms before it
// are added up in the place of the first, which may be written. The step after which it stands
// there; -1 for an empty sum or a single term.
int32_t add_in_order(StepBuilder& steps, const std::vector<SumTerm>& terms, size_t own);

}  // namespace piper::collective
