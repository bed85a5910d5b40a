// A collective as steps: what one member of a group sends, receives, copies and adds, and what each
// step waits for.
//
// One algorithm = one pair of files that writes the lists of all members from sizes alone: pure
// functions, no I/O, no ranks (members are numbered 0 .. n-1), no element type. comm/ executes a
// list on plain buffers, a price of it is a sum over the same list, and verify.h proves it for all
// members at once. Offsets and counts are in units of the caller's choice: bytes for an exchange,
// elements for a reduction.
#pragma once

#include <piper/base/short_list.h>

#include <cstdint>
#include <vector>

namespace piper::collective {

// The buffers of one member. A collective in place uses no kInput: its data lies in kOutput.
enum class Buffer : uint8_t { kInput, kOutput, kScratch };
inline constexpr int kNumBuffers = 3;

// A contiguous piece of a buffer.
struct Block {
  Buffer buffer = Buffer::kInput;
  int64_t offset = 0;
  int64_t count = 0;
};

enum class StepKind : uint8_t {
  kSend,     // source to `peer`
  kReceive,  // target from `peer`
  kCopy,     // target := source
  kAdd,  // target := target + source (addition of two floating-point numbers commutes; of three it
         // does not)
  kCopyRows,  // rows picked by number: row `to` of target := row `from` of source, for each pair
  kAddRows,   // the same, added to the target's row
};

// What a step waits for: indices of steps.
using After = ShortList<int32_t, 2>;

// A row is `MemberSteps::row_count` units; rows are counted from the start of the block.
struct RowPair {
  int32_t from = 0;  // in source
  int32_t to = 0;    // in target
};

struct Step {
  StepKind kind = StepKind::kSend;
  int32_t peer = -1;  // member; send and receive only
  // Tells apart several messages from one member to another: a send and its receive agree on it.
  uint32_t part = 0;
  // A message's send and receive agree on its round, which is greater than the round of every
  // message that the step comes after, at either end. Who cannot start messages in any order (a
  // stream) executes them round by round: stream_order.h. Numbers may be left out.
  int32_t round = 0;
  // kCopyRows and kAddRows handle the pairs [first_row, first_row + num_rows) of
  // MemberSteps::row_pairs. No target row stands in it twice. The blocks are what the pairs may
  // reach, not what they touch.
  int32_t first_row = 0;
  int32_t num_rows = 0;
  Block source;  // read by send, copy, add
  Block target;  // written by receive, copy, add (add also reads it)
  After after;   // smaller indices of the same list: start when these have finished
};

// What one member does. Steps whose `after` have finished may start in any order; the order of the
// list is the order of preference. Two steps that touch the same place, at least one of them
// writing, are ordered by `after`, so that the result does not depend on the order of starting or
// of arrival. A copy of nothing is a place where many steps meet: it waits for them, others for it.
struct MemberSteps {
  std::vector<Step> steps;
  int64_t input_count = 0;  // units in each buffer
  int64_t output_count = 0;
  int64_t scratch_count = 0;
  int64_t row_count = 0;  // units of a row; 0 where no step moves rows
  std::vector<RowPair> row_pairs;
};

}  // namespace piper::collective
