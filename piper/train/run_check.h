// Whether a run can begin as it was requested.
#pragma once

#include <piper/train/run_context.h>

#include <filesystem>

namespace piper::train {

// What the processes of a run or an evaluation read, each over its own path to its own disks.
struct ProcessInputs {
  const model::Model& model;
  const strategy::Strategy& strategy;
  const data::Corpus& corpus;
  const data::Corpus* validation = nullptr;
  std::filesystem::path weights = {};  // a folder; empty = none
};

// Compares them by their contents: fields, and hashes of bytes (Corpus::fingerprint(),
// WeightFolder::fingerprint()). All processes call it. Throws InvalidInput naming the process that
// has others than process 0, and what cannot be read; IoError, CommError.
void require_same_inputs(comm::World& world, const ProcessInputs& inputs);

// What the processes must have in common; all else follows from it. All of them call it. Throws
// InvalidInput, CommError.
void require_same_request(const RunContext& run);

// What stands in the way, in this process. Throws InvalidInput, IoError.
void check_request(const RunContext& run);

}  // namespace piper::train
