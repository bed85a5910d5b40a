// A small run to save in tests: ranks with a few parameters, some steps into training.
#pragma once

#include <piper/checkpoint/checkpoint.h>
#include <piper/optim/optimizer.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

namespace piper::checkpoint {

inline CheckpointIdentity identity(int64_t world) {
  return {.model = "small",
          .fingerprint = "f",
          .mesh = {.pp = 1, .ep = 1, .dp = world},
          .layers_per_stage = {2}};
}

// One rank's parameters and optimizer, some steps into training. Names are the rank's own: none is
// a replica.
struct RankState {
  int64_t rank;
  std::vector<nn::Parameter> parameters;
  optim::AdamW optimizer;

  static std::vector<nn::Parameter> make(int64_t rank, at::ScalarType dtype) {
    const auto parameter = [&](const char* name, at::IntArrayRef shape) {
      return nn::Parameter{.name = std::to_string(rank) + name,
                           .value = at::randn(shape, dtype),
                           .gradient = at::randn(shape, dtype)};
    };
    return {parameter(".embed_tokens.weight", {16, 8}), parameter(".norm.weight", {8}),
            parameter(".experts", {3, 5, 7})};
  }
  explicit RankState(int64_t of_rank, uint64_t seed = 1, at::ScalarType dtype = at::kFloat)
      : rank(of_rank),
        parameters((at::manual_seed(seed), make(of_rank, dtype))),
        optimizer(parameters, {}) {
    for (int i = 0; i < 3; ++i) optimizer.step(0.01);
  }
  std::vector<nn::NamedTensor> tensors() const {
    std::vector<nn::NamedTensor> tensors = optimizer.state();
    if (rank != 0) tensors.pop_back();  // the number of steps
    for (const nn::Parameter& parameter : parameters)
      tensors.push_back({"parameter/" + parameter.name, parameter.value});
    return tensors;
  }
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

inline std::vector<RankState> some_ranks(int64_t num_ranks) {
  std::vector<RankState> ranks;
  for (int64_t i = 0; i < num_ranks; ++i) ranks.emplace_back(i, static_cast<uint64_t>(i));
  return ranks;
}

inline std::vector<std::string> entries(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace piper::checkpoint
