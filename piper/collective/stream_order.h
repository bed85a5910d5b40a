// A member's steps as a programme for streams: queues that execute what is put into them one after
// another, such as those of a GPU under NCCL.
//
// Steps may start in any order that `after` allows, and a message that waits holds up nobody. On a
// stream what is behind waits, too, and messages go on together only where they are issued as one
// group. So the order is settled here, with two lanes:
//
//   messages   one group for each round (Step::round): all sends and receives of it together
//   local      copies, additions, moved rows, beside the groups
//
//   messages:  | group of round 0 |     | group of round 1 |      | group of round 2 | ...
//                                 '->      ^           '->          ^
//   local:              | copies of nothing but the input | what round 0 brought | ...
//
// A launch waits for the one before it in its lane and for one launch of the other lane, at most
// (an event). Local steps stand as early as the messages they need allow, those first that a
// message waits for.
//
// NCCL asks for exactly this: its p2p calls go on together within a group, and it is undefined what
// happens where the groups of two ranks do not match (its maintainers on NVIDIA/nccl#1279).
//
// Why members cannot wait for each other in a circle: both ends of a message have it in the same
// round, a group waits only for groups of smaller rounds, of its own member, and local steps wait
// for nobody else. By induction over rounds every group starts, and when all members have started
// round r, it ends. Everybody finds its programme from its own list alone. Groups of a round match
// each other as one exchange does.
//
// What stream order costs: a group ends when the last of its messages does, where a list would
// go on with those that are there. What is kept: all messages of a round are on the way together
// (chunked HALO: packet p + 1 crosses in the group in which packet p is handed on), and local steps
// run beside them. A window of sends does not slide; it moves on as a whole.
//
// Pure functions, thread-safe. A message of nothing is no message, as both sides know.
#pragma once

#include <piper/collective/steps.h>

#include <cstdint>
#include <vector>

namespace piper::collective {

enum class Lane : uint8_t { kMessages, kLocal };

// What is issued at once: the messages of a round as one group, or local steps one after another.
struct Launch {
  Lane lane = Lane::kMessages;
  int32_t first = 0;  // of StreamOrder::steps
  int32_t count = 0;
  int32_t waits_for = -1;   // a launch of the other lane, issued earlier; -1: none
  bool waited_for = false;  // by one of the other lane
};

struct StreamOrder {
  std::vector<Launch> launches;  // in the order of issuing
  // These index MemberSteps::steps, launch by launch; steps that move nothing are left out. In a
  // group the messages of a pair stand by ascending part: the k-th send meets the k-th receive.
  std::vector<int32_t> steps;
};

bool is_message(const Step& step);
bool moves(const Step& step);  // anything at all

// Throws InternalError when a step's round is not greater than that of a message it comes after.
StreamOrder stream_order(const MemberSteps& member);

int64_t num_groups(const StreamOrder& order);

}  // namespace piper::collective
