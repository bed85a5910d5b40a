// All-reduce in place by direct messages: reduce-scatter, then all-gather. Twice (n-1)/n of the
// data leave and enter every member, as in a ring, in two rounds instead of 2(n-1).
//
// Member i owns one contiguous share. It receives the others' values of that share into scratch,
// adds all n of them in ascending order of members whatever the order of arrival, and sends the sum
// to everyone: the sum is the same to the bit on every member and in every run.
//
//   owner 2 of 4:   scratch: x0 x1 x3    output: x2
//                   x0 += x1   then   x2 += x0   (= (x0 + x1) + x2: addition commutes)   then   x2
//                   += x3
//
// The chain costs no copy. A share is worked on in pieces, so that scratch is small and stays in
// the cache: two slots, each of n - 1 pieces, one filling while the other is added.
#pragma once

#include <piper/collective/steps.h>

#include <cstdint>

namespace piper::collective {

// The share of `count` elements that `member` of `num_members` owns; the shares differ by one
// element at most.
Block reduce_share(int64_t member, int64_t num_members, int64_t count);

// Elements of a piece when a share is not cut.
inline constexpr int64_t kWholeShare = INT64_MAX;

// The steps of `member`, in units of elements. Every share is cut into pieces of `piece` elements
// (the last one may be shorter), the same for all members. Requires 0 <= member < num_members,
// count >= 0, piece >= 1.
MemberSteps all_reduce_direct(int64_t member, int64_t num_members, int64_t count,
                              int64_t piece = kWholeShare);

}  // namespace piper::collective
