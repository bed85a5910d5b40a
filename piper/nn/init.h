// Initial weights as a function of (seed, Hugging Face name, element index): no state, no order, so
// every mesh and every number of ranks starts with the same model.
//
// Element pair (2i, 2i + 1) of tensor `name`: Philox4x32-10 (Salmon et al., "Parallel random
// numbers: as easy as 1, 2, 3", SC 2011) with key = seed and counter = (i, FNV-1a-64 of the name)
// gives 128 bits; Box-Muller turns them into two normals in fp64, which are then cast.
#pragma once

#include <piper/nn/aten.h>
#include <piper/nn/tensor_part.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace piper::nn {

using Philox = std::array<uint32_t, 4>;
Philox philox(Philox counter, std::array<uint32_t, 2> key);

// FNV-1a, 64 bits.
uint64_t name_hash(std::string_view name);

// Standard normals 2 * pair and 2 * pair + 1 of the tensor.
std::array<double, 2> normal_pair(uint64_t seed, uint64_t hashed_name, uint64_t pair);

// target := normal(0, range), element index = row-major index within the named tensor, of which
// target (which may be a strided view, on any device) is this part: all of it, or what a rank
// holds.
void fill_normal(at::Tensor target, uint64_t seed, std::string_view name, double range,
                 const std::optional<TensorPart>& part = {});

}  // namespace piper::nn
