// Saving and loading the exact bits of a run.
//
//   rank 0 makes a CheckpointSave, every rank's thread writes its shard into it, and when all have, rank 0 commits:
//   shards synced -> manifest synced -> folder synced -> one rename -> parent synced. Until the rename nothing that was
//   there before is touched; a failure on any rank leaves no checkpoint and names the rank and the cause.
#pragma once

#include <piper/base/strong_id.h>
#include <piper/nn/stage.h>
#include <piper/train/manifest.h>
#include <piper/train/named_tensor.h>
#include <piper/train/optimizer.h>

#include <filesystem>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace piper::train {

// A rank's state: "parameter/<name>" for each parameter, and the optimizer's own. The same list saves and loads.
std::vector<NamedTensor> checkpoint_tensors(const std::vector<nn::Parameter>& parameters,
                                            const AdamW& optimizer);

class CheckpointSave {
 public:
  // Makes the temporary folder below `folder` (made when absent). Throws IoError.
  CheckpointSave(std::filesystem::path folder, CheckpointIdentity identity, TrainState state);
  ~CheckpointSave();  // removes the temporary folder unless committed
  CheckpointSave(const CheckpointSave&) = delete;
  CheckpointSave& operator=(const CheckpointSave&) = delete;

  // Thread-safe; once a rank. Never throws: a failure is kept, and commit() tells it.
  void write_shard(Rank rank, const std::vector<NamedTensor>& tensors) noexcept;

  // After every rank's write_shard: puts the checkpoint in place (in exchange for an older one of the same step) and
  // returns its path. Throws IoError naming every rank that failed or wrote nothing, with its cause; then the
  // temporary folder is gone and the older checkpoints are as they were.
  std::filesystem::path commit();

 private:
  void put_in_place() const;

  std::filesystem::path folder_, temporary_;
  Manifest manifest_;
  std::mutex mutex_;
  std::map<Rank, FileRecord> written_;
  std::map<Rank, std::string> failures_;
  bool committed_ = false;
};

// Copies a rank's shard into `tensors`, bit by bit. `manifest` comes from verify_checkpoint() or a search, so the file is
// undamaged. Throws InvalidInput with every tensor that is missing, superfluous, or of another shape or type; IoError.
void read_shard(const FoundCheckpoint& checkpoint, Rank rank,
                const std::vector<NamedTensor>& tensors);

}  // namespace piper::train
