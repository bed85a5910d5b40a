// Where a run begins: from the seed, from a Hugging Face folder, or behind a checkpoint.
#pragma once

#include <piper/base/json.h>
#include <piper/checkpoint/checkpoint_reader.h>
#include <piper/checkpoint/weight_folder.h>
#include <piper/train/rank_trainer.h>
#include <piper/train/run_context.h>

#include <cstdint>
#include <optional>
#include <string>

namespace piper::train {

// Set before the ranks start, by one thread; read by all of them then.
class StartingPoint {
 public:
  // `shared`: whose seed and placements are the checkpoint's from resume_from() on.
  StartingPoint(const RunContext& run, RunShared& shared) : run_(run), shared_(shared) {}

  // Throws InvalidInput where the checkpoint is not one of this run.
  void resume_from(checkpoint::FoundCheckpoint found);
  // The request's folder of weights. Throws InvalidInput, IoError.
  void read_weights();

  bool is_resumed() const { return resumed_.has_value(); }
  // The checkpoint has every step that the run is to have.
  bool has_nothing_left() const { return first_step_ > run_.last_step(); }
  int64_t first_step() const { return first_step_; }
  // As the checkpoint has it; a run that begins anew has read nothing and skipped nothing.
  const checkpoint::TrainState& state() const { return state_; }
  // saved() returns an entry of TrainState::extra, null where there is none; source() says which
  // file it is in.
  const Json* saved(const char* key) const;
  std::string source() const;
  std::string checkpoint_path() const { return resumed_->checkpoint().path.string(); }

  // Into a rank's trainer; `who` reads, in messages. Every rank calls it.
  void load(RankTrainer& trainer, const std::string& who) const;

 private:
  void place_as_saved();
  void say_changes() const;

  const RunContext& run_;
  RunShared& shared_;
  std::optional<checkpoint::CheckpointReader> resumed_;
  std::optional<checkpoint::WeightFolder> weights_;
  checkpoint::TrainState state_;
  int64_t first_step_ = 1;
};

}  // namespace piper::train
