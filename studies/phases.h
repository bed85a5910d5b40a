// Phases of one layer priced one by one and held against a published trace: where a layer's price
// is right, and where it is right only because errors cancel.
//
// A run is data (configs/validation): what was measured with its source, how it is priced, and what
// is assumed. Nothing is fitted: kernels are priced with the cluster's curves, scaled to the
// multiprocessors that compute.
#pragma once

#include <piper/base/json_fwd.h>

#include <cstdint>
#include <string>
#include <vector>

namespace piper::studies {

// kPair: the longer of all compute and of two dispatches and two combines.
enum class PhasePrice : uint8_t {
  kAttentionForward,
  kFeedForwardForward,
  kAttentionBackward,    // gradient of the input
  kFeedForwardBackward,  // gradient of the input
  kWeights,              // gradients of both blocks' weights
  kDispatch,
  kCombine,
  kPair
};

struct Phase {
  std::string name;
  PhasePrice price = PhasePrice::kPair;
  double measured_seconds = 0;
  double limit = 0;  // of the relative error, as aimed at
  std::string source;
  std::string cause;  // of a miss, where it is known
};

struct PhaseRun {
  std::string name, description, source;
  std::string model, cluster, trainer;
  std::string precision;  // of products: "bf16", "fp8"
  int64_t layer = 0;
  int64_t tokens = 0, sequence = 0;  // of one rank
  int64_t ep = 1, tp = 1;
  int64_t units_for_compute = 1, units = 1;  // multiprocessors
  std::vector<std::string> assumptions;
  std::vector<Phase> phases;
};

// Throws InvalidInput with all problems.
PhaseRun parse_phase_run(const Json& json, const std::string& source);
// A built-in name (of configs/validation) or a path: of such a run, or of a summary of a trace,
// whose "phases" is an object: medians in microseconds by phase and stream, for what the built-in
// run prices.
PhaseRun load_phase_run(const std::string& name_or_path);
std::vector<std::string> builtin_phase_runs();

struct PricedPhase {
  Phase phase;
  double predicted_seconds = 0;
  double error() const { return predicted_seconds / phase.measured_seconds - 1; }
  bool holds() const { return error() <= phase.limit && error() >= -phase.limit; }
};
// Throws InvalidInput (unknown model, cluster, trainer; a layer without experts).
std::vector<PricedPhase> price_phases(const PhaseRun& run);

Json to_json(const PhaseRun& run, const std::vector<PricedPhase>& phases);

}  // namespace piper::studies
