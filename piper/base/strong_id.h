// Integers that cannot be mixed up: a rank is not an expert, a task is not a slot.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace piper {

// A strong integer. Value-initialised to 0; -1 is the conventional "none" (see valid()).
template <class Tag>
struct StrongId {
  int32_t value = 0;

  constexpr StrongId() = default;
  constexpr explicit StrongId(int64_t v) : value(static_cast<int32_t>(v)) {}

  constexpr bool valid() const { return value >= 0; }
  constexpr size_t index() const { return static_cast<size_t>(value); }
  constexpr auto operator<=>(const StrongId&) const = default;

  static constexpr StrongId none() { return StrongId(-1); }
};

// A member of the world, 0 .. world_size-1.
using Rank = StrongId<struct RankTag>;

}  // namespace piper

template <class Tag>
struct std::hash<piper::StrongId<Tag>> {
  size_t operator()(const piper::StrongId<Tag>& id) const noexcept {
    return std::hash<int32_t>{}(id.value);
  }
};
