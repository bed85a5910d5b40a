// Experts that move while the run goes on: what process 0 prices for all, a decision before a step,
// and what is said of it.
#pragma once

#include <piper/balance/rebalance.h>
#include <piper/train/rank_trainer.h>
#include <piper/train/rebalancer.h>
#include <piper/train/run_context.h>
#include <piper/train/starting_point.h>

#include <cstdint>
#include <map>
#include <vector>

namespace piper::train {

// Thread safety: of the ranks' threads rank 0's alone changes it.
class ExpertMoves {
 public:
  explicit ExpertMoves(const RunContext& run) : run_(run) {}

  // The same on all ranks, or they would decide otherwise. All processes call it.
  void price();
  // A rank's, with the window of the checkpoint.
  Rebalancer make_rebalancer(const RunShared& shared, const StartingPoint& start) const;
  // All ranks call it before a step. `predicts`: whether the cluster can price what moves.
  report::Migrated before_step(RankTrainer& trainer, const Rebalancer& rebalancer, int64_t number,
                               bool predicts);
  // Rank 0, after a step.
  void note_step(double seconds);

 private:
  void say_gain(int64_t number);
  void say_migration(int64_t number, const std::vector<balance::LayerDecision>& decisions,
                     const report::Migrated& migrated) const;

  const RunContext& run_;
  std::map<int32_t, balance::ExpertPrice> prices_;  // by layer with experts
  // Rank 0's: what steps took since the last decision, what they took before it (the median: a
  // run's first step warms up), and what it promised of each; 0: nothing moved.
  struct Gain {
    std::vector<double> seconds;
    double seconds_before = 0, promised = 0;
  };
  Gain gain_;
};

}  // namespace piper::train
