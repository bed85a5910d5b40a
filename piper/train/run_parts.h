// One run's state, shared by the files that play its parts (run_open.cpp, run.cpp, run_watch.cpp,
// run_rebalance.cpp, run_replan.cpp, run_save.cpp, run_close.cpp) and by nobody else: run.h is the
// way in.
//
// Thread safety: members that ranks' threads call say so by taking a RankTrainer or a Transport,
// which are the rank's own; what they share is immutable, atomic, behind a mutex, or rank 0's
// alone.
#pragma once

#include <piper/checkpoint/checkpoint_reader.h>
#include <piper/checkpoint/checkpoint_writer.h>
#include <piper/checkpoint/weight_folder.h>
#include <piper/comm/local.h>
#include <piper/train/deviation.h>
#include <piper/train/out_of_memory.h>
#include <piper/train/rank_memory.h>
#include <piper/train/rebalancer.h>
#include <piper/train/run.h>
#include <piper/train/run_lock.h>
#include <piper/train/run_recorder.h>
#include <piper/train/speed_check.h>
#include <piper/train/tensorboard.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace piper::train::parts {

namespace fs = std::filesystem;

// Operations beside the steps' own: a barrier before each save and, after the last step, what
// process 0 gathers.
inline constexpr uint64_t kBarrierKeys = uint64_t{1} << 62;
inline constexpr uint64_t kGatherKeys = kBarrierKeys + (uint64_t{1} << 40);
inline constexpr uint64_t kReplicaKeys = kBarrierKeys + (uint64_t{1} << 41);  // two a step
inline constexpr uint64_t kWeightKeys = kBarrierKeys + (uint64_t{1} << 44);   // 2^20 a step
inline constexpr uint64_t kSpeedKeys = kBarrierKeys + (uint64_t{1} << 42);    // two a step
inline constexpr uint64_t kFiniteKeys = kBarrierKeys + (uint64_t{1} << 43);   // two a step
inline constexpr uint64_t kReplanKeys = kBarrierKeys + (uint64_t{1} << 56);   // two a step

// Of TrainState::extra: nn::ProductChoice::text(), where the run computes by a measured choice.
inline constexpr const char* kProductLibraries = "product_libraries";
inline constexpr const char* kGroupedProducts = "grouped_products";  // nn::GroupedChoice::text()

// How long a save goes on waiting for the shards of processes once the run has failed.
inline constexpr double kPartingSeconds = 1;

// Migrations before steps are numbered beyond all evaluations.
inline constexpr int64_t kMigrationNumbers = int64_t{3} << 30;

// Evaluations are numbered apart from steps, which stay below 2^31; numbers fit 32 bits.
inline constexpr int64_t kValidationNumbers = int64_t{1} << 31;

// Everything that the ranks' threads share.
class Run {
 public:
  explicit Run(const RunRequest& request);
  RunResult run();
  // After run(), the same in every process: the strategy with which to go on from the last
  // checkpoint; nullopt where the run is over.
  const std::optional<strategy::Strategy>& next_strategy() const { return next_strategy_; }

