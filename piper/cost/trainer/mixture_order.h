// How long the parts of a mixture layer's pass take together, as this Piper's programs order them
// (schedule/moe_layer/): in one piece, or in chunks of a rank's rows.
//
//   exchange       there 1 | there 2 | ...            | back 1 | back 2 | ...
//   collectives            | in 1    | in 2 ...   sum 1 | sum 2 ...     | out 1 | out 2 ...
//   compute        beside  | experts 1 | experts 2 | ...
//
// A chunk's parts follow one another; each of the three does one thing at a time. What starts up
// costs every chunk as much as it costs the whole. Pure functions, thread-safe.
#pragma once

#include <piper/cost/gradient_reduction_overlap.h>

#include <cstdint>
#include <vector>

namespace piper::cost {

// Seconds of each part alone, of all chunks together: `transfer` of a collective is divided among
// the chunks, its `latency` is that of each. `experts` counts what smaller products cost.
struct MixtureParts {
  int64_t num_chunks = 1;
  CommTime there, in, sum, back, out;
  // By chunk, where exchanges are not equal parts of `there` and `back` (groups of peers); else
  // empty.
  std::vector<CommTime> there_of_chunk = {}, back_of_chunk = {};
  double experts = 0;
  double beside = 0;  // of compute that needs nothing of these: shared experts
  // Whether exchanges and the other collectives need the whole of the same link.
  bool is_one_link = false;
};

// The time of all chunks, one after the other.
CommTime of_chunks(const CommTime& whole, int64_t num_chunks);
CommTime of_chunks(const std::vector<CommTime>& chunks);

// Whether two collectives that travel at once need more of a level than there is.
bool need_one_link(const LevelUtilization& one, const LevelUtilization& other);

// From the first dispatch until the last rows are there.
double seconds_together(const MixtureParts& parts);

}  // namespace piper::cost
