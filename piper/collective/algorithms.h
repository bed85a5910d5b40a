// The closed list of exchanges from which executor, bench and planner choose: strategy::kAllToAlls.
// One function writes any of them, one says which counts its members must tell each other first.
// kHaloDedup is not among them: it moves tokens by their routes (halo_dedup.h, known_routes.h).
#pragma once

#include <piper/collective/halo.h>
#include <piper/collective/steps.h>
#include <piper/strategy/strategy.h>

#include <cstdint>
#include <vector>

namespace piper::collective {

using strategy::AllToAll;

// What an algorithm does not use it does not read.
struct AllToAllOptions {
  int64_t chunk = kUncut;                    // kHalo, kHaloSwitch: units of a message at most, >= 1
  int64_t window = 8;                        // kWindowed: sends in flight, >= 1
  PhaseOne phase_one = PhaseOne::kUnderTwo;  // kHaloPrinted, kHaloSwitch, kHalo, kThreeLevel
};

// What `member` does. Input: its rows for members 0, 1, ... back to back; output: those from
// members 0, 1, ...; `count` in the caller's units, bytes as a rule. Asks `count` for pairs
// (member, *), (*, member) and, of others' rows, for what CountsTold lists. All members must be
// given the same topology, algorithm, options and counts. kFlat alone sends messages of nothing,
// too. Throws InternalError naming the pair for a count that is negative or beyond 2^46.
MemberSteps all_to_all(AllToAll algorithm, int64_t member, const Topology& topology,
                       const CountOf& count, const AllToAllOptions& options = {});

// Who must tell whom which counts before an exchange can be written. A member knows its own row
// of counts, (member, *); every other count that it is asked for comes from the others:
//
//   member f tells member t:  count(f, x) for x in to_tell[t]      (t itself is always among them)
//
// Sizes are functions of topology and algorithm alone, so that this exchange of counts is an
// all-to-all whose counts everyone knows: executed by the same algorithm it costs no more messages
// than what it is for.
struct CountsTold {
  std::vector<std::vector<int32_t>> to_tell;  // [other]: targets whose count this member tells it
  std::vector<std::vector<int32_t>> to_hear;  // [other]: targets whose count it hears from it
};
CountsTold counts_told(AllToAll algorithm, int64_t member, const Topology& topology);

// Whether uneven counts ask for more than a member's own row and column.
bool forwards(AllToAll algorithm);

}  // namespace piper::collective
