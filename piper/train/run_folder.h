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

  // Makes and locks the folder, removes unfinished saves, and says so. Returns the checkpoint to go
  // on from; none where the run begins anew. Throws InvalidInput where something lies there that
  // the run may not replace; IoError.
  std::optional<checkpoint::FoundCheckpoint> open();
  // Once the run is sure to go on, after its first step: removes what --fresh asks for. Throws
  // IoError.
  void begin() const;
  // Before a save becomes visible. Throws IoError where the lock, or a folder that the run holds,
  // has been removed or replaced; InvalidInput where another run holds the folder of checkpoints.
  void check();

 private:
  void require_records() const;
  void remove_earlier_run() const;
  std::optional<checkpoint::FoundCheckpoint> find_checkpoint(
      const std::filesystem::path& checkpoints) const;

  const RunContext& run_;
  std::optional<RunLock> lock_;
};

}  // namespace piper::train
