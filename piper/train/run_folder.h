// The folder of a run, as process 0 opens it.
#pragma once

#include <piper/checkpoint/checkpoint_folder.h>
#include <piper/train/run_context.h>
#include <piper/train/run_lock.h>

#include <filesystem>
#include <optional>

namespace piper::train {

// Throws InvalidInput where the folder holds checkpoints and a run is to begin in it.
void refuse_earlier_run(const std::filesystem::path& folder);

// Process 0's, one thread. Holds the folder's lock while it lives.
class RunFolder {
 public:
  explicit RunFolder(const RunContext& run) : run_(run) {}

  // Makes and locks the folder, removes what the request and unfinished saves ask for, and says so.
  // Returns the checkpoint to go on from; none where the run begins anew. Throws InvalidInput,
  // IoError.
  std::optional<checkpoint::FoundCheckpoint> open();

 private:
  void remove_earlier_run() const;
  std::optional<checkpoint::FoundCheckpoint> find_checkpoint(
      const std::filesystem::path& checkpoints) const;

  const RunContext& run_;
  std::optional<RunLock> lock_;
};

}  // namespace piper::train
