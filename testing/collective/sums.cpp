#include <testing/collective/sums.h>

#include <utility>

namespace piper::collective {

size_t Sums::Hash::operator()(const Key& key) const {
  auto hash = static_cast<uint64_t>(key.a) * 0x9e3779b97f4a7c15ULL;
  hash = (hash ^ static_cast<uint64_t>(key.b)) * 0xbf58476d1ce4e5b9ULL;
  hash = (hash ^ static_cast<uint64_t>(key.shift)) * 0x94d049bb133111ebULL;
  return hash ^ (hash >> 31);
}

Piece Sums::add(Piece a, Piece b) {
  if (b.label < a.label || (b.label == a.label && b.first < a.first)) std::swap(a, b);
  const auto [place, is_new] = labels_.try_emplace({a.label, b.label, b.first - a.first}, next_);
  if (is_new) ++next_;
  return {a.count, place->second, a.first};
}

}  // namespace piper::collective