 private:
  bool is_first() const { return world_.process() == 0; }  // holds rank 0, and writes the folder
  bool is_alone() const { return world_.num_processes() == 1; }
  void say(const std::string& line) const {
    if (request_.say && is_first()) request_.say(line);
  }
  int64_t last_step() const {
    return request_.stop_after > 0 ? std::min(request_.stop_after, request_.num_steps)
                                   : request_.num_steps;
  }
  void check() const;
  void check_replanning(std::vector<std::string>& problems) const;
  void agree() const;
  void open_folder();
  void share_cores();
  template <class Choice>
  std::string resumed_choice(const char* key) const;
  void choose_products();
  void choose_grouped_products();
  std::string prepare_folder();
  void remove_earlier_run() const;
  std::optional<checkpoint::FoundCheckpoint> find_checkpoint(const fs::path& checkpoints) const;
  checkpoint::FoundCheckpoint same_checkpoint(const std::string& resumed) const;
  void resume_from(checkpoint::FoundCheckpoint found);
  void place_as_saved();
  // Of one rank, for the message when memory ends.
  struct Whereabouts {
    HeldState held;
    int64_t step = 0;
    std::string task;
  };
  void rank_main(comm::Transport& transport);
  void train_rank(comm::Transport& transport, Whereabouts& here);
  RankMemory memory_of(Rank rank) const;
  RankHooks rank_hooks(Rank rank, Whereabouts& here);
  void price_experts();
  Rebalancer make_rebalancer() const;
  // What moved before a step; by rank 0 alone with what was predicted of it.
  struct Migrated {
    int64_t experts = 0, bytes = 0;
    double seconds = 0;            // of the whole rebalancing: deciding, moving, renaming
    double predicted_seconds = 0;  // of the moving; 0: nothing is predicted
    double saved_seconds = 0;      // a step, as predicted
  };
  Migrated rebalance(RankTrainer& trainer, const Rebalancer& rebalancer, int64_t number);
  void say_gain(int64_t number);
  void say_migration(int64_t number, const std::vector<balance::LayerDecision>& decisions,
                     const Migrated& migrated);
  void load(RankTrainer& trainer);
  bool check_speed(int64_t number, comm::Transport& transport);
  void train_all_ranks();
  void make_prediction();
  double validate(RankTrainer& trainer, int64_t number);
  void record_step(comm::Transport& transport, int64_t number, const StepOutcome& outcome,
                   double seconds, std::optional<double> validation_loss, const Migrated& migrated,
                   const balance::Placements& placements);
  void write_events(const StepMetrics& metrics);
  void check_replicas(RankTrainer& trainer, comm::Transport& transport, int64_t number);
  void save(RankTrainer& trainer, const Rebalancer& rebalancer, comm::Transport& transport,
            int64_t number);
  bool agree_to_save(const std::vector<nn::NamedTensor>& tensors, comm::Transport& transport,
                     int64_t number);
  void sync_records() const;
  int64_t bytes_saved_here() const;
  void open_writer();
  void say_saves();
  checkpoint::TrainState state_after(int64_t number, const balance::Placements& placements,
                                     const Rebalancer& rebalancer) const;
  void gather_parts(comm::Transport& transport);
  void gather_step(comm::Transport& transport, uint64_t key, int64_t number);
  void make_replanner();
  void replan(RankTrainer& trainer, comm::Transport& transport, int64_t number, double seconds,
              const StepOutcome& outcome);
  void agree_on_change();
  void gather_speed(comm::Transport& transport);
  void export_weights(RankTrainer& trainer, comm::Transport& transport);
  checkpoint::CheckpointIdentity identity() const;
  void carry_over(RunResult& result) const;
  RunResult finish();

  const RunRequest& request_;
  schedule::StepGraph step_;
  std::optional<schedule::StepGraph> evaluation_;  // where the run validates
  RunShared shared_;
  std::optional<executor::Cores> cores_;  // from open_folder() on
  comm::LocalWorld own_world_;            // when the request brings none
  comm::World& world_;
  std::vector<std::string> hosts_;  // by process
  std::vector<double>
      start_seconds_;  // by rank, of its process's clock: when it left the first barrier
  std::string token_;  // of this run alone
  std::string product_libraries_;  // nn::ProductChoice::text(); empty: by the rule
  std::string grouped_products_;   // nn::GroupedChoice::text(); empty: one product for all
  std::atomic<bool> stopped_{false};
  // Rank 0's process: the run ends to go on with the strategy that was proposed last.
  std::atomic<bool> changes_{false};
  std::optional<strategy::Strategy> next_strategy_;
  RunRecorder recorder_;
  SpeedCheck speed_;
  std::optional<Prediction> prediction_;     // process 0's, where the cluster can price the step
  std::optional<DeviationWatch> deviation_;  // process 0's
  std::optional<checkpoint::WeightFolder> weights_;
  std::optional<checkpoint::CheckpointReader> resumed_;
  std::map<int32_t, balance::ExpertPrice> expert_prices_;  // by layer with experts
  // Rank 0's: steps between two decisions, what they took before and since the last one, and what
  // the one before a step promised of each; 0: nothing moved.
  struct Gain {
    double seconds = 0, seconds_before = 0, promised = 0;
    int64_t steps = 0;
  };
  Gain gain_;
  double begun_seconds_ = 0;              // when run() was called
  cost::TrainerProfile trainer_profile_;  // of replan_request_
  plan::Request replan_request_;
  std::optional<plan::Replanner> replanner_;  // rank 0's
  std::vector<plan::Replanned> replanned_;    // rank 0's
  int64_t first_step_ = 1;
  std::optional<MetricsWriter> metrics_writer_;
  std::optional<EventWriter> events_;
  std::vector<StepMetrics> metrics_;
  int64_t skipped_ = 0, skipped_in_a_row_ = 0;
  std::optional<RunLock> lock_;                         // process 0's
  std::optional<checkpoint::CheckpointWriter> writer_;  // from the first save on

  std::mutex mutex_;
  std::vector<nn::NamedTensor> exported_;
};

}  // namespace piper::train::parts
