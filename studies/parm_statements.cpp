#include <studies/paper/parm.h>
#include <studies/paper/parm_placement.h>
#include <studies/parm_sweep.h>
#include <studies/statement_list.h>

#include <algorithm>
#include <array>
#include <string>

namespace piper::studies {
namespace {

namespace parm = paper::parm;

// A layer of Table III, on 32 GPUs, N_MP 4.
constexpr parm::Layer kLayer{.batch = 4,
                             .sequence = 1024,
                             .hidden = 1024,
                             .num_experts = 8,
                             .top_k = 2,
                             .capacity_factor = 1.2};

// All-to-alls of twice the gather's time an element: the ratio is not printed.
parm::Fits fits_of(const parm::CollectiveFit& gather) {
  const parm::CollectiveFit exchange{gather.startup_seconds, 2 * gather.seconds_per_element};
  return {.esp_all_gather = gather,
          .esp_all_reduce = exchange,
          .ep_all_to_all = exchange,
          .fused_all_to_all = exchange,
          .mp_all_gather = gather,
          .overlapped = exchange};
}

void formulas(StatementList& list) {
  list.exact("T of B 4, L 1024, M 1024, E 8, k 2, f 1.2", "Algorithm 1, line 2",
             kLayer.expert_tokens() * kLayer.hidden, kLayer.expert_tokens(), " tokens",
             "one M too many: section II-A has T = k f B L / E");
  const parm::Fits fits = fits_of(parm::kTestbedBGather);
  const parm::Degrees d{.mp = 4, .ep = 8, .esp = 4};
  list.exact("S1 of that layer, N_MP 4, N_ESP 4", "eq. 13",
             1e3 * parm::printed_s1_seconds(kLayer, d, fits),
             1e3 * parm::s1_seconds(kLayer, d, fits), " ms",
             "its second line has lost N_ESP, which eq. 11 and Algorithm 1 keep");
  list.exact("S2 of that layer", "eq. 14", 1e3 * parm::printed_s2_seconds(kLayer, d, fits),
             1e3 * parm::s2_seconds(kLayer, d, fits), " ms",
             "it adds the gather that Overlap() holds; eq. 7 and Algorithm 1 do not");
  const auto least = [](const parm::CollectiveFit& gather) {
    return parm::least_elements_of_eq_10({.mp = 2, .ep = 8}, fits_of(gather));
  };
  list.exact_claim("S2 is faster than the baseline, N_MP 2, N_ESP 1", "IV-B, eq. 10", "always",
                   fmt::format("from {:.3g} elements on A, {:.3g} on B",
                               least(parm::kTestbedAGather), least(parm::kTestbedBGather)),
                   false,
                   "eq. 10 loses the start-up of the gather; all-to-alls are taken to cost twice "
                   "a gather, since their fits are not printed");
  list.exact("layers of Table III", "VI-A", static_cast<double>(kParmRun),
             static_cast<double>(kParmProduct), "",
             "the product of its values; which of them ran is not published");
}

// EP 2 x ESP 2 in each case, between nodes eight times slower than inside.
void placements(StatementList& list) {
  constexpr parm::LinkTimes kLinks{.inside = 1, .across = 8};
  std::string ratios;
  bool holds = true;
  for (const parm::Grid& grid : {parm::Grid{.ep = 2, .esp = 2, .ranks_per_node = 4},
                                 {.ep = 2, .esp = 2, .ranks_per_node = 2},
                                 {.ep = 2, .esp = 2, .ranks_per_node = 2, .is_esp_inside = false},
                                 {.ep = 2, .esp = 2, .ranks_per_node = 1}}) {
    const double ratio = parm::fused_all_to_all_seconds(grid, kLinks, 1) /
                         (parm::esp_all_gather_seconds(grid, kLinks, 1) +
                          parm::ep_all_to_all_seconds(grid, kLinks, 1));
    ratios += fmt::format("{}{:.2f}", ratios.empty() ? "" : ", ", ratio);
    holds &= ratio <= 1;
  }
  list.exact_claim("one exchange over EP and ESP against gather and all-to-all", "eq. 3, 5",
                   "at most 1 in four cases", ratios, holds);
}

const ParmCell& cell_of(const std::vector<ParmCell>& cells, const char* cluster, int64_t devices,
                        int64_t mp, int64_t esp) {
  return *std::ranges::find_if(cells, [&](const ParmCell& c) {
    return c.cluster == cluster && c.devices == devices && c.mp == mp && c.esp == esp;
  });
}

// Table IV: speed-ups of S1, S2 and Parm on A with 8 GPUs and on B with 8, 16 and 32.
struct PrintedRow {
  int64_t mp, esp;
  std::array<double, 4> s1, s2, best;
};
constexpr std::array kTableIv{
    PrintedRow{2, 2, {2.10, 2.62, 2.46, 2.72}, {1.99, 2.42, 2.20, 2.57}, {2.10, 2.62, 2.46, 2.57}},
    PrintedRow{2, 4, {2.24, 3.37, 2.85, 2.85}, {2.41, 3.05, 2.44, 2.75}, {2.41, 3.37, 2.85, 2.85}},
    PrintedRow{4, 2, {3.72, 4.18, 4.12, 3.92}, {3.21, 3.58, 3.81, 4.10}, {3.70, 4.18, 4.12, 4.06}},
    PrintedRow{4, 4, {4.19, 5.77, 5.08, 4.57}, {4.12, 5.38, 4.82, 4.91}, {4.20, 5.77, 5.08, 4.91}}};
struct Testbed {
  const char *name, *cluster;
  int64_t devices;
};
constexpr std::array<Testbed, 4> kTestbeds{
    {{"A", "rtx4090x8", 8}, {"B", "rtx2080ti", 8}, {"B", "rtx2080ti", 16}, {"B", "rtx2080ti", 32}}};

constexpr const char* kUnpublished =
    "E, k, the layers that ran, and every fit but that of the gather are not published";

void table_iv(StatementList& list, const std::vector<ParmCell>& cells) {
  for (const PrintedRow& row : kTableIv)
    for (size_t i = 0; i < kTestbeds.size(); ++i) {
      const Testbed& t = kTestbeds[i];
      const ParmCell& cell = cell_of(cells, t.cluster, t.devices, row.mp, row.esp);
      const auto add = [&](const char* schedule, double printed, double predicted) {
        list.measured(fmt::format("{} over the baseline, {} with {} GPUs, N_MP {}, N_ESP {}",
                                  schedule, t.name, t.devices, row.mp, row.esp),
                      "Table IV", printed, predicted, "", kUnpublished);
      };
      add("S1", row.s1[i], cell.s1);
      add("S2", row.s2[i], cell.s2);
      add("Parm", row.best[i], cell.best);
      const double better = std::max(row.s1[i], row.s2[i]);
      if (row.best[i] < better)
        list.exact(fmt::format("Parm's cell of {} with {} GPUs, N_MP {}, N_ESP {}, is the better "
                               "schedule's",
                               t.name, t.devices, row.mp, row.esp),
                   "Table IV", row.best[i], better, "",
                   "it stands below a schedule that Parm chooses from", 0);
    }
}

void figures(StatementList& list, const std::vector<ParmCell>& cells) {
  const ParmCell& fig_7 = cell_of(cells, "rtx2080ti", 32, 4, 4);
  list.measured("mean speed-up, 32 GPUs, N_MP 4, N_ESP 4", "Fig. 7", 4.91, fig_7.best, "",
                kUnpublished);
  list.measured("layers with more than 4 x", "Fig. 7", 89, 100 * fig_7.above_four, " %",
                kUnpublished);
  double least = 1, most = 0, a = 0, b = 0, num_a = 0, num_b = 0;
  double saa_a = 0, saa_b = 0;
  double least_gain = fig_7.least, most_gain = fig_7.most;
  for (const ParmCell& c : cells) {
    least_gain = std::min(least_gain, c.least);
    most_gain = std::max(most_gain, c.most);
    if (c.devices == 32) {
      least = std::min(least, c.least_communication);
      most = std::max(most, c.most_communication);
    }
    if (c.mp == 1 || c.esp == 1) continue;  // the cells of Table IV
    const bool is_a = c.cluster == "rtx4090x8";
    (is_a ? a : b) += c.over_worse;
    (is_a ? saa_a : saa_b) += c.over_sequential;
    (is_a ? num_a : num_b) += 1;
  }
  list.measured("least speed-up of a layer", "abstract", 1.13, least_gain, "",
                "the least are layers with N_MP = N_ESP = 1, where no schedule differs");
  list.exact_claim("largest speed-up of a layer", "abstract", "5.77",
                   fmt::format("{:.3g}", most_gain), false,
                   "5.77 is the mean of Table IV's best cell");
  list.measured("least share of communication, 32 GPUs", "Fig. 1", 67.92, 100 * least, " %",
                "groups of one rank, which the product has and Fig. 1 may not, communicate less");
  list.measured("largest share of communication, 32 GPUs", "Fig. 1", 96.02, 100 * most, " %",
                kUnpublished);
  // Gains in percent, so that an error is one of the gain.
  const auto gain = [&](const char* what, double printed, double mean, const char* cause) {
    list.measured(what, "VI-C", printed, 100 * (mean - 1), " %", cause);
  };
  constexpr const char* kOneNode = "in one node the exchange and the gather share the links";
  gain("gain of the better schedule over the worse, testbed A", 8, a / num_a, kOneNode);
  gain("gain of the better schedule over the worse, testbed B", 10.5, b / num_b, kUnpublished);
  gain("gain of SAA over AAS in S2, testbed A", 1.09, saa_a / num_a, kOneNode);
  gain("gain of SAA over AAS in S2, testbed B", 1.12, saa_b / num_b, kUnpublished);
  list.exact_claim("what SAA improves on", "VI-C", "SAA", "AAS", false,
                   "the sentence compares SAA with executing both sequentially (AAS)");
}

}  // namespace

std::vector<Statement> parm_statements() {
  StatementList list;
  formulas(list);
  placements(list);
  const std::vector<ParmCell> cells = parm_sweep();
  table_iv(list, cells);
  figures(list, cells);
  return list.take();
}

std::vector<std::string> parm_assumptions() {
  return {"clusters rtx4090x8 and rtx2080ti: the printed fits of the gather stand for their links",
          "all 4,374 layers of Table III, k = 2, one expert a rank of an EP group, two matrices, "
          "fp32; padding to the capacity travels and is computed",
          "one layer's exchanges, gathers and experts, forward and backward; no gate, no gradient "
          "reduction",
          "Table V: batch and sequence of its models are not published, so it is not predicted"};
}

}  // namespace piper::studies
