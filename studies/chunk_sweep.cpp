#include <piper/base/error.h>
#include <studies/chunk_sweep.h>
#include <studies/parm_sweep.h>
#include <studies/pipemoe_choice.h>
#include <studies/real.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace piper::studies {
namespace {

using cost::MoePass;
using cost::MoeSchedulePrice;
using strategy::MoeSchedule;

constexpr double kNear = 0.01;

Spread spread(std::vector<double> values) {
  if (values.empty()) return {};
  std::ranges::sort(values);
  const auto n = real(std::ssize(values));
  return {.mean = std::accumulate(values.begin(), values.end(), 0.0) / n,
          .ninetieth = values[static_cast<size_t>(std::ceil(0.9 * n)) - 1],
          .worst = values.back()};
}

class Sweep {
 public:
  explicit Sweep(MoeSchedule schedule) : schedule_(schedule) {}

  void add(const MixtureCase& of, const cluster::Cluster& machine) {
    if (of.setting.tp == 1 && strategy::needs_replicated_tokens(schedule_)) return;
    const std::vector<MoeSchedulePrice> prices =
        cost::price_chunks(of.layer, of.setting, machine, schedule_);
    const auto best_of = [&](MoePass MoeSchedulePrice::*pass) {
      return std::ranges::min_element(prices, {},
                                      [&](const MoeSchedulePrice& p) { return (p.*pass).total; });
    };
    const auto forward = best_of(&MoeSchedulePrice::forward);
    const auto backward = best_of(&MoeSchedulePrice::backward);
    const double common = prices[cost::cheapest(prices)].total();
    saved_.push_back(1 - (forward->forward.total + backward->backward.total) / common);
    ++sweep_.num_layers;
    sweep_.num_apart += forward != backward ? 1 : 0;
    if (schedule_ != MoeSchedule::kChunked) return;
    const PipemoeChoice choice = choose_as_pipemoe(prices);
    regrets_.push_back(choice.regret());
    forward_regrets_.push_back(choice.price.forward.total / forward->forward.total - 1);
    sweep_.num_near += choice.regret() <= kNear ? 1 : 0;
    regrets_of_both_.push_back(choice.regret_of_both());
    sweep_.num_near_of_both += choice.regret_of_both() <= kNear ? 1 : 0;
  }

  ChunkSweep take() {
    sweep_.saved = spread(std::move(saved_));
    sweep_.regret = spread(std::move(regrets_));
    sweep_.regret_of_both = spread(std::move(regrets_of_both_));
    sweep_.forward_regret = spread(std::move(forward_regrets_));
    return sweep_;
  }

 private:
  MoeSchedule schedule_;
  ChunkSweep sweep_;
  std::vector<double> saved_, regrets_, forward_regrets_, regrets_of_both_;
};

void add_parm(Sweep& sweep, int64_t most_esp) {
  for (const ParmCell& cell : parm_cells()) {
    if (cell.esp > most_esp) continue;
    const cluster::Cluster machine = cluster::load_cluster(cell.cluster);
    for (const MixtureCase& of : parm_layers(cell)) sweep.add(of, machine);
  }
}

void add_monta(Sweep& sweep) {
  const cluster::Cluster machine = cluster::load_cluster("a800");
  for (const int64_t thousands : {4, 8, 16, 32, 64, 128, 256})
    sweep.add({{.ffn = 28'672, .num_experts = 2, .top_k = 1},
               {.hidden = 8192, .tokens = real(2 * thousands * 1024), .tp = 8, .ep = 2, .etp = 8}},
              machine);
}

void add_fsmoe(Sweep& sweep) {
  constexpr int64_t kNodes = 8, kSharing = 4;  // N_EP; N_MP and N_ESP
  const cluster::Cluster machine = cluster::load_cluster("rtx2080ti");
  for (const int64_t batch : {1, 2, 4})
    for (const int64_t sequence : {256, 512, 1024})
      for (const int64_t hidden : {1024, 2048, 4096})
        for (const int64_t scale : {2, 3, 4})
          for (const double factor : {1.2, 2.4, 1.0})
            for (const int64_t matrices : {2, 3})      // "simple", "Mixtral"
              for (int heads = 0; heads < 3; ++heads)  // of the attention alone
                sweep.add({{.ffn = scale * hidden,
                            .num_matrices = matrices,
                            .num_experts = kNodes,
                            .top_k = 2},
                           {.hidden = real(hidden),
                            .tokens = real(batch * sequence / kSharing),
                            .rows_per_copy = factor,
                            .ep = kNodes,
                            .etp = kSharing,
                            .precision = strategy::Precision::kFp32}},
                          machine);
}

}  // namespace

ChunkSweep sweep_chunks(ChunkRange range, MoeSchedule schedule) {
  Sweep sweep(schedule);
  switch (range) {
    case ChunkRange::kParm:
      add_parm(sweep, strategy::kMaxDegree);
      break;
    case ChunkRange::kParmWhole:
      add_parm(sweep, 1);
      break;
    case ChunkRange::kMonta:
      add_monta(sweep);
      break;
    case ChunkRange::kFsmoe:
      add_fsmoe(sweep);
      break;
  }
  ChunkSweep all = sweep.take();
  PIPER_CHECK(all.num_layers > 0, "the range has no such layers");
  return all;
}

}  // namespace piper::studies
