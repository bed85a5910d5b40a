// A small run to save in tests: ranks with a few parameters, some steps into training.
#pragma once

#include <piper/train/checkpoint.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

namespace piper::train {

inline CheckpointIdentity identity(int64_t world) {
  return {.model = "small",
          .fingerprint = "f",
          .mesh = {.pp = 1, .ep = 1, .dp = world},
          .layers_per_stage = {2}};
}

// One rank's parameters and optimizer, some steps into training.
struct RankState {
  std::vector<nn::Parameter> parameters;
  AdamW optimizer;

  static std::vector<nn::Parameter> make(at::ScalarType dtype) {
    const auto parameter = [&](const char* name, at::IntArrayRef shape) {
      return nn::Parameter{
          .name = name, .value = at::randn(shape, dtype), .gradient = at::randn(shape, dtype)};
    };
    return {parameter("model.embed_tokens.weight", {16, 8}), parameter("model.norm.weight", {8}),
            parameter("experts", {3, 5, 7})};
  }
  explicit RankState(uint64_t seed, at::ScalarType dtype = at::kFloat)
      : parameters((at::manual_seed(seed), make(dtype))), optimizer(parameters, {}) {
    for (int i = 0; i < 3; ++i) optimizer.step(0.01);
  }
  std::vector<NamedTensor> tensors() const { return checkpoint_tensors(parameters, optimizer); }
};

inline std::filesystem::path save(const std::filesystem::path& folder, int64_t step,
                                  const std::vector<RankState>& ranks) {
  CheckpointSave save(
      folder, identity(static_cast<int64_t>(ranks.size())),
      {.step = step, .seed = 5, .text_fingerprint = "t", .extra = {{"note", "kept"}}});
  std::vector<std::thread> threads;
  for (size_t i = 0; i < ranks.size(); ++i)
    threads.emplace_back(
        [&, i] { save.write_shard(Rank(static_cast<int64_t>(i)), ranks[i].tensors()); });
  for (std::thread& thread : threads) thread.join();
  return save.commit();
}

inline std::vector<std::string> entries(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace piper::train
