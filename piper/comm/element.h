// Elements of a reduction on plain buffers.
#pragma once

#include <piper/comm/operations.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace piper::comm {

int64_t size_of(Element element);  // bytes

// target[i] := target[i] + source[i], in the elements' own precision (bf16: rounded to the nearest
// once). int64 wraps. Requires equal sizes, whole elements, aligned and disjoint buffers.
void add(Element element, std::span<std::byte> target, std::span<const std::byte> source);

}  // namespace piper::comm
