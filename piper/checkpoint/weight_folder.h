// A folder of Hugging Face weights: model.safetensors, or its shards named by
// model.safetensors.index.json.
#pragma once

#include <piper/checkpoint/safetensors.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace piper::checkpoint {

class WeightFolder {
 public:
  struct Location {
    size_t file = 0;
    const TensorEntry* tensor = nullptr;
  };

  // Opens and checks every file. Throws IoError; InvalidInput with all problems: no weights (or
  // only pickles), a shard outside the folder ("../", absolute, by a link), a tensor that is not in
  // the shard the index names, or in two.
  explicit WeightFolder(std::filesystem::path folder);

  const std::filesystem::path& path() const { return folder_; }
  const std::map<std::string, Location>& tensors() const { return tensors_; }
  const TensorEntry* find(const std::string& name) const;  // nullptr = none

  // SHA-256 of the names of all files of weights and of their bytes; of files that are together
  // larger than `whole_bytes` of their sizes and 1,024 blocks of each instead. Throws IoError.
  std::string fingerprint(int64_t whole_bytes = int64_t{1} << 32) const;

  // As SafetensorsFile::read. `name` exists. Thread-safe.
  void read(const std::string& name, at::Tensor out, int64_t first_element = 0) const;

 private:
  std::filesystem::path folder_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, Location> tensors_;
};

}  // namespace piper::checkpoint
