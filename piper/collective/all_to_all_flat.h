// All-to-all with uneven counts, flat: one message for every pair, everything posted at once.
//
// Member i sends to i+1, i+2, ... (modulo n), so that no member is hit by all the others first; its
// own part is copied. A pair without units has no message: both sides know the count.
//
//   member 1 of 3      input   | for 0 | for 1  | for 2 |
//                                  |       |copy     |
//                      sent       2nd      v       1st
//                      output  | of 0  | of 1   | of 2  |
//
// Nodes are not looked at: members of one node reach for the next node's first NIC together
// (node-aware order does not).
#pragma once

#include <piper/collective/steps.h>

#include <cstdint>
#include <span>

namespace piper::collective {

// The steps of `member`. send_counts[j] units go to member j, taken from the input back to back;
// receive_counts[j] come from member j and land in the output back to back. Requires: as many
// counts as members, none negative, both counts for `member` itself equal.
MemberSteps all_to_all_flat(int64_t member, std::span<const int64_t> send_counts,
                            std::span<const int64_t> receive_counts);

}  // namespace piper::collective
