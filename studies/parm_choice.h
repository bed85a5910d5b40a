// Parm's own way to choose between its schedules (Pan et al. 2024, section V) on a machine: what
// each collective costs is a line, T = alpha + beta x (eq. 12), fitted to the machine's curves,
// which `piper profile` measured or a description states; Algorithm 1 compares S1 and S2 by these
// lines. It knows the forward's communication alone. The choice by price (moe_schedules.h) is of
// forward and backward with the experts.
#pragma once

#include <piper/cost/trainer/moe_schedules.h>
#include <studies/paper/parm.h>

#include <cstdint>
#include <vector>

namespace piper::studies {

// One collective's line, and how far the line lies from the farthest point, relative to that.
struct FittedCollective {
  const char* name = "";  // "MP-AllGather", ...
  int64_t ranks = 1;      // a group of one costs nothing
  paper::parm::CollectiveFit fit;
  double worst_error = 0;
};

struct ParmChoice {
  paper::parm::Layer layer;  // of one sequence of all the tokens
  paper::parm::Degrees degrees;
  std::vector<FittedCollective> collectives;  // ESP-AllGather, ESP-AllReduce, EP-AlltoAll,
                                              // EP&ESP-AlltoAll, MP-AllGather, Overlap
  paper::parm::Fits fits;                     // the same
  double baseline_seconds = 0, s1_seconds = 0, s2_seconds = 0;   // of the forward, by the lines
  paper::parm::Schedule corrected = paper::parm::Schedule::kS1;  // Algorithm 1 as the text has it
  paper::parm::Schedule printed = paper::parm::Schedule::kS1;    // with its misprints
};

// Fits each collective at sizes from 1/256 of the layer's to its own, doubling: of a profiled
// machine as it was measured (cost/exchange_time.h), of a described one by Rates, which
// price_moe_schedules() takes of both. Requires what that does, and ranks that share matrices or
// experts (tp or etp above 1).
ParmChoice choose_as_parm(const model::FeedForward& layer, const cost::MoeSetting& setting,
                          const cluster::Cluster& cluster);

}  // namespace piper::studies
