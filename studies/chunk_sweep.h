// How many chunks a mixture layer takes, over the settings that papers measured: one count for both
// passes against each pass's own, and PipeMoE's count against the best, all by price_chunks().
#pragma once

#include <piper/strategy/strategy.h>

#include <cstdint>
#include <vector>

namespace piper::studies {

enum class ChunkRange : uint8_t {
  kParm,       // Table III on both testbeds: parm_layers() of all parm_cells(); `parm-s2` and
               // `monta-o2` with N_MP >= 2
  kParmWhole,  // those with N_ESP = 1: whole experts, of which nothing is gathered
  kMonta,  // Fig. 14: b 2, h 8192, 4K to 256K, two experts on two nodes of a800, as Table 8 has it
  kFsmoe   // FSMoE (Pan et al. 2025), Table 4 on its testbed B, 32 RTX 2080 Ti (rtx2080ti): N_MP =
           // N_ESP = 4, one expert a node, k = 2, fp32, a quarter of the tokens on each rank of a
           // node. f = * is 1: tokens are balanced. For `chunked`
};
inline constexpr int64_t kFsmoeLayers = 1458;

// Summarises relative differences.
struct Spread {
  double mean = 0, ninetieth = 0, worst = 0;  // ninetieth: 9 of 10 are no larger
};

struct ChunkSweep {
  int64_t num_layers = 0;
  // What the best count of each pass saves of the seconds, forward and backward, with the best
  // common one.
  Spread saved;
  int64_t num_apart = 0;  // layers whose passes have different best counts
  // For `chunked`: how much longer PipeMoE's count takes than the best common one; its forward than
  // with the forward's best; and the count that its model takes by the sum of both passes.
  Spread regret, forward_regret, regret_of_both;
  // Layers that take at most 1 % longer with it.
  int64_t num_near = 0, num_near_of_both = 0;
};

// Sweeps `chunked`, `parm-s2` or `monta-o2` over counts from 1 to strategy::kMaxMoeChunks. Requires
// a range that has such layers.
ChunkSweep sweep_chunks(ChunkRange range, strategy::MoeSchedule schedule);

}  // namespace piper::studies
