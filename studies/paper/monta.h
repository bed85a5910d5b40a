// MoNTA's performance model as it is printed (Guo et al. 2024, eq. 3 to 16, Algorithms 1 to 3), for
// reproducing the paper's figures, and what its misprints must have meant. Under tensor
// parallelism without sequence parallelism t ranks of a node hold the same tokens:
//
//   baseline  each of them sends all of them to its peer of the other nodes
//   O1        each sends a t-th of them, and the node gathers what has arrived
//   O2        the same in N chunks: a chunk is gathered, and copied to its place, while the next
//             one travels between the nodes
//   O3        likewise, and the copies run beside the next gather
//
// Bytes, seconds and bytes a second, as doubles. Pure functions, thread-safe.
#pragma once

#include <piper/cluster/cluster.h>

#include <cstdint>

namespace piper::studies::paper::monta {

// One all-to-all of a layer.
struct Exchange {
  double bytes = 0;  // I
  int64_t tp = 1;    // t, ranks of a node that hold the same tokens; their gather stays inside it
  int64_t ep = 1;    // e, nodes that share the experts
};
// Eq. 3, I = b s h BPE: without the k of top-k, so b s must be the rows that are sent.
double exchange_bytes(double micro_batch, double sequence, double hidden, double element_bytes);

// Theoretical, one direction, of one device.
struct Bandwidths {
  double across = 0;  // B1, between nodes
  double inside = 0;  // B2, inside a node
  double memory = 0;  // B3
};

// What is reached of them.
struct Efficiencies {
  double all_to_all = 1, all_gather = 1, copy = 1;  // r1, r2, r3
};
// By the bytes of the whole tensor (axis "bytes"): I / (N t) for r1, I / N for r2 and r3.
struct EfficiencyCurves {
  cluster::Grid all_to_all, all_gather, copy;
  Efficiencies at(const Exchange& exchange, int64_t num_chunks) const;
};

// What the paper states of its 16 A800 (Tables 5 and 8, eq. 12): B1 25 GB/s, B2 200 GB/s, B3 1.6
// TB/s, and the points of Fig. 13 that its text and tables give. Beyond them the nearest holds.
Bandwidths published_bandwidths();
EfficiencyCurves published_efficiencies();
// One exchange of b 2, s 8K, h 8192: Table 8 in units of 1e6 bytes (256 MiB, printed as 256 M).
inline constexpr Exchange kTable8{.bytes = 256e6, .tp = 8, .ep = 2};

// Eq. 8 to 10: one chunk of N.
struct ChunkTimes {
  double all_to_all = 0, all_gather = 0, copy = 0;  // AA_j, AG_j, D2D_j
};
ChunkTimes chunk_times(const Exchange& exchange, const Bandwidths& bandwidths,
                       const Efficiencies& efficiencies, int64_t num_chunks);

// I (e-1)/e / (B1 r1).
double baseline_seconds(const Exchange& exchange, const Bandwidths& bandwidths,
                        const Efficiencies& efficiencies);
// Eq. 11: one chunk, nothing to copy.
double o1_seconds(const ChunkTimes& whole);
double o2_seconds(const ChunkTimes& chunk, int64_t num_chunks);  // Algorithm 1, lines 13 to 17
double o3_seconds(const ChunkTimes& chunk, int64_t num_chunks);  // Algorithm 2, lines 13 to 17

// Eq. 12, AA_j / AG_j. `ratio` = B2 / B1.
double exchange_over_gather(int64_t tp, int64_t ep, double ratio, const Efficiencies& efficiencies);
// The largest gain over the baseline that O3 can reach where links and copies are ideal (r1 = r2,
// no D2D): 1 / (min / N + max) of the all-to-all's 1 / t and the gather's ((t-1)/t) (e/(e-1)) /
// ratio, both in units of the baseline. num_chunks = 0: without end (eq. 13 is its inverse).
// Requires ep >= 2.
double gain_bound(int64_t tp, int64_t ep, double ratio, int64_t num_chunks = 0);
// The smallest B2 / B1 for which the gain can be t: ep (t-1) / (ep-1).
double least_ratio_of_full_gain(int64_t tp, int64_t ep);

// Table 1: DeepSpeed's two schemes, both exchanges of a layer's forward.
//   1  tensor-parallel attention, whole experts: drop, all-to-all, experts, all-to-all, all-gather
//   2  tensor-parallel attention and experts: all-to-all, experts, all-to-all
double scheme_1_seconds(const ChunkTimes& whole);
double scheme_2_seconds(double baseline_seconds);

}  // namespace piper::studies::paper::monta
