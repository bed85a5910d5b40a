// Symbols for what lies in a buffer: elements of inputs, and sums of them in the order in which
// they were added. Runs of elements are one symbol, so that large exchanges are proven block by
// block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace piper::collective {

// `count` neighbouring elements: element first + i of what `label` stands for.
struct Piece {
  int64_t count = 0;
  int32_t label = -1;  // -1: nobody wrote it
  int64_t first = 0;
  bool operator==(const Piece&) const = default;
};

// Labels 0 .. n-1 stand for what members 0 .. n-1 hold at the start; every sum of two pieces gets a
// label of its own. Two pieces are equal exactly when the same additions made them, in the same
// order; x + y and y + x are the same, (x + y) + z and x + (y + z) are not.
class Sums {
 public:
  explicit Sums(int64_t num_members) : next_(static_cast<int32_t>(num_members)) {}
  // Requires equal counts.
  Piece add(Piece a, Piece b);

 private:
  struct Key {
    int32_t a, b;
    int64_t shift;
    bool operator==(const Key&) const = default;
  };
  struct Hash {
    size_t operator()(const Key& key) const;
  };
  int32_t next_;
  std::unordered_map<Key, int32_t, Hash> labels_;
};

}  // namespace piper::collective
