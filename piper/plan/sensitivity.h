// How much the MFU of one strategy hangs on each figure that went into it: every input changed
// alone, the strategy kept. On a machine that is really so, another strategy may be better than
// this one; `piper plan --what-if` asks that.
#pragma once

#include <piper/plan/search.h>

#include <string>
#include <vector>

namespace piper::plan {

struct Influence {
  std::string input;  // "compute efficiency", "bandwidth of level node"
  std::string value;  // as it was, with its unit
  double low_mfu = 0,
         high_mfu = 0;   // MFU with the input at (1 - change) and (1 + change) of its value
  double swing() const;  // distance of the two
};

// One entry an input that the price depends on, the largest swing first:
//   compute efficiency, memory bandwidth, start of a kernel
//   bandwidth (NICs included) and latency of each level, a ring's step inside and between nodes
//   host time and serial time of a layer, imbalance
// Where the step was simulated, its seconds change as the closed form's do, so that its MFU lies
// between the two. An input that does not move the MFU is left out. Measured curves of products and
// attention move with compute efficiency only. An imbalance does not go below 1. Requires
// 0 < change < 1 and a candidate of the request.
std::vector<Influence> sensitivity(const Request& request, const Candidate& candidate,
                                   double change = 0.2);

}  // namespace piper::plan
