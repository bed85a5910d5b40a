// HybridEP's model of a layer as it is printed (Yang et al. 2025, "HybridEP", sections III and
// IV-A), for reproducing the paper's figures, and what its misprints must have meant.
//
// A GPU has G - 1 chunks of data for the others' experts: a proportion p of them travels by
// all-to-all; for the rest the experts come to the data, by all-gather. GPUs that gather each
// other's experts are a domain of S: p = 1 - S / G (text and Table IV), while eq. 8 lets p be any
// multiple of 1 / (G - 1).
//
// What the model leaves out: the gradients of experts that came (the paper's data parallelism sums
// them, uncompressed), and that several micro-batches use experts gathered once. Piper's planner
// counts both: a domain of S is ep = G / S with edp = S under ZeRO 1, and has their prices.
//
// Seconds, bytes, bytes a second. Pure functions, thread-safe.
#pragma once

#include <cstdint>
#include <vector>

namespace piper::studies::paper::hybridep {

// Table I, on one of G GPUs.
struct Layer {
  double gpus = 1;                // G
  double bandwidth = 0;           // B
  double pre_expert_seconds = 0;  // Lat of attention and dense layers in front of the experts
  double data_bytes = 0;          // D: what a GPU sends in one all-to-all, k copies included
  double expert_bytes = 0;        // P_E: all experts of a GPU, as they are sent
};

double all_to_all_seconds(const Layer& layer, double p);  // eq. 3, for the proportion p
double all_gather_seconds(const Layer& layer, double p);  // eq. 4, for the rest

// Eq. 10: without the experts' own time, under which their travel is hidden (section III-C).
double seconds(const Layer& layer, double p);
// Eq. 11 and 12: the p of least seconds. 2 D >= G P_E: 0. Else what the pre-expert time hides.
double best_proportion(const Layer& layer);
// Returns the domain of least seconds among the divisors of G; the larger of equals.
int64_t best_domain(const Layer& layer);

// Section IV-A: workers by level, the outermost first, and the size of a domain at each level.
struct Levels {
  std::vector<int64_t> workers;  // SF, each of a worker of the level before
  std::vector<int64_t> domains;  // S_ED, each a divisor
};
std::vector<int64_t> location(const Levels& levels, int64_t gpu);  // eq. 13

enum class Travel : uint8_t { kNone, kAllGather, kAllToAll };
// Algorithm 1, with the subscripts that it must mean (D and E are m and n): between two GPUs at a
// level. None where their places at deeper levels differ.
Travel travel(const Levels& levels, int64_t level, int64_t m, int64_t n);
// Table VII: ordered pairs of GPUs that do it, at all levels.
int64_t num_messages(const Levels& levels, Travel travel);

}  // namespace piper::studies::paper::hybridep
