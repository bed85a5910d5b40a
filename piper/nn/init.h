// Initial weights as a function of (seed, Hugging Face name, element index): no state, no order, so
// every mesh and every number of ranks starts with the same model.
//
// Element pair (2i, 2i + 1) of tensor `name`: Philox4x32-10 (Salmon et al., "Parallel random
// numbers: as easy as 1, 2, 3", SC 2011) with key = seed and counter = (i, FNV-1a of the name)
// gives 128 bits; Box-Muller turns them into two normals in fp64, which are then cast (normal.h).
// A CUDA device fills by a kernel of its own: the same numbers but for its logarithm and cosine.
#pragma once

#include <piper/nn/aten.h>
#include <piper/nn/normal.h>
#include <piper/nn/tensor_part.h>

#include <cstdint>
#include <optional>
#include <string_view>

namespace piper::nn {

// target := normal(0, range), element index = row-major index within the named tensor, of which
// target (which may be a strided view, on any device) is this part: all of it, or what a rank
// holds.
void fill_normal(at::Tensor target, uint64_t seed, std::string_view name, double range,
                 const std::optional<TensorPart>& part = {});

}  // namespace piper::nn
