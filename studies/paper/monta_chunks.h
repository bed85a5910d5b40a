// MoNTA's searches: how many chunks (Algorithms 1 and 2) and which level (Algorithm 3), as printed
// and as meant. Pure functions, thread-safe.
#pragma once

#include <studies/paper/monta.h>

#include <cstdint>

namespace piper::studies::paper::monta {

// What the searches look up.
struct Machine {
  Bandwidths bandwidths;
  EfficiencyCurves efficiencies;
  double least_bytes =
      1e6;  // I_minimal: chunks whose all-to-all or gather is smaller are not tried
};

enum class Level : uint8_t { kO1, kO2, kO3 };
const char* name(Level level);  // "O1"

struct Chunks {
  int64_t num_chunks = 1;
  double seconds = 0;
};

// kO2: Algorithm 1; kO3: Algorithm 2; kO1: one chunk, eq. 11. The least seconds and their N, the
// smallest on a tie; num_chunks 1 also where nothing may be divided. Requires machine.least_bytes >
// 0.
Chunks best_chunks(Level level, const Exchange& exchange, const Machine& machine);
// Lines 18 to 22 as printed, "if T < T_min then T = T_min": T_min stays infinite, and N is the
// first that was not tried.
Chunks printed_best_chunks(Level level, const Exchange& exchange, const Machine& machine);

// Algorithm 3: the level of the least seconds, the lower one on a tie.
struct Choice {
  Level level = Level::kO1;
  Chunks chunks;
};
Choice best_level(const Exchange& exchange, const Machine& machine);
// With what the printed searches return: always O1.
Choice printed_best_level(const Exchange& exchange, const Machine& machine);

// "Performance outputs": of a step with `num_exchanges` of them and `other_seconds` besides.
struct Outputs {
  double latency_seconds = 0, tokens_per_second = 0, mfu = 0;
};
struct Step {
  double num_exchanges = 0;  // all-to-alls that take what the choice takes
  double other_seconds = 0;
  double tokens = 0, model_flops = 0, peak_flops_per_second = 0;  // of all devices together
};
Outputs outputs(const Choice& choice, const Step& step);

}  // namespace piper::studies::paper::monta
