// Exchanges that go by way of others, in stages: what all of them share.
//
// In every stage a member sends one bundle to each of some peers: the rows of `sources` for
// `targets`, target by target. Where a bundle's rows lie next to each other it goes straight from
// there; otherwise they are packed. A bundle whose rows are all for the receiver and lie next to
// each other in its output arrives there; otherwise it arrives in scratch, stays, and the next
// stage (or the copy to the output) takes its rows from it.
//
//   bundle {0 1} x {4 5}:   | 0->4 | 1->4 | 0->5 | 1->5 |
//
// An algorithm is then a list of bundles. What a member receives from a peer in a stage must be
// exactly what that peer sends it: both derive it from topology and counts.
#pragma once

#include <piper/collective/halo.h>
#include <piper/collective/steps.h>

#include <cstdint>
#include <span>
#include <vector>

namespace piper::collective {

inline std::vector<int32_t> to_vector(std::span<const int32_t> members) {
  return {members.begin(), members.end()};
}

struct Bundle {
  int64_t peer = 0;  // the member itself: its rows move only where the stage always packs
  std::vector<int32_t> sources, targets;
};

struct Stage {
  std::vector<Bundle> in, out;
  bool waits_for_all = false;  // of the stage before, in both directions
  bool always_packs = false;
  bool always_unpacks = false;  // arrives in scratch even where the output would do
};

struct StagedExchange {
  std::vector<Stage> stages;
  Stage inside;                              // phase I: executes beside them
  PhaseOne phase_one = PhaseOne::kUnderTwo;  // beside the first of them, or beside the last
};

// Asks for counts (member, *), (*, member) and those of every bundle.
MemberSteps staged_exchange(int64_t member, int64_t num_members, const CountOf& count,
                            const StagedExchange& exchange);

// Phase I, straight: the others of the member's unit.
Stage inside_unit(int64_t member, const Units& units);

}  // namespace piper::collective
