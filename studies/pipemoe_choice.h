// PipeMoE's way to choose the number of chunks (paper/pipemoe.h) on a machine, beside Piper's.
// The exchange and the experts of one chunk are a line each, fitted to what price_chunks() takes
// them at in 1, 2, 4, ... chunks. The model has two streams: gathers and sums over the ranks that
// share an expert, of which it knows nothing, are counted as the experts'.
#pragma once

#include <piper/cost/trainer/moe_schedules.h>
#include <studies/paper/pipemoe.h>

#include <cstdint>
#include <vector>

namespace piper::studies {

struct PipemoeChoice {
  paper::pipemoe::Layer forward, backward;         // by the lines
  double all_to_all_error = 0, experts_error = 0;  // of the forward's farthest points, relative
  // The paper's choice is the forward's best count, taken for both passes.
  paper::pipemoe::Chunks chunks;
  int64_t chunks_of_both = 1;  // what the same model takes by the sum of both passes
  // They price `chunked` in these counts, and in the one that Piper finds best for both passes
  // together.
  cost::MoeSchedulePrice price, price_of_both, best;
  double regret() const { return price.total() / best.total() - 1; }
  double regret_of_both() const { return price_of_both.total() / best.total() - 1; }
};

// `prices`: of `chunked`, as price_chunks() gives them.
PipemoeChoice choose_as_pipemoe(const std::vector<cost::MoeSchedulePrice>& prices);

}  // namespace piper::studies
