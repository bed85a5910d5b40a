// What MoNTA's printed model lacks, by its own Discussion: a fixed cost of every collective and of
// every chunk, the conflict of gathers and copies, and hosts that do not start together. With them
// the choice of Fig. 14 can be asked: 256K tokens O3, 32K to 128K O2, less than 16K O1, in 4
// chunks.
//
//   AA(B) = alpha + B/beta of the bytes that leave the node, AG(B) likewise of those that arrive
//   O1    skew + AA + AG
//   O2    skew + AA_j + (N-1) max(AA_j, AG_j + D2D_j + c) + AG_j + D2D_j + c
//   O3    skew + AA_j + (N-1) (max(AA_j, AG_j + c, D2D_j + M_j + c) + stall) + AG_j + D2D_j + c
//
// M_j: how long the gather's bytes, read and written, keep the memory busy beside the copy's.
//
// alpha and beta are fits to the efficiencies that Table 8 and eq. 12 print; c is the launches of a
// chunk's kernels. The stall of a gather beside a copy is not published and is 0 in
// published_overheads(): equal_stall_seconds() says what it would have to be. Seconds. Pure
// functions, thread-safe.
#pragma once

#include <piper/cluster/alpha_beta.h>
#include <studies/paper/monta_chunks.h>

#include <cstdint>

namespace piper::studies::paper::monta {

struct Overheads {
  cluster::AlphaBeta exchange;  // by bytes that a rank sends to the other nodes
  cluster::AlphaBeta gather;    // by bytes that a rank receives from its node
  double memory_bytes_per_second = 0;
  double chunk_seconds = 0;  // c
  double stall_seconds = 0;  // of each gather that runs beside a copy
  double skew_seconds = 0;   // until all hosts have started: alike in every level
};

// Returns the overheads of kTable8's machine and mesh. A chunk's copies are one for each rank of
// the exchange (t e), and its two collectives are launched, each 2.5 us as on an A100.
Overheads published_overheads();

double extended_seconds(Level level, const Exchange& exchange, int64_t num_chunks,
                        const Overheads& overheads);
// The level of the least seconds, O2 and O3 in so many chunks; the lower one on a tie.
Level extended_level(const Exchange& exchange, int64_t num_chunks, const Overheads& overheads);

// The cost of a chunk, and the stall, with which two levels take equally long: a larger one makes
// the lower level the choice. Negative: the lower one is faster without any. The cost holds only
// where the gather decides (fast networks between nodes). Both require num_chunks >= 2.
double equal_chunk_seconds(const Exchange& exchange, int64_t num_chunks,
                           const Overheads& overheads);  // O1 and O2
double equal_stall_seconds(const Exchange& exchange, int64_t num_chunks,
                           const Overheads& overheads);  // O2 and O3

}  // namespace piper::studies::paper::monta
