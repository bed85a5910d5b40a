#include <piper/base/error.h>
#include <piper/comm/element.h>

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

}  // namespace

int64_t size_of(Element element) {
  switch (element) {
    case Element::kFloat32:
      return 4;
    case Element::kFloat64:
    case Element::kInt64:
      return 8;
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
  }
}

}  // namespace piper::comm
