// What the parts of a run share: its request, its processes, and the names of its operations.
#pragma once

#include <piper/checkpoint/manifest.h>
#include <piper/checkpoint/model_fingerprint.h>
#include <piper/comm/world.h>
#include <piper/train/run_request.h>

#include <algorithm>
#include <cstdint>
#include <string>

namespace piper::train {

// Operations beside the steps' own: a barrier before each save and, after the last step, what
// process 0 gathers.
inline constexpr uint64_t kBarrierKeys = uint64_t{1} << 62;
inline constexpr uint64_t kStateKeys = kBarrierKeys + (uint64_t{1} << 58);
inline constexpr uint64_t kGatherKeys = kBarrierKeys + (uint64_t{1} << 40);
inline constexpr uint64_t kReplicaKeys = kBarrierKeys + (uint64_t{1} << 41);  // two a step
inline constexpr uint64_t kWeightKeys = kBarrierKeys + (uint64_t{1} << 44);   // 2^20 a step
inline constexpr uint64_t kSpeedKeys = kBarrierKeys + (uint64_t{1} << 42);    // two a step
inline constexpr uint64_t kFiniteKeys = kBarrierKeys + (uint64_t{1} << 43);   // two a step
inline constexpr uint64_t kReplanKeys = kBarrierKeys + (uint64_t{1} << 56);   // two a step
inline constexpr uint64_t kOpenedKeys = kBarrierKeys + (uint64_t{1} << 57);   // two
inline constexpr uint64_t kBegunKeys = kOpenedKeys + 2;

// Migrations before steps are numbered beyond all evaluations.
inline constexpr int64_t kMigrationNumbers = int64_t{3} << 30;

// Evaluations are numbered apart from steps, which stay below 2^31; numbers fit 32 bits.
inline constexpr int64_t kValidationNumbers = int64_t{1} << 31;

// The request and the world outlive it. Thread-safe as far as `request.say` is.
struct RunContext {
  const RunRequest& request;
  comm::World& world;

  bool is_first() const { return world.process() == 0; }  // holds rank 0, and writes the folder
  bool is_alone() const { return world.num_processes() == 1; }
  // Process 0's words.
  void say(const std::string& line) const {
    if (request.say && is_first()) request.say(line);
  }
  int64_t last_step() const {
    return request.stop_after > 0 ? std::min(request.stop_after, request.num_steps)
                                  : request.num_steps;
  }
  // As a checkpoint of this run names it.
  checkpoint::CheckpointIdentity identity() const {
    return {request.model.name, checkpoint::model_fingerprint(request.model), request.strategy.mesh,
            request.strategy.layers_per_stage};
  }
};

}  // namespace piper::train
