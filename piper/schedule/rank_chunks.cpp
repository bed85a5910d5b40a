#include <piper/schedule/action.h>
#include <piper/schedule/rank_chunks.h>

#include <algorithm>
#include <numeric>

namespace piper::schedule {

std::vector<RankChunk> chunks_of(const strategy::Strategy& s, int64_t pp_rank) {
  std::vector<RankChunk> chunks;
  for (int64_t chunk = 0; chunk < s.mesh.vpp; ++chunk) {
    const int64_t stage = virtual_stage(s.schedule, s.mesh.pp, pp_rank, chunk);
    chunks.push_back(
        {.stage = stage,
         .first_layer = static_cast<int32_t>(strategy::first_layer(s, stage)),
         .num_layers = static_cast<int32_t>(s.layers_per_stage[static_cast<size_t>(stage)]),
         .is_first = stage == 0,
         .is_last = stage == s.mesh.num_virtual_stages() - 1});
  }
  return chunks;
}

std::vector<int32_t> state_layers(const model::Model& model, const strategy::Strategy& s,
                                  const RankChunk& chunk, bool has_modules) {
  constexpr int32_t kEmbedding = -1, kHead = -2;
  std::vector<int32_t> layers;
  if (chunk.is_first) layers.push_back(kEmbedding);
  for (int32_t i = 0; i < chunk.num_layers; ++i) layers.push_back(chunk.first_layer + i);
  if (!chunk.is_last) return layers;
  layers.push_back(kHead);
  if (!has_modules || model.mtp_depth == 0) return layers;
  if (model.copies_embedding() && strategy::ends_apart(s)) layers.push_back(kEmbedding);
  for (int64_t i = 0; i < model.mtp_depth; ++i)
    layers.push_back(static_cast<int32_t>(model.num_layers() + i));
  return layers;
}

bool holds_an_end(const strategy::Strategy& s, int64_t pp_rank) {
  return std::ranges::any_of(chunks_of(s, pp_rank),
                             [](const RankChunk& c) { return c.is_first || c.is_last; });
}

bool holds_layer(const strategy::Strategy& s, int64_t pp_rank, int32_t layer) {
  const int64_t num_layers =
      std::accumulate(s.layers_per_stage.begin(), s.layers_per_stage.end(), int64_t{0});
  return std::ranges::any_of(chunks_of(s, pp_rank), [&](const RankChunk& c) {
    const bool is_own = layer >= c.first_layer && layer < c.first_layer + c.num_layers;
    return is_own || (c.is_last && layer >= num_layers);
  });
}

}  // namespace piper::schedule
