#include <testing/collective/symbol_memory.h>

#include <algorithm>

namespace piper::collective {
namespace {

bool before(const std::pair<int64_t, Piece>& a, const std::pair<int64_t, Piece>& b) {
  return a.first < b.first;
}

// The part [from, to) of a piece that lies at `offset`.
Piece cut(const Piece& piece, int64_t offset, int64_t from, int64_t to) {
  const int64_t begin = std::max(offset, from), end = std::min(offset + piece.count, to);
  return {end - begin, piece.label, piece.label < 0 ? 0 : piece.first + (begin - offset)};
}

// Appends the parts of pieces in [from, to), with what is missing between them.
template <class Iterator>
std::vector<Piece> covering(Iterator first, Iterator last, int64_t from, int64_t to) {
  std::vector<Piece> found;
  int64_t at = from;
  for (; first != last && first->first < to; ++first) {
    if (first->first > at) found.push_back({first->first - at});
    found.push_back(cut(first->second, first->first, at, to));
    at = first->first + first->second.count;
  }
  if (at < to) found.push_back({to - at});
  return found;
}

// The first of sorted pieces that ends behind `offset`.
template <class Container, class Find>
auto reaching(Container& pieces, int64_t offset, const Find& upper_bound) {
  auto place = upper_bound(offset);
  if (place != pieces.begin() && std::prev(place)->first + std::prev(place)->second.count > offset)
    --place;
  return place;
}

}  // namespace

void SymbolMemory::write(int64_t offset, const std::vector<Piece>& pieces) {
  for (const Piece& piece : pieces) {
    if (piece.count > 0) pending_.emplace_back(offset, piece);
    offset += piece.count;
  }
}

// A few pieces at a time go into the map; all at once, and nothing before, are sorted.
void SymbolMemory::settle() {
  constexpr size_t kMany = 64;
  if (pending_.empty()) return;
  if (sorted_.empty() && pieces_.empty() && pending_.size() >= kMany) {
    std::vector<std::pair<int64_t, Piece>> sorted = pending_;
    std::stable_sort(sorted.begin(), sorted.end(), before);
    const auto overlap = std::adjacent_find(sorted.begin(), sorted.end(), [](auto& a, auto& b) {
      return a.first + a.second.count > b.first;
    });
    if (overlap == sorted.end()) {
      sorted_ = std::move(sorted);
      pending_ = {};
      return;
    }
  }
  for (const auto& [offset, piece] : sorted_) pieces_.emplace_hint(pieces_.end(), offset, piece);
  sorted_ = {};
  for (const auto& [offset, piece] : pending_) place(offset, piece);
  pending_.clear();
}

void SymbolMemory::place(int64_t offset, const Piece& piece) {
  const int64_t end = offset + piece.count;
  auto next = reaching(pieces_, offset, [&](int64_t at) { return pieces_.upper_bound(at); });
  while (next != pieces_.end() && next->first < end) {
    overwritten_ = true;
    const auto [at, old] = *next;
    next = pieces_.erase(next);
    if (at < offset) pieces_.emplace(at, cut(old, at, at, offset));
    if (at + old.count > end) next = pieces_.emplace(end, cut(old, at, end, at + old.count)).first;
  }
  pieces_.emplace_hint(next, offset, piece);
}

std::vector<Piece> SymbolMemory::read(int64_t offset, int64_t count) {
  if (count == 0) return {};
  settle();
  if (pieces_.empty()) {
    const auto first = reaching(sorted_, offset, [&](int64_t at) {
      return std::upper_bound(sorted_.begin(), sorted_.end(), std::pair{at, Piece{}}, before);
    });
    return covering(first, sorted_.end(), offset, offset + count);
  }
  const auto first = reaching(pieces_, offset, [&](int64_t at) { return pieces_.upper_bound(at); });
  return covering(first, pieces_.end(), offset, offset + count);
}

bool SymbolMemory::overwritten() {
  settle();
  return overwritten_;
}

}  // namespace piper::collective
