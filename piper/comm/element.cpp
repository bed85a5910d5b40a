#include <piper/base/error.h>
#include <piper/comm/element.h>

#include <bit>
#include <cmath>

namespace piper::comm {
namespace {

template <class T>
void add_as(std::span<std::byte> target, std::span<const std::byte> source) {
  PIPER_CHECK(reinterpret_cast<uintptr_t>(target.data()) % alignof(T) == 0 &&
              reinterpret_cast<uintptr_t>(source.data()) % alignof(T) == 0);
  T* __restrict to = reinterpret_cast<T*>(target.data());
  const T* __restrict from = reinterpret_cast<const T*>(source.data());
  const size_t count = target.size() / sizeof(T);
  for (size_t i = 0; i < count; ++i) to[i] = to[i] + from[i];
}

// The upper half of a float.
float widened(uint16_t value) { return std::bit_cast<float>(uint32_t{value} << 16); }

// To the nearest, ties to even; what is no number stays none.
uint16_t narrowed(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

void add_narrow(std::span<std::byte> target, std::span<const std::byte> source) {
  PIPER_CHECK(reinterpret_cast<uintptr_t>(target.data()) % alignof(uint16_t) == 0 &&
              reinterpret_cast<uintptr_t>(source.data()) % alignof(uint16_t) == 0);
  auto* __restrict to = reinterpret_cast<uint16_t*>(target.data());
  const auto* __restrict from = reinterpret_cast<const uint16_t*>(source.data());
  const size_t count = target.size() / sizeof(uint16_t);
  for (size_t i = 0; i < count; ++i) to[i] = narrowed(widened(to[i]) + widened(from[i]));
}

}  // namespace

int64_t size_of(Element element) {
  switch (element) {
    case Element::kFloat32:
      return 4;
    case Element::kFloat64:
    case Element::kInt64:
      return 8;
    case Element::kBFloat16:
      return 2;
  }
  return 0;
}

void add(Element element, std::span<std::byte> target, std::span<const std::byte> source) {
  PIPER_CHECK(target.size() == source.size() && target.size() % size_of(element) == 0);
  switch (element) {
    case Element::kFloat32:
      return add_as<float>(target, source);
    case Element::kFloat64:
      return add_as<double>(target, source);
    case Element::kInt64:
      return add_as<uint64_t>(target, source);  // unsigned: overflow wraps, the bits are the same
    case Element::kBFloat16:
      return add_narrow(target, source);
  }
}

}  // namespace piper::comm
