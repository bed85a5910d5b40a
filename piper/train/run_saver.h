// The checkpoints of a run, and whether what would be saved is still sound.
#pragma once

#include <piper/checkpoint/checkpoint_writer.h>
#include <piper/train/rank_trainer.h>
#include <piper/train/run_context.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace piper::train {

// Whether the ranks that hold the same parameters still hold the same bits: before a save, so that
// what drifted apart is never saved. All ranks call it. Where they do not, rank 0 fails the
// transport and throws CommError.
void check_replicas(const RunContext& run, RankTrainer& trainer, comm::Transport& transport,
                    int64_t number);

// Thread-safe where its functions say that all ranks call them.
class RunSaver {
 public:
  // `sync_records`: called before a checkpoint becomes visible.
  RunSaver(const RunContext& run, std::function<void()> sync_records)
      : run_(run), sync_records_(std::move(sync_records)) {}

  // Of this run alone: names what several processes write. Before the first save.
  void set_token(std::string token) { token_ = std::move(token); }

  // Saves the trainers' states, whose weights are gathered, after step `number`. `state`: called by
  // rank 0. All ranks call it. Throws InvalidInput where something is not finite, and what the
  // writer throws.
  void save(RankTrainer& trainer, comm::Transport& transport, int64_t number,
            const std::function<checkpoint::TrainState()>& state);
  // Throws what a save under way has met. All ranks call it.
  void check();
  // Waits for the save under way; throws likewise.
  void finish();
  // All processes; process 0 says what has been saved since the last call.
  void say_saves();

 private:
  int64_t bytes_saved_here() const;
  void open_writer();
  bool agree_to_save(const std::vector<nn::NamedTensor>& tensors, comm::Transport& transport,
                     int64_t number) const;

  const RunContext& run_;
  std::function<void()> sync_records_;
  std::string token_;
  std::optional<checkpoint::CheckpointWriter> writer_;  // from the first save on
};

}  // namespace piper::train
