// Executes whole steps of a bench's stages (bench/stage.h) over a world, by the executor that
// trains: the step graph that schedule/ writes, executor::Executor, comm/. Each rank computes with
// one thread. Tensor parallelism divides the experts alone: there are no all-reduces around
// attention, dense nets and head, which a bench's stage hands on whole.
//
// Thread safety: the process's main thread; every process makes the same calls in the same order.
// All throw CommError.
#pragma once

#include <bench/stage.h>
#include <piper/comm/world.h>
#include <piper/executor/executor.h>
#include <piper/nn/named_tensor.h>
#include <piper/schedule/step.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

namespace piper::train {

// What a rank executes.
struct BenchPart {
  std::unique_ptr<nn::BenchStage> stage;
  std::vector<executor::MicroBatch> micro_batches;
};

// What one step of a rank started from and led to: weights ("NAME"), inputs and targets of all
// micro-batches one after the other ("x", "target": where the rank has them), gradients
// ("NAME.gradient"), and the stage's results.
struct BenchRecord {
  double loss = 0;
  std::vector<nn::NamedTensor> tensors;
};

class StepBench {
 public:
  // `make` is called in each local rank's thread. `learning_rate` is of the plain descent at the
  // end of a step; 0 = none. The world outlives the bench. Throws InvalidInput when strategy and
  // model contradict each other.
  StepBench(comm::World& world, const model::Model& model, const strategy::Strategy& strategy,
            double learning_rate, const std::function<BenchPart(Rank)>& make);

  // Seconds of one of `num_steps` steps in a row, from one meeting of all ranks to the next: by
  // each rank's clock.
  std::vector<double> step_seconds(int64_t num_steps);
  // The same for the products alone of one micro-batch, all ranks at once. After a step.
  std::vector<double> product_seconds(int64_t num_repeats);
  // Executes one more step; of this process's ranks.
  std::map<Rank, BenchRecord> record();

 private:
  using Work = std::function<void(comm::Transport&, BenchPart&)>;
  std::vector<double> timed(int64_t repeats, const Work& work);
  void meet(comm::Transport& transport, int64_t number) const;
  void execute(comm::Transport& transport, BenchPart& part, int64_t first, int64_t num_steps) const;

  comm::World& world_;
  const model::Model model_;
  const strategy::Strategy strategy_;
  const double learning_rate_;
  const schedule::StepGraph step_;
  std::map<Rank, BenchPart> parts_;  // of this process
  int64_t next_step_ = 1, next_meeting_ = 0;
};

}  // namespace piper::train
