// Which ranks of a strategy say how much to each other in one step: what decides where they should
// sit.
//
// Bytes of one step, as the trainers move them (piper/cost/trainer/layer_price.h, state_traffic.h);
// m micro-batches of T tokens on a rank, e bytes an element, h the hidden size, P parameters of a
// stage on a rank, g bytes of a gradient:
//
//   experts        pairs   m x 4 exchanges a mixture layer (6 with full recomputation) x T / tp
//                          top_k h e / ep
//   expert tensor  ring    rows gathered and scattered, as often as there are passes
//   tensor         ring    4 gathers or scatters of T h e a layer forward, as many backward (with
//                          sequence parallelism one half more)
//   context        ring    keys and values, forward once, backward twice
//   messages       pairs   T h e each way between the same members of neighbouring stages (/ tp
//                          with sequence parallelism)
//   data           ring    gradients of all but experts: 2 P g; ZeRO: P g scattered and 2 P
//                          gathered, as often as it does
//   expert data    ring    the same of experts
//   ends           pairs   the table that first and last stage both hold: tied, or for multi-token
//                          prediction
//
// Held to the exact bytes of cost/sent_bytes.h by a test, where the executor executes the strategy.
// What it leaves out: counts, choices of experts, statistics, rows that cross once for several
// experts, uneven loads, and what Parm's schedules send otherwise.
#pragma once

#include <piper/model/model.h>
#include <piper/strategy/rank_layout.h>

#include <array>
#include <cstdint>
#include <vector>

namespace piper::placement {

using strategy::Axis;
using strategy::kNumAxes;

// kPairs: every member sends `bytes` to every other. kRing: `bytes` over each hop of a ring through
// all members, which leaves every node, switch, rack that it visits once.
struct RankGroup {
  Axis axis = Axis::kExpert;
  bool is_ring = false;
  double bytes = 0;
  std::vector<int32_t> ranks;  // two or more, ascending
  double sent() const {        // by all members, wherever they sit
    const auto n = static_cast<double>(ranks.size());
    return bytes * n * (is_ring ? 1 : n - 1);
  }
};

// Groups that say something, axis by axis. Requires contradictions(strategy, model) to be empty.
std::vector<RankGroup> rank_traffic(const model::Model& model, const strategy::Strategy& strategy);

// From one member of an expert group to each other in one exchange of a mixture layer; 0 without
// experts.
double exchange_pair_bytes(const model::Model& model, const strategy::Strategy& strategy);

}  // namespace piper::placement
