// The checkpoints of a run, and whether what would be saved or exported is still sound.
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

// Whether the ranks that hold the same parameters still hold the same bits: before a save or an
// export, so that what drifted apart is neither saved nor exported. All ranks call it. Where they
// do not, rank 0 fails the transport and throws CommError.
void check_replicas(const RunContext& run, RankTrainer& trainer, comm::Transport& transport,
                    int64_t number);

// Names of the operations of agree_finite(): one, and two.
struct FiniteKeys {
  uint64_t agree = 0, gather = 0;
};

// Whether every rank's tensors are finite; also a meeting point of the ranks, which all call it.
// Where some are not, rank 0 fails the transport and throws InvalidInput with `refused` ("step 40
// is not saved"), the first rank and tensor, and `advice`; the others get false, and meet the end
// of the run in their next operation.
bool agree_finite(const RunContext& run, const std::vector<nn::NamedTensor>& tensors,
                  comm::Transport& transport, const FiniteKeys& keys, const std::string& refused,
                  const std::string& advice);

// Thread-safe where its functions say that all ranks call them.
class RunSaver {
 public:
  // `sync_records`: called before a checkpoint becomes visible.
  RunSaver(const RunContext& run, std::function<void()> sync_records)
      : run_(run), sync_records_(std::move(sync_records)) {}

  // The token is of this run alone, and names what several processes write. Call before the first
  // save.
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

  const RunContext& run_;
  std::function<void()> sync_records_;
  std::string token_;
  std::optional<checkpoint::CheckpointWriter> writer_;  // from the first save on
};

}  // namespace piper::train
