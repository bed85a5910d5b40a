// A whole run: predict, train on one thread a rank, watch, checkpoint, compare, and leave a folder
// behind that `piper report` reads. The ranks may live in several processes: each calls
// run_training() with the same request, and process 0, which holds rank 0, writes everything but
// its peers' shards of checkpoints; the folder is one that all see.
//
//   RUN/strategy.json       the strategy, as planned
//   RUN/metrics.jsonl       a line a step
//   RUN/tensorboard/        the same for TensorBoard
//   RUN/predicted_trace.json, measured_trace.json    one step each, Chrome traces
//   RUN/comparison.json     predicted beside measured
//   RUN/expert_load.json    rows of every expert
//   RUN/checkpoints/        checkpoint/checkpoint.h
//   RUN/weights/            Hugging Face folder of the final weights
#pragma once

#include <piper/train/run_request.h>
#include <piper/train/run_result.h>

namespace piper::train {

// Throws InvalidInput (what cannot be trained or resumed), IoError, CommError; std::runtime_error
// when a rank runs out of memory (out_of_memory.h). A save that fails ends the run at the next
// step, or at the end; a save under way when something else fails is still completed.
RunResult run_training(const RunRequest& request);

}  // namespace piper::train
