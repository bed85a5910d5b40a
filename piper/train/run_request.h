// What a run is asked to do: model, strategy, data, where it leaves what, and when it saves. It
// stands apart from run.h, so that a part of a run sees the request and not the other parts.
#pragma once

#include <piper/balance/rebalance_policy.h>
#include <piper/base/json.h>
#include <piper/cluster/cluster.h>
#include <piper/comm/world.h>
#include <piper/cost/load_distribution.h>
#include <piper/data/corpus.h>
#include <piper/files/file_writer.h>
#include <piper/plan/replanner.h>
#include <piper/report/metrics.h>
#include <piper/train/rank_trainer.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

namespace piper::train {

struct RunRequest {
  model::Model model;
  Json config = Json::object();  // the model's config.json, for the exported folder
  strategy::Strategy strategy;
  cluster::Cluster cluster;  // what the prediction is made with; its peak is MFU's divisor
  cost::LoadDistribution
      load;  // of the experts, as planned: what is predicted before the run has it
  data::Corpus corpus;
  data::Corpus validation;  // never trained on; may be empty
  std::filesystem::path folder;
  int64_t num_steps = 0;   // of the whole run: what the learning rate is stretched over
  int64_t stop_after = 0;  // stop (and save, with checkpoints on) after this step; 0 = num_steps
  TrainOptions options;
  int64_t checkpoint_every = 0;  // steps; 0 = none
  int64_t keep_checkpoints = 2;
  // Steps between two looks at whether replicas still hold the same bits (replicas.h); before every
  // save besides.
  int64_t check_replicas_every = 0;
  int64_t validate_every = 0;      // steps, and after the last one; 0 = never
  int64_t validation_windows = 0;  // the first ones of `validation`; 0 = all
  // Train on while a copy of the state is written (checkpoint_writer.h). Without room for the copy
  // a save is waited for.
  bool async_save = true;
  bool fresh = false;   // delete the folder's checkpoints first
  bool resume = false;  // from the newest complete checkpoint, which must exist; any mesh
  std::filesystem::path initial_weights;  // Hugging Face folder; empty = from the seed
  bool export_weights = false;
  // Where the optimizer states and activations that a strategy offloads are files' memory
  // (executor/host_memory.h); empty: the processes' own.
  std::filesystem::path host_folder;
  int64_t memory_limit_bytes =
      0;  // of the tensors of one rank, as if its device had no more; 0 = none
  // Relative; steps whose time leaves the prediction by more are said, with the component
  // (deviation.h). 0 = never.
  double deviation_bound = 0.25;
  RankDevices devices;  // where this process's ranks compute
  comm::World* world =
      nullptr;  // of strategy.mesh.world() ranks; null: all are threads of this process
  // Run the reference layers before the first step and after every one (speed_check.h), and let
  // `comparison` count how much slower than in its profile the machine was.
  bool speed_check = false;
  // When experts move between steps (rebalancer.h), and where they are when the run begins; a
  // resumed run goes on with the placements of its checkpoint, where its expert groups are as
  // large.
  balance::RebalancePolicy rebalance;
  balance::Placements placements;
  // Whether the run watches for a strategy that is faster than `strategy` on the machine and under
  // the load that its steps show, and goes on with it (plan/replanner.h).
  plan::ReplanPolicy replan;
  // Asked by every rank once a step: finish it, save (whatever checkpoint_every), and end.
  // Thread-safe; may be empty.
  std::function<bool()> stop_requested;
  std::function<void(const std::string& line)> say;  // progress in words; may be empty
  std::function<void()> on_start;  // once everything is checked, before the first step
  // After the first step, before anything is written into the folder; from rank 0's thread.
  std::function<void()> on_begin;
  std::function<void(const report::StepMetrics&)> on_step;  // from rank 0's thread
  // Whether the result has the metrics of all steps, some 0.3 kB each; otherwise it has those of
  // the first and the last one that each strategy trained.
  bool keep_metrics = true;
  // After every step, from every rank's thread: where tests hurt a rank. May be empty.
  std::function<void(int64_t step, RankTrainer&)> after_step;
  files::Disk disk = files::real_disk();  // of checkpoints
};

}  // namespace piper::train
