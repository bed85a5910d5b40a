// Loads a checkpoint into a rank of any mesh: each tensor is looked up by name in the shards of the mesh that saved it,
// and only the bytes that the rank needs are read, one tensor after the other, straight into place.
#pragma once

#include <piper/model/model.h>
#include <piper/train/manifest.h>
#include <piper/train/named_tensor.h>
#include <piper/train/safetensors_header.h>

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

namespace piper::train {

class CheckpointReader {
 public:
  // Reads the headers of all shards; no file stays open. The checkpoint comes from verify_checkpoint() or a search, so
  // its files are undamaged. Throws IoError; InvalidInput with every tensor that is in two shards.
  explicit CheckpointReader(FoundCheckpoint checkpoint);

  const FoundCheckpoint& checkpoint() const { return checkpoint_; }

  // Throws InvalidInput with every tensor of the model that is missing and every other one that is there: every expert
  // of every layer exactly once.
  void require_exactly(const model::Model& model) const;

  // Copies into `tensors`, bit by bit. Throws InvalidInput with every tensor that is missing or of another shape or
  // type (then nothing was read); IoError. Thread-safe.
  void read(const std::vector<NamedTensor>& tensors) const;

 private:
  struct Location {
    size_t file = 0;
    DType dtype = DType::kF32;
    std::vector<int64_t> shape;
  };

  FoundCheckpoint checkpoint_;
  std::unordered_map<std::string, Location> tensors_;
};

}  // namespace piper::train
