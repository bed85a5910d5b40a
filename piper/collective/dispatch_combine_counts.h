// Which counts the members of an exchange tell each other so that it can be written in both
// directions: out by count(f, t), and back by count'(t, f) = count(f, t), as the dispatch and the
// combine of a mixture layer are.
//
//   out    member m needs count(f, x) of members x that it stands for (counts_told of algorithms.h)
//   back   it needs count'(f, x) = count(x, f): x, who knows its own row, tells it
//
// Its own row and what others have for itself every member knows anyway: they are not listed.
#pragma once

#include <piper/collective/algorithms.h>

#include <cstdint>
#include <vector>

namespace piper::collective {

class DispatchCombineCounts {
 public:
  // O(members^2) for algorithms that forward, nothing for others.
  DispatchCombineCounts(AllToAll algorithm, int64_t member, const Topology& topology);

  bool empty() const { return to_tell_.empty(); }
  // Members y, ascending, for which this member tells `other` count(member, y); and of which it
  // hears count(other, y). Both ends list the same.
  const std::vector<int32_t>& to_tell(int64_t other) const { return to_tell_[other]; }
  const std::vector<int32_t>& to_hear(int64_t other) const { return to_hear_[other]; }

 private:
  std::vector<std::vector<int32_t>> to_tell_, to_hear_;
};

}  // namespace piper::collective
