// What a user asks of the planner, with blanks, and the request that it comes to.
#pragma once

#include <piper/plan/search.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace piper::plan {

// Share of a device's memory that plans leave free, for what is not modelled (libraries,
// fragmentation).
inline constexpr double kMemoryMargin = 0.04;

struct Question {
  model::Model model;
  cluster::Cluster cluster;
  // 0 = the default, which the answer states.
  int64_t num_devices = 0;
  int64_t sequence = 0;
  int64_t global_batch_sequences = 0;
  std::optional<strategy::Precision> precision;
  FixedAxes fixed;
  double memory_margin = kMemoryMargin;
  std::optional<cost::LoadSamples> load;  // of the experts
  int64_t num_kept = 16;
  int64_t num_threads = 0;  // 0: as many as cores may be used
};

// A value that the user left open.
struct Default {
  std::string name;  // "sequence"
  std::string value;
  std::string why;
};

// Fills in what the question leaves open, and says so. A free batch buys MFU, so that it is stated,
// not searched:
//   sequence      min(4096, the model's positions); on a CPU min(256, ...)
//   global batch  GPU: about 4 M tokens, and at least 4 sequences a device; CPU: 4 sequences a
//                 device, at least 16; a multiple of the devices, so that no pipeline depth is
//                 ruled out; dp x micro-batch x count when all three are fixed
//   precision     bf16 on GPUs that have it, else fp32
//   load          cost::kDefaultLoad where the model has experts, else balanced
//   devices       pp x dp when both are fixed, else the whole cluster, of at most 1,024
// Machines with exact costs are searched for what this Piper trains (FixedAxes::runnable).
//
// The search is priced at what the load is expected to be (Request::imbalance_by_ep).
//
// The result refers to `question` and `trainer`. Throws InvalidInput: more devices than the cluster
// has, positions that the model has not, a trainer or a precision that nothing runs there.
Request resolve_defaults(const Question& question, const cost::TrainerProfile& trainer,
                         std::vector<Default>& defaults);

}  // namespace piper::plan
