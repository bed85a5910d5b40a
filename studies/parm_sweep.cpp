#include <piper/cost/trainer/moe_schedules.h>
#include <studies/parm_sweep.h>
#include <studies/real.h>

#include <algorithm>

namespace piper::studies {
namespace {

constexpr int64_t kTopK = 2;  // not published

const cost::MoeSchedulePrice& named(const std::vector<cost::MoeSchedulePrice>& prices,
                                    const char* name) {
  return *std::ranges::find(prices, name, &cost::MoeSchedulePrice::name);
}

void add(ParmCell& cell, const std::vector<cost::MoeSchedulePrice>& prices) {
  const cost::MoeSchedulePrice& baseline = named(prices, "parm-baseline");
  const double t = baseline.total();
  const cost::MoeSchedulePrice& overlapped = named(prices, "parm-s2");
  const double s1 = named(prices, "parm-s1").total(), s2 = overlapped.total();
  const double best = std::min(s1, s2);
  const double experts = baseline.forward.experts + baseline.backward.experts;
  cell.least = cell.num_layers == 0 ? t / best : std::min(cell.least, t / best);
  cell.most = std::max(cell.most, t / best);
  ++cell.num_layers;
  cell.s1 += t / s1;
  cell.s2 += t / s2;
  cell.best += t / best;
  cell.over_worse += std::max(s1, s2) / best;
  cell.over_sequential +=
      1 + (overlapped.forward.overlapped() + overlapped.backward.overlapped()) / s2;
  cell.above_four += t / best > 4 ? 1 : 0;
  cell.least_communication = std::min(cell.least_communication, 1 - experts / t);
  cell.most_communication = std::max(cell.most_communication, 1 - experts / t);
}

void price(ParmCell& cell, const cluster::Cluster& machine) {
  for (const MixtureCase& of : parm_layers(cell))
    add(cell, cost::price_moe_schedules(of.layer, of.setting, machine));
  const double n = real(cell.num_layers);
  for (double* mean :
       {&cell.s1, &cell.s2, &cell.best, &cell.over_worse, &cell.over_sequential, &cell.above_four})
    *mean /= n;
}

}  // namespace

std::vector<ParmCell> parm_cells() {
  std::vector<ParmCell> cells;
  const auto add_all = [&](const char* machine, int64_t devices) {
    for (const int64_t mp : {1, 2, 4})
      for (const int64_t esp : {1, 2, 4})
        cells.push_back({.cluster = machine, .devices = devices, .mp = mp, .esp = esp});
  };
  add_all("rtx4090x8", 8);
  for (const int64_t devices : {8, 16, 32}) add_all("rtx2080ti", devices);
  return cells;
}

std::vector<MixtureCase> parm_layers(const ParmCell& cell) {
  std::vector<MixtureCase> layers;
  const int64_t esp = cell.esp, ep = cell.devices / esp;
  for (const int64_t batch : {2, 4, 8})
    for (const int64_t sequence : {512, 1024, 2048})
      for (const int64_t ffn : {1024, 2048, 4096})
        for (const int64_t hidden : {1024, 2048, 4096})
          for (const double factor : {1.2, 2.4})
            layers.push_back(
                {{.ffn = ffn * esp, .num_matrices = 2, .num_experts = ep, .top_k = kTopK},
                 {.hidden = real(hidden * esp),
                  .tokens = real(batch * sequence),
                  .rows_per_copy = factor,
                  .tp = cell.mp,
                  .ep = ep,
                  .etp = esp,
                  .precision = strategy::Precision::kFp32}});
  return layers;
}

std::vector<ParmCell> parm_sweep() {
  std::vector<ParmCell> cells = parm_cells();
  for (ParmCell& cell : cells) price(cell, cluster::load_cluster(cell.cluster));
  return cells;
}

}  // namespace piper::studies
