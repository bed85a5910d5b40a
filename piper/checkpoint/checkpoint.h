// One checkpoint on its way to the disk.
//
//   shards written and synced -> manifest synced -> folder synced -> one rename -> parent synced
//
// Until the rename nothing that was there before is touched; a failure on any rank leaves no
// checkpoint and names the rank and the cause. What goes into the shards: checkpoint_state.h; how
// training goes on meanwhile: checkpoint_writer.h.
#pragma once

#include <piper/base/strong_id.h>
#include <piper/checkpoint/manifest.h>
#include <piper/nn/named_tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace piper::checkpoint {

// Bytes of a shard of these tensors, at most.
int64_t shard_bytes(const std::vector<nn::NamedTensor>& tensors);

class CheckpointSave {
 public:
  // Makes the temporary folder below `folder` (made when absent). Processes that write one
  // checkpoint together give the same `token`, which no other run has. Throws IoError.
  CheckpointSave(std::filesystem::path folder, CheckpointIdentity identity, TrainState state,
                 files::Disk disk = files::real_disk(), const std::string& token = {});
  ~CheckpointSave();  // removes the temporary folder unless committed
  CheckpointSave(const CheckpointSave&) = delete;
  CheckpointSave& operator=(const CheckpointSave&) = delete;

  // Before the shards, when their bytes are known: throws IoError when they would not fit, saying
  // how much is needed and free; then the temporary folder is gone.
  void require_space(int64_t bytes);

  // Both thread-safe; one of them, once a rank. Neither throws: a failure is kept, and commit()
  // tells it.
  void write_shard(Rank rank, const std::vector<nn::NamedTensor>& tensors) noexcept;
  void report_failure(Rank rank, std::string cause) noexcept;

  // When several processes save, all but process 0 hand over what their ranks wrote, and are done
  // with it; process 0 collects that before commit(). A process that has not handed over after
  // `timeout_seconds`, or when `give_up` says so, has written nothing. The processes meet in the
  // temporary folder. hand_over() throws IoError.
  void hand_over(int64_t process);
  void collect(int64_t num_processes, double timeout_seconds, const std::function<bool()>& give_up);

  // After every rank's call of these: puts the checkpoint in place (in exchange for an older one of
  // the same step) and returns its path. Throws IoError naming every rank that failed or wrote
  // nothing, with its cause; then the temporary folder is gone and the older checkpoints are as
  // they were.
  std::filesystem::path commit();

 private:
  void put_in_place() const;
  [[noreturn]] void give_up(const std::string& why) const;

  std::filesystem::path folder_, temporary_;
  Manifest manifest_;
  files::Disk disk_;
  std::mutex mutex_;
  std::map<Rank, files::FileRecord> written_;
  std::map<Rank, std::string> failures_;
  bool committed_ = false;  // or handed over: the folder is not ours to remove
};

}  // namespace piper::checkpoint
