// What Megatron-LM and NeMo share, since both run Megatron Core.
#pragma once

#include <piper/export/export.h>

#include <cstdint>
#include <string>
#include <vector>

namespace piper::exporting {

// "Et*11|t*13|t*13|t*11L": the layers of each stage, where they are not the even split that
// Megatron makes by itself (the layers divided by the stages without a remainder); "" where they
// are. Layers of every chunk of an interleaved schedule whose chunks are equal; 0 otherwise (the
// layout says it).
int64_t layers_per_chunk(const model::Model& model, const strategy::Strategy& strategy);

std::string pipeline_layout(const model::Model& model, const strategy::Strategy& strategy);

// Which modules selective recomputation names; empty for none and full.
std::vector<std::string> recompute_modules(const model::Model& model,
                                           const strategy::Strategy& strategy);

// Its word for what goes beyond a capacity.
const char* drop_policy(const strategy::Capacity& capacity);

}  // namespace piper::exporting
