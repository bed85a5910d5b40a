// PipeMoE's choice of the number of chunks (Shi et al. 2023, "PipeMoE: Accelerating
// Mixture-of-Experts through Adaptive Pipelining", INFOCOM), for reproducing it beside Piper's own.
//
//   all-to-all   D1 | D2 | ... | Dr | C1 | C2 | ... | Cr        dispatch and combine take as long
//   compute           | E1 | E2 | ... | Er
//
// The paper's, by its authors' repository (Fragile-azalea/PipeMoE) and section 4 of the follow-up
// by the same group (Pan et al. 2025, "FSMoE"); the text of the paper itself was not at hand:
//   - an all-to-all and the experts are lines, t = alpha + beta n. One of r chunks takes
//     D = alpha_D + beta_D n_D / r and E = alpha_E + beta_E n_E / r. Experts are two products, so
//     alpha_E and beta_E are twice those of one;
//   - four cases, each minimised over its r, two of them numerically, and the least of the four:
//       r = 1                          2 D + E
//       r >= 2, E <= D                 2 r D
//       r >= 2, E > D, r E > 2(r-1) D  2 D + r E
//       r >= 2, E > D, otherwise       2 r D
//   - these are the forward's times, and the backward runs in as many chunks.
// Derived here:
//   - for every r the cases are T(r) = max(2 r D, 2 D + r E), which is what the order above takes;
//   - T is convex: 2 r D grows with r, and 2 D + r E is least at r = sqrt(2 beta_D n_D / alpha_E).
//     The best real r is that, or where the two parts meet if that is less; the best whole number
//     is a neighbour of it.
//
// Seconds, as doubles. Pure functions, thread-safe.
#pragma once

#include <cstdint>

namespace piper::studies::paper::pipemoe {

// One task in one piece: alpha, and beta n, which chunks divide.
struct Task {
  double startup_seconds = 0;
  double work_seconds = 0;
  double chunk_seconds(double num_chunks) const {
    return startup_seconds + work_seconds / num_chunks;
  }
};
struct Layer {
  Task all_to_all;  // one way
  Task experts;
};

enum class Case : uint8_t { kOneChunk, kAllToAll, kExperts, kAllToAllBesideExperts };
const char* name(Case of);  // "experts"

// In the order of the table. Requires num_chunks >= 1.
Case case_of(const Layer& layer, int64_t num_chunks);
double seconds(const Layer& layer, int64_t num_chunks);

// The real r of the derivation, infinite where there is none: where start-ups of the experts
// outweigh what more chunks overlap; from where on all-to-alls take longer than everything else.
double experts_chunks(const Layer& layer);
double all_to_all_chunks(const Layer& layer);

struct Chunks {
  int64_t num_chunks = 1;
  double seconds = 0;
};
// The fewest chunks of the least seconds, in closed form. Requires max_chunks >= 1.
Chunks best_chunks(const Layer& layer, int64_t max_chunks);

// The candidate of the second case as the repository computes it, max(2, ceil((beta_E n_E -
// beta_D n_D) / (alpha_D - alpha_E))): it bounds r from below only where alpha_D > alpha_E, and
// does not ask whether E <= D holds. Requires different start-ups.
int64_t printed_all_to_all_chunks(const Layer& layer);
// The least of the four with that candidate, at the seconds that its case claims for it.
Chunks printed_best_chunks(const Layer& layer, int64_t max_chunks);

// t = alpha + beta x of fp32: an all-to-all by elements that a rank sends, a product by m n k.
struct Fit {
  double startup_seconds = 0;
  double seconds_per_unit = 0;
};
// The fits of the repository: RTX 2080 Ti, 100 Gb/s InfiniBand, 16, 32 and 64 ranks.
inline constexpr Fit kAllToAll16{5.70e-4, 4 * 2.96e-10};
inline constexpr Fit kAllToAll32{2.09e-4, 4 * 3.55e-10};
inline constexpr Fit kAllToAll64{7.83e-4, 4 * 3.84e-10};
inline constexpr Fit kProduct{1.5e-4, 4 * 3.73e-14};

// Returns the layer of a rank that sends `rows` (tokens times their copies); `hidden` is M, `ffn`
// H.
Layer fitted_layer(double rows, double hidden, double ffn, const Fit& all_to_all,
                   const Fit& product);

}  // namespace piper::studies::paper::pipemoe
