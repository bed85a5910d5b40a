#include <piper/strategy/strategy.h>

namespace piper::strategy {

const char* name(PipelineSchedule schedule) {
  switch (schedule) {
    case PipelineSchedule::kGPipe:
      return "gpipe";
    case PipelineSchedule::k1F1B:
      return "1f1b";
    case PipelineSchedule::kInterleaved:
      return "interleaved";
    case PipelineSchedule::kZbH1:
      return "zb-h1";
    case PipelineSchedule::kZbV:
      return "zb-v";
    case PipelineSchedule::kDualPipeV:
      return "dualpipev";
  }
  return "?";
}

const char* name(Recompute recompute) {
  switch (recompute) {
    case Recompute::kNone:
      return "none";
    case Recompute::kAttention:
      return "attention";
    case Recompute::kExperts:
      return "experts";
    case Recompute::kAttentionAndExperts:
      return "attention+experts";
    case Recompute::kFull:
      return "full";
  }
  return "?";
}

std::optional<Recompute> recompute_from(std::string_view text) {
  if (text == "norm") return Recompute::kNone;
  if (text == "all") return Recompute::kFull;
  for (const Recompute recompute : kRecomputes)
    if (text == name(recompute)) return recompute;
  return std::nullopt;
}

const char* name(Precision precision) {
  switch (precision) {
    case Precision::kFp32:
      return "fp32";
    case Precision::kBf16:
      return "bf16";
    case Precision::kFp64:
      return "fp64";
    case Precision::kFp8:
      return "fp8";
    case Precision::kMxfp8:
      return "mxfp8";
    case Precision::kNvfp4:
      return "nvfp4";
  }
  return "?";
}

const char* name(Offload offload) {
  switch (offload) {
    case Offload::kNone:
      return "none";
    case Offload::kOptimizer:
      return "optimizer";
    case Offload::kActivations:
      return "activations";
    case Offload::kOptimizerAndActivations:
      return "optimizer+activations";
  }
  return "?";
}

const char* name(Placement placement) {
  switch (placement) {
    case Placement::kDataInside:
      return "tp-cp-ep-dp-pp";
    case Placement::kPipelineInside:
      return "tp-cp-ep-pp-dp";
  }
  return "?";
}

const char* name(AllToAll algorithm) {
  switch (algorithm) {
    case AllToAll::kFlat:
      return "flat";
    case AllToAll::kNodeAware:
      return "node-aware";
    case AllToAll::kNaive:
      return "naive";
    case AllToAll::kPairwise:
      return "pairwise";
    case AllToAll::kWindowed:
      return "windowed";
    case AllToAll::kBruck:
      return "bruck";
    case AllToAll::kTwoD:
      return "2d";
    case AllToAll::kLeader:
      return "leader";
    case AllToAll::kHaloPrinted:
      return "halo-printed";
    case AllToAll::kHaloSwitch:
      return "halo-switch";
    case AllToAll::kHalo:
      return "halo";
    case AllToAll::kThreeLevel:
      return "three-level";
    case AllToAll::kHaloDedup:
      return "halo-dedup";
  }
  return "?";
}

std::vector<AllToAll> every_all_to_all() {
  std::vector<AllToAll> all(kAllToAlls.begin(), kAllToAlls.end());
  all.push_back(AllToAll::kHaloDedup);
  return all;
}

const char* name(Reduction reduction) {
  switch (reduction) {
    case Reduction::kDirect:
      return "direct";
    case Reduction::kHierarchical:
      return "hierarchical";
  }
  return "?";
}

const char* name(MoeSchedule schedule) {
  switch (schedule) {
    case MoeSchedule::kPlain:
      return "plain";
  }
  return "?";
}

}  // namespace piper::strategy
