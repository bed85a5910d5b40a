// One rank's life in a run: its stage, optimizer and executor, and what a step means to them.
//
// Thread safety: one RankTrainer belongs to its rank's thread; what RunShared holds is shared and
// immutable.
#pragma once

#include <piper/balance/expert_placement.h>
#include <piper/comm/device_transport.h>
#include <piper/executor/device_streams.h>
#include <piper/executor/executor.h>
#include <piper/optim/learning_rate.h>
#include <piper/optim/optimizer.h>
#include <piper/report/metrics.h>
#include <piper/schedule/migration.h>
#include <piper/strategy/rank_layout.h>
#include <piper/train/rank_devices.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace piper::train {

struct TrainOptions {
  uint64_t seed = 0;
  optim::AdamWOptions adamw;
  optim::LearningRateSchedule learning_rate;
  double clip_norm = 1.0;  // of the whole mesh's gradient; 0 = no clipping
  double timeout_seconds = 120;
  // Models with a selection bias balance their experts by it, without an auxiliary loss (Wang et
  // al. 2024; DeepSeek-V3, section 2.1.2): after a step the bias of an expert with fewer rows than
  // the mean grows by this, with more it shrinks. By the counts of the global batch; 0 = the bias
  // stays.
  double bias_update = 1e-3;
  // Lambda of the losses of multi-token prediction (DeepSeek-V3, eq. 25), of models with modules
  // for it.
  double mtp_weight = 0.3;
};

// The micro-batch of (step, dp index, micro-batch); called from every rank's thread.
using BatchSource =
    std::function<executor::MicroBatch(int64_t step, int64_t dp_index, int64_t micro_batch)>;

// What all ranks of a run share. The step graph is valid and free of deadlock.
struct RunShared {
  const model::Model& model;
  const strategy::Strategy& strategy;
  const schedule::StepGraph& step;
  TrainOptions options;
  BatchSource batches;
  std::function<bool()> stop_requested;  // thread-safe; may be empty
  // Where what lives with the host does (executor/host_memory.h): the rate of a CPU's link to it, 0
  // for as fast as it goes, and the folder of its files, if any.
  double host_bytes_per_second = 0;
  std::filesystem::path host_folder;
  // It says where all ranks sit, for exchanges that know nodes.
  collective::Topology topology = collective::apart(strategy.mesh.world());
  // Where the experts of each layer are when the run begins; layers that are not here are plain.
  balance::Placements placements = {};
  RankDevices devices = {};  // where this process's ranks compute
  // What evaluate() executes (schedule::write_evaluation()); without it there is no evaluation.
  const schedule::StepGraph* evaluation = nullptr;
  // Whether evaluations are all: then there is no optimizer, and nobody calls step() or migrate().
  bool evaluates_only = false;
  // This process's ranks on devices offer each other messages through it.
  std::shared_ptr<comm::DeviceOffers> offers = std::make_shared<comm::DeviceOffers>();
};

// The same on every rank: sums over the world.
struct LossSum {
  double loss = 0;  // nats
  double target_tokens = 0;
};

// What a run wants to know while a step is executed; called from the rank's thread, may be empty.
struct RankHooks {
  std::function<int64_t()> live_bytes;  // of this rank, for memory over time
  std::function<void(int64_t step, const std::string& operation)> note;  // before every task
  // Called on a device when it holds nothing of this rank but what its libraries keep.
  std::function<void()> opened;
};

// On a device, a rank's thread works in a stream of its own (executor::OnDevice) as long as its
// trainer lives.
class RankTrainer {
 public:
  // `device_transport`: for tensors, where the rank has a device (made here when not given).
  RankTrainer(const RunShared& run, comm::Transport& transport, executor::Cores& cores,
              RankHooks hooks = {}, comm::Transport* device_transport = nullptr);
  ~RankTrainer();

  // Runs step `number` (from 1). `timeline` as for executor::Executor::run_step.
  report::StepOutcome step(int64_t number, graph::Timeline* timeline = nullptr);

  // The losses of one global batch with the weights as they are: the forwards of a step alone, on
  // every mesh. No weight, gradient, optimizer state or later step changes. `number` is apart from
  // those of all steps and other evaluations of the run; `batches` is asked for `batch` as its
  // step. Requires RunShared::evaluation.
  LossSum evaluate(int64_t number, const BatchSource& batches, int64_t batch);

  // Moves experts until these layers are placed so: between two steps, by all ranks at once, with
  // the same placements; copies change with the next step. It executes schedule::write_migration
  // where homes move. `number` is apart from those of steps and evaluations. Nothing that is learnt
  // changes. Throws CommError; what then has moved and what not is unknown, so the run ends.
  void migrate(int64_t number, const balance::Placements& next);
  // Returns the placement of every layer with experts.
  const balance::Placements& placements() const { return placements_; }

