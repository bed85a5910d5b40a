// Rotary position embedding (Su et al. 2021): angles with the scalings that long-context
// checkpoints use, and the turning of queries and keys.
#pragma once

#include <piper/model/model.h>
#include <piper/nn/aten.h>

#include <cstdint>
#include <vector>

namespace piper::nn {

// [positions, half]; half * 2 elements of a head are rotated.
struct RopeTable {
  at::Tensor cosine, sine;
  bool interleaved = false;  // pairs (2i, 2i + 1) instead of (i, i + half)
};

// Radians a position, for each of rotated / 2 pairs: theta^(-2 i / rotated), then scaled:
//   linear  divided by the factor
//   llama3  long wavelengths divided by the factor, short ones kept, blended between (Llama 3.1)
//   yarn    blended by a ramp over the pairs between beta_fast and beta_slow turns (Peng et al. 2023, section 3.2)
// Throws InvalidInput for the scalings that follow the length of the text (dynamic, longrope).
std::vector<double> rope_frequencies(const model::Rope& rope, int64_t rotated);

// What cosine and sine are multiplied by: 1, or yarn's attention factor (mscale of DeepSeek-V2,
// section 3.1.4).
double rope_attention_factor(const model::Rope& rope);
// What the scores of a latent attention are multiplied by besides 1 / sqrt(head): mscale_all_dim's
// square.
double rope_score_factor(const model::Rope& rope);

// rotated = the even part of head_dim * partial_factor; angles in fp64.
RopeTable make_rope_table(int64_t positions, int64_t head_dim, const model::Rope& rope,
                          at::ScalarType dtype, at::Device device);

}  // namespace piper::nn
