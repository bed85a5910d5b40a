// Loads a checkpoint into a rank of any mesh: each tensor is looked up by name in the shards of the
// mesh that saved it, and only what the rank needs is read, one tensor after the other: straight
// into place where a shard holds just that; else what shards hold of the tensor is read and hashed
// one after the other, and the rank's part copied out of it.
#pragma once

#include <piper/base/error.h>
#include <piper/checkpoint/checkpoint_folder.h>
#include <piper/checkpoint/safetensors_header.h>
#include <piper/model/model.h>
#include <piper/nn/named_tensor.h>

#include <cstdint>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

namespace piper::checkpoint {

class CheckpointReader {
 public:
  // Reads the headers of all shards; no file stays open. The checkpoint comes from a
  // search, so its files are undamaged. Throws IoError; InvalidInput with every tensor of which an
  // element is in two shards.
  explicit CheckpointReader(FoundCheckpoint checkpoint);

  const FoundCheckpoint& checkpoint() const { return checkpoint_; }

  // Throws InvalidInput with every tensor of the model that is missing and every other one that is
  // there: every element of every expert of every layer exactly once.
  void require_exactly(const model::Model& model) const;

  // Copies into `tensors`, bit by bit, and hashes each where it has arrived: other processes than
  // the one that verified the checkpoint read it over their own path to the disk. Throws
  // InvalidInput with every tensor that is missing or of another shape or type (then nothing was
  // read); IoError, naming `reader` ("rank 3 on node7"), file and tensor, when other bytes arrived
  // than were saved. If the manifest has no hashes of tensors, each file is hashed once before it
  // is read. Thread-safe.
  void read(const std::vector<nn::NamedTensor>& tensors,
            const std::string& reader = "this process") const;

  // The weights alone, whole, under their Hugging Face names and in the type in which they were
  // saved. Throws as read() does; InvalidInput where one is missing.
  std::vector<nn::NamedTensor> weights(const model::Model& model) const;

 private:
  void hash_once(size_t file, const std::string& reader) const;

  // A tensor of a file: all of a tensor of the model, or a part.
  struct Location {
    size_t file = 0;
    std::string name;  // there
    DType dtype = DType::kF32;
    nn::TensorPart part;
  };
  // By what the rank wants of it.
  struct Wanted {
    const nn::NamedTensor* tensor = nullptr;
    const Location* location = nullptr;
    std::vector<nn::Overlap> overlaps;  // of the tensor's part with the location's
    bool is_same() const;               // just what the rank wants
  };
  void check_once(const std::string& name, const std::vector<Location>& locations,
                  Problems& problems) const;

  FoundCheckpoint checkpoint_;
  std::unordered_map<std::string, std::vector<Location>> tensors_;
  mutable std::mutex mutex_;
  mutable std::set<size_t> hashed_;  // files, by index
};

}  // namespace piper::checkpoint