  Rank rank() const { return rank_; }
  nn::Stage& stage() { return *stage_; }
  // Returns the last step's rows to each expert, by (layer, micro-batch).
  const std::map<std::pair<int32_t, int32_t>, std::vector<int64_t>>& routed_rows() const {
    return executor_->routed_rows();
  }
  const std::map<std::pair<int32_t, int32_t>, std::vector<int64_t>>& distinct_tokens() const {
    return executor_->distinct_tokens();
  }
  optim::AdamW& optimizer() { return *optimizer_; }
  const executor::GradientShares& gradient_shares() const { return gradient_shares_; }

  // Under ZeRO a step leaves the weights of a rank's own share updated, and the next step gathers
  // the others' before it computes. Does so now, for who reads weights between steps (saving,
  // comparing replicas, exporting); nothing without ZeRO. All ranks call it. Under ZeRO 3 the
  // weights then have memory until keep_weights() or the next step. `key` and those after it, one
  // for each buffer of a rank, name its operations. Where experts travel as residuals, all ranks
  // are then told all of them (`tells`), which changes what follows; else these stay what was told.
  void gather_weights(uint64_t key, bool tells = true);
  // Under ZeRO 3, where a trainer begins with all weights: this rank's own elements of them are
  // what it goes on with, and the others' memory is given back. A step does so by itself. Likewise,
  // once, of experts that travel as residuals, whose others stay as what was told.
  void keep_weights();

 private:
  executor::ExecutorOptions executor_options();
  std::vector<executor::MicroBatch> fetch(const BatchSource& batches, int64_t number) const;
  void local_statistics(std::span<double> statistics);
  void local_statistics(std::span<double> statistics, const nn::StageStatistics& stage) const;
  void apply(std::span<const double> statistics);
  int64_t num_experts(int32_t layer) const;
  double* put_counts(double* next, const std::map<int32_t, std::vector<int64_t>>& counts) const;
  const double* take_counts(const double* next,
                            std::map<int32_t, std::vector<int64_t>>& counts) const;
  void balance();
  void note_selection_biases();
  void move_homes(int64_t number, const balance::Placements& next,
                  const schedule::LayerMoves& moves);
  // Returns which elements a migration's pieces are, of an expert at this index of the rank's.
  std::vector<optim::ParameterShare> elements_of(int32_t layer, int64_t index,
                                                 const schedule::StatePieces& pieces);
  at::Tensor take_expert(const schedule::Segment& segment, const schedule::StatePieces& pieces);
  void put_expert(const schedule::Segment& segment, const schedule::StatePieces& pieces,
                  const at::Tensor& state);

  const RunShared& run_;
  comm::Transport& transport_;
  executor::Cores& cores_;
  RankHooks hooks_;
  Rank rank_;
  at::Device device_;
  executor::OnDevice on_device_;
  comm::Transport* device_transport_;  // null on the CPU
  std::unique_ptr<comm::DeviceMemory> device_memory_;
  std::unique_ptr<comm::DeviceTransport> own_device_transport_;
  strategy::RankLayout layout_;
  strategy::Coordinates at_;
  std::unique_ptr<nn::Stage> stage_;
  std::vector<optim::ParameterShare> norm_shares_;     // over the mesh every element once
  std::unique_ptr<executor::HostMemory> host_memory_;  // null where nothing lives there
  std::unique_ptr<optim::AdamW> optimizer_;            // null where nothing is learnt
  executor::GradientShares gradient_shares_;           // none below ZeRO 2
  executor::WeightShares weight_shares_;  // of ZeRO 3, or of experts that travel as residuals
  bool has_all_weights_ = true;
  // Behind an update, by layer: what of this rank's share of experts is sent next.
  std::map<int32_t, at::Tensor> residuals_;
  bool knows_experts_ = false;                               // as they are, beside what was told
  std::map<int32_t, nn::Parameter> selection_biases_;        // by layer, of those in weight_shares_
  std::unique_ptr<executor::Executor> executor_;             // null where nothing is learnt
  std::unique_ptr<executor::Executor> evaluation_executor_;  // from the first evaluation on
  executor::Update update_;
  std::vector<int32_t> mixture_layers_;
  balance::Placements placements_;
  const balance::Placements* next_ = nullptr;  // while experts move
  int64_t number_ = 0;
  report::StepOutcome outcome_;
};

}  // namespace piper::train
