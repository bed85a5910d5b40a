// All-reduce in place over nodes: reduce_scatter_hierarchical, then all_gather_hierarchical. R
// times fewer bytes cross than directly, in four hops.
//
// Who owns which share is free here, so the shares are dealt by place first and node second: what a
// member carries for its counterparts is then one piece, and one message goes to each other member
// of the node (even nodes).
//
//   2 nodes of 2:   | a0 | b0 | a1 | b1 |     a0 carries the first half in its node, a1 the second
//
// Every member has the same sum to the bit, in every run: by ascending member in a node, then by
// ascending node. Scratch as in the reduce-scatter.
#pragma once

#include <piper/collective/steps.h>
#include <piper/collective/topology.h>

#include <algorithm>
#include <cstdint>

namespace piper::collective {

MemberSteps all_reduce_hierarchical(int64_t member, const Topology& topology, int64_t count);

// Long buffers are summed in even pieces of at most so many elements, so that scratch stays small
// and one piece crosses while another is added inside.
inline constexpr int64_t kReductionPiece = int64_t{1} << 20;
inline int64_t num_reduction_pieces(int64_t count) {
  return std::max<int64_t>(1, (count + kReductionPiece - 1) / kReductionPiece);
}
// Elements before piece i of `num`.
inline int64_t reduction_piece_begin(int64_t count, int64_t i, int64_t num) {
  return count / num * i + std::min(i, count % num);
}

}  // namespace piper::collective
