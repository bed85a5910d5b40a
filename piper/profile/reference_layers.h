// A small model (not one that users train: three layers, 8 experts, two a token; hidden 192, on an
// accelerator 2,048) whose passes take the measure of a machine as training uses it: what its
// segments take calibrates prices (calibrate.h), what a whole pass takes says whether the machine
// still runs at the speed of its profile.
#pragma once

#include <piper/executor/cores.h>
#include <piper/graph/graph.h>
#include <piper/model/model.h>
#include <piper/profile/bench_device.h>
#include <piper/schedule/step.h>
#include <piper/strategy/strategy.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace piper::profile {

struct Reference {
  model::Model model;
  int64_t sequence = 0;  // tokens
};
// For processors, or large enough for an accelerator.
const Reference& reference_for(const BenchDevice& device);

// Sequences of the micro-batch by whose whole pass machines are compared with themselves.
inline constexpr int64_t kReferencePassSequences = 4;

using SegmentKey = std::pair<schedule::SegmentKind, graph::Phase>;
using SegmentSamples = std::map<SegmentKey, std::vector<double>>;  // seconds

// The layers with their weights, gradients and one micro-batch of tokens. One thread uses them.
class ReferenceLayers {
 public:
  ReferenceLayers(const Reference& reference, strategy::Precision precision, int64_t sequences,
                  const BenchDevice& device = {});
  ~ReferenceLayers();
  ReferenceLayers(const ReferenceLayers&) = delete;
  ReferenceLayers& operator=(const ReferenceLayers&) = delete;

  // Forward and backward once: what each segment took, layer by layer. On an accelerator it is the
  // time between two events of its stream; the calling thread has one (executor::OnDevice).
  SegmentSamples run();

 private:
  class Pass;
  std::unique_ptr<Pass> pass_;
};

// One look at the speed of the machine, in seconds: what a whole pass of kReferencePassSequences
// takes in the mean, of layers made for it and touched once, a core held for each pass. `piper
// profile` and runs compare such windows and nothing else: a pass among others that evict its
// weights takes some 5 % longer. Every rank calls it, all at once.
double reference_window_seconds(strategy::Precision precision, executor::Cores& cores);

// Under what name of cluster.numbers a profile keeps what a window says: the median over windows of
// the mean of all ranks.
std::string reference_pass_name(strategy::Precision precision);

}  // namespace piper::profile
