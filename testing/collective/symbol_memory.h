// One buffer of a member, holding symbols: pieces by offset.
#pragma once

#include <testing/collective/sums.h>

#include <cstdint>
#include <map>
#include <vector>

namespace piper::collective {

// Not thread-safe. Bounds are the caller's to check.
class SymbolMemory {
 public:
  void write(int64_t offset, const std::vector<Piece>& pieces);
  // [offset, offset + count) as pieces; label -1 where nobody wrote.
  std::vector<Piece> read(int64_t offset, int64_t count);
  // Whether any place was written more than once so far.
  bool overwritten();

 private:
  void settle();
  void place(int64_t offset, const Piece& piece);

  // Writes since the last read: where nothing is read before the end (an output), they are sorted
  // once.
  std::vector<std::pair<int64_t, Piece>> pending_;
  std::vector<std::pair<int64_t, Piece>> sorted_;  // all there is, while pieces_ is empty
  std::map<int64_t, Piece> pieces_;
  bool overwritten_ = false;
};

}  // namespace piper::collective
