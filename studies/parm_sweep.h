// Table III of Parm: 4,374 mixture layers, priced on the descriptions of the paper's two testbeds
// (clusters rtx4090x8 and rtx2080ti) under its baseline and its two schedules. Which 1,296 of them
// the paper ran, its E and its k are not published: all are priced, with one expert a rank of an EP
// group (E = P / N_ESP, as Table V has it) and k = 2, in fp32.
#pragma once

#include <piper/cost/trainer/moe_schedules.h>

#include <cstdint>
#include <string>
#include <vector>

namespace piper::studies {

inline constexpr int64_t kParmRun = 1296;      // that the paper ran
inline constexpr int64_t kParmProduct = 4374;  // of Table III's values

// All layers of one testbed, number of GPUs, N_MP and N_ESP.
struct ParmCell {
  std::string cluster;
  int64_t devices = 0, mp = 0, esp = 0;
  int64_t num_layers = 0;
  // Means of the speed-ups over the baseline, forward and backward together.
  double s1 = 0, s2 = 0, best = 0;
  double over_worse = 0;       // mean of the worse one's seconds over the better one's
  double least = 0, most = 0;  // of the best speed-ups
  double over_sequential = 0;  // mean of S2's seconds without SAA (AAS) over those with it
  double above_four = 0;       // share of the layers whose best speed-up is larger than 4
  double least_communication = 1, most_communication = 0;  // shares of the baseline's time
};

// A mixture layer, and how a rank has it.
struct MixtureCase {
  model::FeedForward layer;
  cost::MoeSetting setting;
};
// The cells of parm_sweep() before they are priced, and the 162 layers of one.
std::vector<ParmCell> parm_cells();
std::vector<MixtureCase> parm_layers(const ParmCell& cell);

// 36 cells: A with 8 GPUs, B with 8, 16 and 32, by N_MP and N_ESP in {1, 2, 4}.
std::vector<ParmCell> parm_sweep();

}  // namespace piper::studies
