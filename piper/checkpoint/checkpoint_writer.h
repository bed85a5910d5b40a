// Saves checkpoints while training goes on.
//
//   a rank's thread   hand_in: copies its tensors ---.                 next steps ...
//   another rank's    hand_in: copies its tensors ---+--> all there
//   the writer's own thread                               '--> write, hash, sync each shard; commit;
//                                                              read back and keep the newest
//
// One save at a time: hand_in() waits for the one before. A save is committed only when every rank
// has handed in and every shard is on the disk. One that fails is told by check() and finish(), and
// leaves the older checkpoints as they were; nothing is saved after it. Copies live from hand_in()
// to the commit; they count for no rank's memory.
#pragma once

#include <piper/base/strong_id.h>
#include <piper/checkpoint/checkpoint.h>

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace piper::checkpoint {

struct WriterOptions {
  std::filesystem::path folder;
  int64_t keep = 2;  // newest checkpoints that stay, >= 1
  bool copies =
      true;  // false: no copy is made, and hand_in() returns when the checkpoint is committed
  files::Disk disk = files::real_disk();
  // A run may have several processes (CheckpointSave::hand_over). Process 0 commits and keeps the
  // newest checkpoints.
  int64_t process = 0, num_processes = 1;
  int64_t num_local_ranks = 0;          // of this process; 0 = all
  std::string token;                    // the same in all processes, of this run alone
  double timeout_seconds = 600;         // for the other processes' shards
  std::function<bool()> others_failed;  // do not wait for them any longer; may be empty
  // Process 0 calls it from the writer's thread before a checkpoint is put in place: it makes
  // durable what a resumable step must find with that checkpoint. Throws IoError, and then nothing
  // is put in place. May be empty.
  std::function<void()> before_commit;
};

struct SaveReport {
  int64_t step = 0;
  int64_t bytes = 0;           // of all shards
  double waited_seconds = 0;   // longest that one rank was kept from training
  double written_seconds = 0;  // from the last hand_in to the commit
  // Process 0: of the kept checkpoints, read back before an older one went; 0 when none had to go.
  int64_t verified_bytes = 0;
  double verified_seconds = 0;
  std::vector<std::string> notes;  // what to tell the user of them (Rotation)
};

class CheckpointWriter {
 public:
  CheckpointWriter(WriterOptions options, CheckpointIdentity identity);
  // Waits for a save under way; one that not every rank has handed in is dropped.
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  // Every local rank's thread, once a save, with what the rank writes and the same state. A rank
  // that cannot copy its tensors fails the save, not itself. Throws IoError of a save that failed.
  void hand_in(Rank rank, const TrainState& state, const std::vector<nn::NamedTensor>& tensors);

  // Throws the IoError of a save that has failed. Thread-safe.
  void check() const;
  // Waits until nothing is under way, and checks.
  void finish();
  // Returns the reports of the saves committed since the last call. Thread-safe.
  std::vector<SaveReport> take_reports();

 private:
  struct Share {
    std::vector<nn::NamedTensor> tensors;
    std::string failure;  // why they could not be copied; "" = they are there
  };

  Share share_of(const std::vector<nn::NamedTensor>& tensors) const;
  void rethrow_failure() const;  // under mutex_
  void write_saves();
  SaveReport write(const std::map<Rank, Share>& shares, const TrainState& state) const;
  void put_together(CheckpointSave& save) const;
  void rotate(SaveReport& report) const;

  const WriterOptions options_;
  const CheckpointIdentity identity_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::map<Rank, Share> shares_;  // of the save being handed in or written
  TrainState state_;
  SaveReport report_;
  bool is_writing_ = false, is_ending_ = false;
  int64_t num_done_ = 0;  // saves, failed ones too
  std::exception_ptr failure_;
  std::vector<SaveReport> reports_;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace piper::checkpoint
