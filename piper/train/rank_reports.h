// What process 0 gathers of ranks in other processes: what they noted of a step, and how fast their
// machines were.
#pragma once

#include <piper/train/run_context.h>
#include <piper/train/run_recorder.h>
#include <piper/train/speed_check.h>

#include <cstdint>
#include <string>
#include <vector>

namespace piper::train {

// A rank's thread writes what is its own; process 0's recorder and speed check take what comes in.
class RankReports {
 public:
  RankReports(const RunContext& run, RunRecorder& recorder, SpeedCheck& speed)
      : run_(run),
        recorder_(recorder),
        speed_(speed),
        start_seconds_(static_cast<size_t>(run.world.size())) {}

  // By process, before the ranks start.
  void set_hosts(std::vector<std::string> hosts) { hosts_ = std::move(hosts); }
  // When the rank left the first barrier, by its process's clock.
  void set_start(Rank rank, double seconds) { start_seconds_[rank.index()] = seconds; }

  // Process 0's recorder has of this step what all ranks noted. `key` and `key` + 1 name its
  // operations. All ranks call it.
  void gather_step(comm::Transport& transport, uint64_t key, int64_t step);
  // After the last step: the median one, and what the ranks measured of their machines. All ranks
  // call it.
  void gather_all(comm::Transport& transport, int64_t first_step);

 private:
  void gather_speed(comm::Transport& transport);

  const RunContext& run_;
  RunRecorder& recorder_;
  SpeedCheck& speed_;
  std::vector<std::string> hosts_;
  std::vector<double> start_seconds_;  // by rank
};

}  // namespace piper::train
