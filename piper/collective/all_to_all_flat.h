// All-to-all with uneven counts, flat: one message for every pair, everything posted at once.
//
// Member i sends to i+1, i+2, ... (modulo n), so that no member is hit by all the others first; its
// own part is copied. A zero count is a message like any other: the structure does not depend on
// the counts, and a disagreement between two members is found instead of hanging.
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
